"""Lock a folder of checkpoints, so that one run at a time writes there.

Problem: two runs that write one folder remove each other's checkpoints. Method: a file that names
its owner (computer, process, run), made beside its place and put there by a hard link, which is
atomic on local and network file systems alike and never shows a part of the content. An owner on
this computer that has ended, by number and time of start, leaves a stale lock, which is taken over;
those who take over do so one after the other, by flock on the folder, else two could remove each
other's. Owners on other computers cannot be asked: theirs is said, with how to remove it. An
earlier start of the same run is no other run.
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
"""Of the file, in the folder."""
TEMPORARY = ".unity-lock-"
"""What the file is called until it is whole."""


class FolderTaken(TryAgain):
    """Another run has the folder."""


class LockFile(FileModel):
    """What the file holds."""

    host: str
    pid: int
    started: int
    run: str


@dataclass(frozen=True)
class Lock:
    """A folder that this process has taken for a run."""

    folder: Path
    owner: Process
    run: str

    def release(self) -> None:
        """Give the folder back; nothing happens where somebody else has it by now."""
        with contextlib.suppress(OSError), _alone(self.folder):
            held = _read(self.folder)
            if held is not None and (_owner(held), held.run) == (self.owner, self.run):
                (self.folder / NAME).unlink(missing_ok=True)


def take(folder: Path, run: str) -> Lock:
    """Take a folder for a run. Raises FolderTaken where another one has it, and OSError where no
    file can be written there."""
    lock = Lock(folder, this_process(), run)
    with _alone(folder):
        held = _read(folder)
        if held is not None:
            if held.run != run and _owner(held).is_alive:
                raise FolderTaken(str(folder), _taken(folder, held))
            (folder / NAME).unlink(missing_ok=True)
        for left in folder.glob(f"{TEMPORARY}*"):
            left.unlink(missing_ok=True)
        if not _put(lock):
            # From another computer, at the same moment.
            other = _read(folder)
            problem = "another run has taken it" if other is None else _taken(folder, other)
            raise FolderTaken(str(folder), problem)
    return lock


def is_free(folder: Path) -> bool:
    """Whether no process that may be alive has a folder."""
    try:
        held = _read(folder)
    except FolderTaken:
        return False
    return held is None or not _owner(held).is_alive


def remove_stale(folder: Path) -> bool:
    """Remove the lock of an owner that has ended; whether the folder is free then."""
    with contextlib.suppress(OSError), _alone(folder):
        if is_free(folder):
            (folder / NAME).unlink(missing_ok=True)
            return True
    return False


def _put(lock: Lock) -> bool:
    """Make the file, if it is not there."""
    content = LockFile(**asdict(lock.owner), run=lock.run).model_dump_json() + "\n"
    place, part = lock.folder / NAME, lock.folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        part.write_text(content)
        try:
            os.link(part, place)
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links.
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
    """The lock of a folder, None without one. Raises FolderTaken for a file that is none."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        return read_json(path, LockFile)
    except InputError as error:
        if not path.exists():  # released meanwhile
            return None
        problem = f"{NAME} cannot be read ({error.problem}); if no run is left, remove {path}"
        raise FolderTaken(str(folder), problem) from None


def _owner(held: LockFile) -> Process:
    return Process(held.host, held.pid, held.started)


def _taken(folder: Path, held: LockFile) -> str:
    host = held.host.partition("/")[0]
    who = f"run {held.run[:8]} of process {held.pid} on {host} writes there"
    if _owner(held).is_here:
        return f"{who}, expected another folder or to wait for its end"
    return f"{who}, another computer's; if it has ended, remove {folder / NAME}"


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """One process of this computer at a time. Where a file system knows no such locks it does
    without: what is made, is made at once by the link."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
