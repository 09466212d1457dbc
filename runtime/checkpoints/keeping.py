"""Write checkpoints in the background while training goes on.

Each rank copies its shards, and a thread of it writes the copy while training goes on. The threads
of all ranks communicate in a process group of their own, and commit the checkpoint together or not
at all. The next checkpoint and the end of the run wait until the one before is written. So there is
at most one copy, and a failure to write is known at the next checkpoint or at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from runtime.checkpoints import checkpoint
from runtime.checkpoints.checkpoint import Checkpoint, CheckpointError, Manifest
from runtime.checkpoints.folder import remove_others
from runtime.checkpoints.lock import Lock
from runtime.checkpoints.shards import Shard
from runtime.checkpoints.taking import begin
from runtime.job.job import Checkpoints
from runtime.world.collectives import World

PATIENCE = 60.0
"""How many seconds a failing run waits for the checkpoint under way."""


@dataclass
class _Writing:
    """A checkpoint that a thread is writing. Its path or error is set when the thread ends."""

    updates: int
    thread: Thread
    path: Path | None = None
    error: BaseException | None = None


class Keeper:
    """Writes the checkpoints of a run. All ranks call its methods together, except ``close``."""

    def __init__(self, world: World, options: Checkpoints, warn: Callable[[str], None]) -> None:
        self._world, self._options, self._warn = world, options, warn
        self.folder = Path(options.folder)
        self.run = ""
        """The identity of the run. Empty before ``begin``."""
        self.newest: tuple[int, Path] | None = None
        """The updates and the path of the last checkpoint that was read or written."""
        self._passed_over: tuple[int, ...] = ()
        """The steps of damaged checkpoints, until a new checkpoint is written."""
        self._lock: Lock | None = None
        self._apart: World | None = None
        self._writing: _Writing | None = None

    def begin(self) -> Checkpoint | None:
        """Take the folder. Return the checkpoint from which the run goes on, None if it starts
        anew.

        Raises AgreedError as ``taking.begin`` and ``checkpoint.find`` do.
        """
        taken = begin(self._world, self.folder, resume=self._options.resume)
        self.run, self._lock = taken.run, taken.lock
        if not taken.goes_on:
            return None
        newest = checkpoint.find(self._world, self.folder, self._warn)
        if newest is None:
            self._warn(f"{self.folder}: no checkpoint yet, starting at step 1")
            return None
        self.newest, self._passed_over = (newest.manifest.updates, newest.path), newest.passed_over
        return newest

    @property
    def last_good(self) -> str:
        """The newest checkpoint that is known to be complete, in words."""
        return f"last good checkpoint {self.newest[1]}" if self.newest else "no checkpoint before"

    def start(self, shards: Sequence[Shard], manifest: Manifest) -> None:
        """Begin to write a checkpoint, after waiting for the one before.

        Raises CheckpointError if the one before could not be written; the new one is begun even
        then.
        """
        failure: CheckpointError | None = None
        try:
            self.settle()
        except CheckpointError as error:
            failure = error
        self._start(_copies(shards), manifest)
        if failure is not None:
            raise failure

    def save(self, shards: Sequence[Shard], manifest: Manifest) -> Path:
        """Write the last checkpoint of a run and wait for it. Return its path.

        If it cannot be written, all older checkpoints but the newest good one are removed, and it
        is written again. Raises CheckpointError, which says what is lost, if that fails as well.
        """
        try:
            self.settle()
        except CheckpointError as error:
            self._warn(f"warning: no checkpoint: {error}")
        copies = _copies(shards)
        self._start(copies, manifest)
        try:
            return self._finish()
        except CheckpointError as error:
            self._warn(f"warning: {error}; trying again without older checkpoints")
        if self._world.rank == 0 and self.newest is not None:
            remove_others(self.folder, self.newest[1])
        self._start(copies, manifest)
        try:
            return self._finish()
        except CheckpointError as error:
            loss = f"what was trained up to step {manifest.updates} is lost; {self.last_good}"
            raise CheckpointError(error.where, f"{error.problem}; {loss}") from error

    def settle(self) -> None:
        """Wait for the checkpoint under way, if there is one. Raises CheckpointError on all ranks
        if it could not be written."""
        if self._writing is not None:
            self._finish()

    def close(self) -> None:
        """Wait up to ``PATIENCE`` seconds for the checkpoint under way, and release the folder. A
        failure to write it is ignored."""
        if self._writing is not None:
            self._writing.thread.join(PATIENCE)
        if self._lock is not None:
            self._lock.release()

    def _finish(self) -> Path:
        """Wait for the checkpoint under way and return its path. Raises its error."""
        writing, self._writing = self._writing, None
        assert writing is not None, "a checkpoint is under way"
        self._join(writing.thread)
        if writing.error is not None:
            raise writing.error
        assert writing.path is not None, "a checkpoint without an error has been written"
        self.newest, self._passed_over = (writing.updates, writing.path), ()
        return writing.path

    def _join(self, thread: Thread) -> None:
        """Wait for the thread. Meanwhile the heartbeat of this rank shows what the thread does."""
        apart = self._apart
        assert apart is not None, "the thread communicates through it"
        with self._world.busy("writing a checkpoint"):
            while thread.is_alive():
                thread.join(0.2)
                self._world.waits = apart.waits

    def _start(self, copies: Sequence[Shard], manifest: Manifest) -> None:
        if self._apart is None:
            self._apart = self._world.apart()
        apart = self._apart
        apart.step = self._world.step
        arguments = self.folder, copies, manifest, self._options.keep, self._passed_over

        def write() -> None:
            try:
                writing.path = checkpoint.save(apart, *arguments)
            except BaseException as error:
                writing.error = error

        # A daemon: if it waits for a rank that never answers, the process can end nevertheless.
        writing = _Writing(manifest.updates, Thread(target=write, daemon=True))
        self._writing = writing
        writing.thread.start()


def _copies(shards: Sequence[Shard]) -> list[Shard]:
    """The shards that this rank writes, copied to the CPU. Training does not change the copies."""
    return [
        replace(shard, tensor=shard.tensor.detach().to("cpu", copy=True))
        for shard in shards
        if shard.writes
    ]
