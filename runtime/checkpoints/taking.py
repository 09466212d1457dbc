"""Claim a folder of checkpoints for a run, and decide whether to resume."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path

from runtime.checkpoints import lock
from runtime.checkpoints.checkpoint import run_of
from runtime.checkpoints.folder import numbered, tidy, try_to_write
from runtime.checkpoints.lock import Lock
from runtime.job.job import AgreedError, TryAgain
from runtime.world.collectives import World
from runtime.world.rendezvous import identity


@dataclass(frozen=True)
class TakenFolder:
    """A folder that a run has taken. ``goes_on``: whether the run goes on from a checkpoint there.
    ``lock``: its lock on rank 0, None on other ranks."""

    run: str
    """The identity of the run."""
    goes_on: bool
    lock: Lock | None


def begin(world: World, folder: Path, *, resume: bool) -> TakenFolder:
    """Take a folder of checkpoints for this run. All ranks call together, and rank 0 decides.

    The run goes on from the checkpoints there if ``resume`` is set, or if an earlier start of the
    same run wrote one of them. Half-written checkpoints of killed runs are removed.

    Raises AgreedError if the folder has checkpoints and the run does not go on from them, or if no
    checkpoint can be written. Raises TryAgain if another run writes there, or the disk is full.
    """
    taken: TakenFolder | None = None
    problem: tuple[str, bool] | None = None
    if world.rank == 0:
        try:
            taken = _take(folder, resume)
        except AgreedError as error:
            problem = error.problem, isinstance(error, TryAgain)
    answer = (taken.run, taken.goes_on) if taken else ("", False)
    (run, goes_on), refusal = world.gather((answer, problem))[0]
    if refusal is not None:
        raise (TryAgain if refusal[1] else AgreedError)(str(folder), refusal[0])
    return taken or TakenFolder(run, goes_on, None)


def _take(folder: Path, resume: bool) -> TakenFolder:
    """Take a folder, and remove half-written checkpoints. Raises as ``begin``."""
    run = identity()
    try:
        try_to_write(folder)
        folder_lock = lock.take(folder, run)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"cannot write checkpoints: {reason[:1].lower()}{reason[1:]}"
        kind = TryAgain if error.errno in (ENOSPC, EDQUOT) else AgreedError
        raise kind(str(folder), problem) from error
    try:
        tidy(folder)
        writers = [run_of(path) for path in numbered(folder).values()]
    except OSError as error:
        folder_lock.release()
        problem = f"half-written checkpoints cannot be removed: {error}"
        raise AgreedError(str(folder), problem) from error
    goes_on = resume or run in writers
    if writers and not goes_on:
        folder_lock.release()
        problem = "has checkpoints already, expected --resume or another folder"
        raise AgreedError(str(folder), problem)
    return TakenFolder(run, goes_on, folder_lock)
