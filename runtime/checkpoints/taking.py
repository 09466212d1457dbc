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
    """A folder that a run has taken. ``goes_on``: whether from the checkpoints there; ``lock``: on
    rank 0."""

    run: str
    """The identity of the run."""
    goes_on: bool
    lock: Lock | None


def begin(world: World, folder: Path, *, resume: bool) -> TakenFolder:
    """Take a folder for this run, which goes on from the checkpoints there because it is asked to
    (``resume``), or because an earlier start of it wrote them. What killed runs left half written
    goes. All ranks call together, and rank 0 decides.

    Raises AgreedError where others' checkpoints are there, or none can be written, and FolderTaken
    where another run writes there.
    """
    begun: TakenFolder | None = None
    problem: tuple[str, bool] | None = None
    if world.rank == 0:
        try:
            begun = _taken(folder, resume)
        except AgreedError as error:
            problem = error.problem, isinstance(error, TryAgain)
    shared = (begun.run, begun.goes_on) if begun else ("", False)
    (run, goes_on), refused = world.gather((shared, problem))[0]
    if refused is not None:
        raise (TryAgain if refused[1] else AgreedError)(str(folder), refused[0])
    return begun or TakenFolder(run, goes_on, None)


def _taken(folder: Path, resume: bool) -> TakenFolder:
    """A folder taken, and cleared of what other runs left half written."""
    run = identity()
    try:
        try_to_write(folder)
        held = lock.take(folder, run)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"cannot write checkpoints: {reason[:1].lower()}{reason[1:]}"
        kind = TryAgain if error.errno in (ENOSPC, EDQUOT) else AgreedError
        raise kind(str(folder), problem) from error
    try:
        tidy(folder)
        known = [run_of(path) for path in numbered(folder).values()]
    except OSError as error:
        held.release()
        raise AgreedError(str(folder), f"cannot be cleared of what is left: {error}") from error
    goes_on = resume or run in known
    if known and not goes_on:
        held.release()
        problem = "has checkpoints already, expected --resume or another folder"
        raise AgreedError(str(folder), problem)
    return TakenFolder(run, goes_on, held)
