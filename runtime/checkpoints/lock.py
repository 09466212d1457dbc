"""Lock a folder of checkpoints, so that a single run at a time writes there.

Problem. Two runs that write to one folder remove each other's checkpoints.

Method. A lock file names its owner: computer, process and run. It is written under a temporary name
and put in place by a hard link. That is atomic on local and network file systems, and never shows
a part of the content. If the owner is a process of this computer that has ended, by its number and
start time, the lock is stale and is taken over. Processes that take over exclude each other by
flock on the folder, else two could remove each other's lock. Whether a process of another computer
has ended is unknown: then the error names the owner and how to remove the file. A lock of an
earlier start of the same run is taken over, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pcg.errors import InputError
from pcg.files import FileModel, read_json
from runtime.job.job import TryAgain
from runtime.world.processes import Process, this_process

NAME = ".unity-lock"
"""The name of the lock file in the folder."""
TEMPORARY = ".unity-lock-"
"""The prefix of the lock file while it is written."""


class FolderTaken(TryAgain):
    """Another run has the lock of the folder."""


class LockFile(FileModel):
    """The content of the lock file: the owner and its run."""

    host: str
    pid: int
    started: int
    run: str


@dataclass(frozen=True)
class Lock:
    """The lock of a folder that this process has taken for a run."""

    folder: Path
    owner: Process
    run: str

    def release(self) -> None:
        """Release the folder. Does nothing if another process has taken it over."""
        with contextlib.suppress(OSError), _exclusive(self.folder):
            current = _read(self.folder)
            if current is not None and (_owner(current), current.run) == (self.owner, self.run):
                (self.folder / NAME).unlink(missing_ok=True)


def take(folder: Path, run: str) -> Lock:
    """Take a folder for a run. Raises FolderTaken if another run has it, and OSError if no file can
    be written there."""
    lock = Lock(folder, this_process(), run)
    with _exclusive(folder):
        current = _read(folder)
        if current is not None:
            if current.run != run and _owner(current).is_alive:
                raise FolderTaken(str(folder), _taken(folder, current))
            (folder / NAME).unlink(missing_ok=True)
        for partial in folder.glob(f"{TEMPORARY}*"):
            partial.unlink(missing_ok=True)
        if not _put(lock):
            # A process of another computer was faster.
            winner = _read(folder)
            problem = "another run has taken it" if winner is None else _taken(folder, winner)
            raise FolderTaken(str(folder), problem)
    return lock


def is_free(folder: Path) -> bool:
    """Whether no process that may be alive has the lock of a folder."""
    try:
        current = _read(folder)
    except FolderTaken:
        return False
    return current is None or not _owner(current).is_alive


def remove_stale(folder: Path) -> bool:
    """Remove the lock of an owner that has ended. Return whether the folder is free now."""
    with contextlib.suppress(OSError), _exclusive(folder):
        if is_free(folder):
            (folder / NAME).unlink(missing_ok=True)
            return True
    return False


def _put(lock: Lock) -> bool:
    """Create the lock file. Return False if there is one already."""
    content = LockFile(**asdict(lock.owner), run=lock.run).model_dump_json() + "\n"
    place, part = lock.folder / NAME, lock.folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        part.write_text(content)
        try:
            os.link(part, place)
        except FileExistsError:
            return False
        except OSError:
            # The file system has no hard links.
            try:
                with place.open("x") as file:
                    file.write(content)
            except FileExistsError:
                return False
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return True


def _read(folder: Path) -> LockFile | None:
    """The lock file of a folder. None if there is none. Raises FolderTaken if it cannot be read."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        return read_json(path, LockFile)
    except InputError as error:
        if not path.exists():  # it was released just now
            return None
        problem = f"{NAME} cannot be read ({error.problem}); if no run is left, remove {path}"
        raise FolderTaken(str(folder), problem) from None


def _owner(file: LockFile) -> Process:
    return Process(file.host, file.pid, file.started)


def _taken(folder: Path, file: LockFile) -> str:
    """The message that a folder is taken, and what to do."""
    host = file.host.partition("/")[0]
    owner = f"run {file.run[:8]} of process {file.pid} on {host} writes there"
    if _owner(file).is_here:
        return f"{owner}, expected another folder or to wait for its end"
    return f"{owner}, another computer's; if it has ended, remove {folder / NAME}"


@contextmanager
def _exclusive(folder: Path) -> Generator[None]:
    """Exclude other processes of this computer by flock. On a file system without flock nothing is
    excluded; even then the hard link creates the lock file atomically."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
