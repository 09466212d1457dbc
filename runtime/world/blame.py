"""Find the rank to blame when communication fails: one that is silent, has left or hangs.

A rank that waits for another one that hangs is its victim, and so is who waits for the victim; gloo
tells each of them of its neighbour only. So every rank has a thread that says twice a second, in
the store where the ranks met, that it lives, in which step it is, and what it does. Where a wait
fails, who meets the failure reads what all have said, and again a little later:

1. who has left says why in its last entry;
2. who has said nothing new is silent: dead, which is seen at once where it is a process of this
   computer, stopped, or stuck without letting its threads run;
3. who does not wait for others keeps them waiting: it reads data, computes, or writes;
4. who waits in an earlier step than others is behind.

The first of these that holds for any rank decides. Who has blamed somebody leaves that behind, and
later ones take it over, since what they see by then are the consequences. One rank alone speaks.
Costs two small messages a second and rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from pcg.errors import one_line
from runtime.world.orphans import ORPHANED
from runtime.world.processes import Process, this_process

if TYPE_CHECKING:
    from runtime.world.store import Store

BEAT = 0.5
"""Seconds from one sign of life to the next."""
SILENT = 4.0
"""Seconds without one after which a rank is silent."""
ENDED = "so that it was killed"
"""What is said of a process that did not answer and was there."""


class Doing(Protocol):
    """What a rank does, for a thread beside it to tell."""

    rank: int
    size: int
    step: int
    doing: str
    waits: bool
    since: float


@dataclass(frozen=True)
class Beat:
    """What a rank has said of itself."""

    number: int
    """Counts its signs of life."""
    step: int
    doing: str
    waits: bool
    """Whether that is to wait for others."""
    seconds: float
    """For how long."""
    host: str
    pid: int
    started: int
    left: str = ""
    """Why it has left, if it has."""
    blames: str = ""
    """What it has found where it lost touch with others."""

    @property
    def process(self) -> Process:
        return Process(self.host, self.pid, self.started)


@dataclass(frozen=True)
class BlamedRank:
    """``text``: which rank is to blame and why, empty where nobody knows; ``speaks``: whether this
    rank is the one to say so."""

    text: str
    speaks: bool


class Pulse:
    """The signs of life of a rank, and those of all others."""

    def __init__(self, store: Store, told: Doing) -> None:
        self._store, self._told = store, told
        self._ended = Event()
        self._process, self._parent = this_process(), os.getppid()
        self._number = 0
        self._say()
        Thread(target=self._live, daemon=True).start()

    def leave(self, why: str = "") -> None:
        """Say for the last time what this rank does, and why it leaves if that is its own fault."""
        self._ended.set()
        with contextlib.suppress(RuntimeError):
            self._say(left=one_line(why) or "it has ended")
            if why and not self._is_orphaned:
                self._store.compare_set("spoken", "", str(self._told.rank))

    def verdict(self) -> BlamedRank:
        """Who is to blame that this rank has lost touch with another one."""
        try:
            text = self._found()
            self._ended.set()
            self._say(blames=text)
            spoken = self._store.compare_set("spoken", "", str(self._told.rank)).decode()
        except (RuntimeError, ValueError):  # the store has gone with its owner
            return BlamedRank("", speaks=True)
        return BlamedRank(text, spoken == str(self._told.rank))

    @property
    def _is_orphaned(self) -> bool:
        """Whether the store is gone with the parent that had it."""
        return ORPHANED.is_set() or os.getppid() != self._parent

    def _live(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has gone
            while not self._ended.wait(BEAT):
                self._say()

    def _say(self, left: str = "", blames: str = "") -> None:
        if self._is_orphaned:
            return  # torch would print what it thinks of a store that is gone
        told, own = self._told, self._process
        self._number += 1
        seconds = time.monotonic() - told.since
        beat = Beat(
            *(self._number, told.step, told.doing, told.waits, seconds),
            *(own.host, own.pid, own.started, left, blames),
        )
        self._store.set(f"beat/{told.rank}", json.dumps(asdict(beat)))

    def _found(self) -> str:
        before, begin = self._beats(), time.monotonic()
        while True:
            time.sleep(BEAT)
            now = self._beats()
            silent = [
                rank
                for rank, beat in now.items()
                if beat is None or ((old := before[rank]) and old.number == beat.number)
            ]
            if dead := [rank for rank, beat in now.items() if beat and not beat.process.is_alive]:
                silent = dead
                break
            waited = time.monotonic() - begin
            if waited > SILENT or (waited > 3 * BEAT and not silent):
                break
        text, frozen = judge(now, silent, self._told.rank)
        ended = _end([beat for rank in frozen if (beat := now[rank]) is not None])
        return f"{text}, {ENDED}" if ended else text

    def _beats(self) -> dict[int, Beat | None]:
        keys = {rank: f"beat/{rank}" for rank in range(self._told.size)}
        return {
            rank: Beat(**json.loads(self._store.get(key))) if self._store.check([key]) else None
            for rank, key in keys.items()
        }


def judge(
    beats: Mapping[int, Beat | None], silent: Sequence[int], own: int
) -> tuple[str, list[int]]:
    """Which ranks are to blame and why, as text, and those that say nothing any more; ``own``: the
    rank that asks. Pure."""
    others = {rank: beat for rank, beat in beats.items() if rank != own}
    known = {rank: beat for rank, beat in others.items() if beat is not None}
    for beat in known.values():
        if beat.blames:
            return beat.blames, []
    if left := {rank: beat for rank, beat in known.items() if beat.left}:
        return _each(f"rank {rank} has left: {beat.left}" for rank, beat in left.items()), []
    quiet = [rank for rank in silent if rank != own]
    if quiet:
        return _each(f"rank {rank} is silent{_last(others[rank])}" for rank in quiet), quiet
    if busy := {rank: beat for rank, beat in known.items() if not beat.waits}:
        return _each(f"rank {rank} hangs{_last(beat)}" for rank, beat in busy.items()), []
    steps = {rank: beat.step for rank, beat in beats.items() if beat is not None}
    if steps and min(steps.values()) < max(steps.values()):
        behind = [rank for rank, step in steps.items() if step == min(steps.values())]
        return _each(f"rank {rank} is behind{_last(beats[rank])}" for rank in behind), []
    return "", []


def _last(beat: Beat | None) -> str:
    if beat is None:
        return ", it never came"
    step = f" in step {beat.step}" if beat.step else " before the first step"
    return f"{step}, {beat.doing} for {beat.seconds:.0f} s"


def _each(reasons: Any) -> str:
    texts = list(reasons)
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(texts[:3]) + more


def _end(frozen: Sequence[Beat]) -> bool:
    """End processes of this computer that cannot end by themselves, such as stopped ones: the run
    is over, and who started it would wait for them. Returns whether there were any."""
    ended = False
    for beat in frozen:
        if beat.process.is_here and beat.process.is_alive:
            with contextlib.suppress(OSError):
                os.kill(beat.pid, signal.SIGKILL)
                ended = True
    return ended
