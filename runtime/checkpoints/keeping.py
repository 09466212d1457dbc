"""Write checkpoints in the background while training goes on.

What a checkpoint holds is copied, and a thread of each rank writes the copy while training goes on;
the threads talk in a group of their own and commit together or not at all. The next checkpoint, and
the end of the run, wait for the one before. So at most one copy is there, and what a failure of the
disk costs is known one checkpoint later, or at the end.
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
"""Seconds that a run which fails waits for the checkpoint under way."""


@dataclass
class _Writing:
    """A checkpoint under way, and what became of it."""

    updates: int
    thread: Thread
    path: Path | None = None
    error: BaseException | None = None


class Keeper:
    """All ranks call together, but for ``close``."""

    def __init__(self, world: World, kept: Checkpoints, tell: Callable[[str], None]) -> None:
        self._world, self._kept, self._tell = world, kept, tell
        self.folder = Path(kept.folder)
        self.run = ""
        """What tells the run from others, where it keeps checkpoints."""
        self.newest: tuple[int, Path] | None = None
        """The last checkpoint that was read or written, and its updates."""
        self._passed_over: tuple[int, ...] = ()
        """The steps of damaged checkpoints, until there is one to take their place."""
        self._lock: Lock | None = None
        self._apart: World | None = None
        self._writing: _Writing | None = None

    def begin(self) -> Checkpoint | None:
        """Take the folder; the checkpoint to go on from, if that is wanted and there is one.

        Raises AgreedError as ``taking.begin`` and ``checkpoint.find`` do."""
        begun = begin(self._world, self.folder, resume=self._kept.resume)
        self.run, self._lock = begun.run, begun.lock
        if not begun.goes_on:
            return None
        newest = checkpoint.find(self._world, self.folder, self._tell)
        if newest is None:
            self._tell(f"{self.folder}: no checkpoint yet, starting at step 1")
            return None
        self.newest, self._passed_over = (newest.manifest.updates, newest.path), newest.passed_over
        return newest

    @property
    def last_good(self) -> str:
        """The newest checkpoint that is known to be written, in words."""
        return f"last good checkpoint {self.newest[1]}" if self.newest else "no checkpoint before"

    def start(self, shards: Sequence[Shard], manifest: Manifest) -> None:
        """Begin to write a checkpoint, once the one before is written.

        Raises CheckpointError as ``settle`` does, of the one before; this one is begun all the
        same."""
        failed: CheckpointError | None = None
        try:
            self.settle()
        except CheckpointError as error:
            failed = error
        self._start(_copies(shards), manifest)
        if failed is not None:
            raise failed

    def save(self, shards: Sequence[Shard], manifest: Manifest) -> Path:
        """Write the last checkpoint of a run and wait for it. Where it cannot be written, older
        ones but the last good one make room, and it is tried again.

        Raises CheckpointError where that fails too, saying what is lost."""
        try:
            self.settle()
        except CheckpointError as error:
            self._tell(f"warning: no checkpoint: {error}")
        held = _copies(shards)
        self._start(held, manifest)
        try:
            return self._settled()
        except CheckpointError as error:
            self._tell(f"warning: {error}; trying again without older checkpoints")
        if self._world.rank == 0 and self.newest is not None:
            remove_others(self.folder, self.newest[1])
        self._start(held, manifest)
        try:
            return self._settled()
        except CheckpointError as error:
            lost = f"what was trained up to step {manifest.updates} is lost; {self.last_good}"
            raise CheckpointError(error.where, f"{error.problem}; {lost}") from error

    def settle(self) -> None:
        """Wait for the checkpoint under way, if there is one. Raises CheckpointError on all ranks
        where it could not be written."""
        if self._writing is not None:
            self._settled()

    def close(self) -> None:
        """Let the checkpoint under way come to its end, whatever that is, and give the folder
        back."""
        if self._writing is not None:
            self._writing.thread.join(PATIENCE)
        if self._lock is not None:
            self._lock.release()

    def _settled(self) -> Path:
        writing, self._writing = self._writing, None
        assert writing is not None, "a checkpoint is under way"
        self._join(writing.thread)
        if writing.error is not None:
            raise writing.error
        assert writing.path is not None, "it has been written"
        self.newest, self._passed_over = (writing.updates, writing.path), ()
        return writing.path

    def _join(self, thread: Thread) -> None:
        """Wait for the thread; what it does, this rank does."""
        apart = self._apart
        assert apart is not None, "the thread talks in it"
        with self._world.busy("writing a checkpoint"):
            while thread.is_alive():
                thread.join(0.2)
                self._world.waits = apart.waits

    def _start(self, held: Sequence[Shard], manifest: Manifest) -> None:
        if self._apart is None:
            self._apart = self._world.apart()
        apart = self._apart
        apart.step = self._world.step
        given = self.folder, held, manifest, self._kept.keep, self._passed_over

        def write() -> None:
            try:
                writing.path = checkpoint.save(apart, *given)
            except BaseException as error:
                writing.error = error

        # A thread that waits for a rank that never answers must not keep the process from its end.
        writing = _Writing(manifest.updates, Thread(target=write, daemon=True))
        self._writing = writing
        writing.thread.start()


def _copies(shards: Sequence[Shard]) -> list[Shard]:
    """What this rank writes, with tensors of their own on the CPU, which training leaves alone."""
    return [
        replace(shard, tensor=shard.tensor.detach().to("cpu", copy=True))
        for shard in shards
        if shard.writes
    ]
