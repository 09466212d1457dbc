"""Find the rank to blame when communication fails: one that is silent, has left or hangs.

Problem. If a rank hangs, the ranks that wait for it fail, and then the ranks that wait for those.
gloo reports only the neighbour of each, so most ranks would name a victim instead of the cause.

Method. A thread of every rank writes a heartbeat twice a second to the store where the ranks met:
its step, what it is doing, and whether that is waiting for other ranks. A rank whose communication
fails reads the heartbeats of all ranks twice, a little apart. It blames the ranks to which the
first of these rules applies:

1. A rank that has left gives the reason in its last heartbeat.
2. A rank without a new heartbeat is silent. It is dead, stopped, or stuck in a call that lets no
   thread run. A dead process of the same computer is noticed at once.
3. A rank that does not wait keeps others waiting: it reads data, computes or writes.
4. A rank that waits in an earlier step than others is behind.

A rank that has blamed another one writes this verdict into its last heartbeat. Ranks that fail
later repeat the verdict, because what they observe by then are consequences. A single rank reports
the error.

Complexity. Two small messages a second per rank. The rules are a heuristic: they name the likely
cause and prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol

from pcg.errors import one_line
from runtime.world.orphans import ORPHANED
from runtime.world.processes import Process, this_process

if TYPE_CHECKING:
    from runtime.world.store import Store

BEAT = 0.5
"""Seconds from one heartbeat to the next."""
SILENT = 4.0
"""Seconds without a heartbeat after which a rank counts as silent."""
ENDED = "so that it was killed"
"""The end of the message about a process that was alive, gave no heartbeat, and was killed."""


class RankActivity(Protocol):
    """What a rank is doing. Its heartbeat thread reads this."""

    rank: int
    size: int
    step: int
    doing: str
    waits: bool
    since: float


@dataclass(frozen=True)
class Beat:
    """A heartbeat: what a rank says of itself."""

    number: int
    """The number of this heartbeat, from 1."""
    step: int
    doing: str
    waits: bool
    """Whether the rank waits for others."""
    seconds: float
    """For how many seconds it has been doing this."""
    host: str
    pid: int
    started: int
    left: str = ""
    """Why the rank has left. Empty if it has not."""
    blames: str = ""
    """The verdict of a rank whose communication has failed. Empty before."""

    @property
    def process(self) -> Process:
        return Process(self.host, self.pid, self.started)


@dataclass(frozen=True)
class BlamedRank:
    """``text``: which rank is to blame and why. Empty if no rule applies. ``speaks``: whether this
    rank is the one that reports it."""

    text: str
    speaks: bool


class Pulse:
    """Writes the heartbeats of a rank, and reads those of all ranks."""

    def __init__(self, store: Store, activity: RankActivity) -> None:
        self._store, self._activity = store, activity
        self._ended = Event()
        self._process, self._parent = this_process(), os.getppid()
        self._number = 0
        self._write()
        Thread(target=self._write_regularly, daemon=True).start()

    def leave(self, why: str = "") -> None:
        """Write the last heartbeat. ``why``: the error with which this rank leaves, if any."""
        self._ended.set()
        with contextlib.suppress(RuntimeError):
            self._write(left=one_line(why) or "it has ended")
            if why and not self._is_orphaned:
                self._store.compare_set("spoken", "", str(self._activity.rank))

    def verdict(self) -> BlamedRank:
        """Find the rank that caused a failed communication of this rank. Takes up to ``SILENT``
        seconds and a little more."""
        try:
            text = self._blamed()
            self._ended.set()
            self._write(blames=text)
            speaker = self._store.compare_set("spoken", "", str(self._activity.rank)).decode()
        except (RuntimeError, ValueError):  # the process that kept the store has ended
            return BlamedRank("", speaks=True)
        return BlamedRank(text, speaker == str(self._activity.rank))

    @property
    def _is_orphaned(self) -> bool:
        """Whether the parent, which keeps the store, has ended."""
        return ORPHANED.is_set() or os.getppid() != self._parent

    def _write_regularly(self) -> None:
        with contextlib.suppress(RuntimeError):  # the process that kept the store has ended
            while not self._ended.wait(BEAT):
                self._write()

    def _write(self, left: str = "", blames: str = "") -> None:
        if self._is_orphaned:
            return  # torch would print an error of its own about the missing store
        activity, process = self._activity, self._process
        self._number += 1
        seconds = time.monotonic() - activity.since
        beat = Beat(
            *(self._number, activity.step, activity.doing, activity.waits, seconds),
            *(process.host, process.pid, process.started, left, blames),
        )
        self._store.set(f"beat/{activity.rank}", json.dumps(asdict(beat)))

    def _blamed(self) -> str:
        """Read all heartbeats until it is clear which ranks are silent. Return the verdict."""
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
        text, frozen = judge(now, silent, self._activity.rank)
        any_killed = _kill([beat for rank in frozen if (beat := now[rank]) is not None])
        return f"{text}, {ENDED}" if any_killed else text

    def _beats(self) -> dict[int, Beat | None]:
        keys = {rank: f"beat/{rank}" for rank in range(self._activity.size)}
        return {
            rank: Beat(**json.loads(self._store.get(key))) if self._store.check([key]) else None
            for rank, key in keys.items()
        }


def judge(
    beats: Mapping[int, Beat | None], silent: Sequence[int], own_rank: int
) -> tuple[str, list[int]]:
    """Apply the rules of this module to heartbeats. Return which ranks are to blame and why, as
    text, and the ranks among them that are silent. The text is empty if no rule applies.

    ``silent``: the ranks without a new heartbeat. ``own_rank``: the rank that asks, which never
    blames itself by the rules 1 to 3. A pure function.
    """
    others = {rank: beat for rank, beat in beats.items() if rank != own_rank}
    known = {rank: beat for rank, beat in others.items() if beat is not None}
    for beat in known.values():
        if beat.blames:
            return beat.blames, []
    if left := {rank: beat for rank, beat in known.items() if beat.left}:
        return _each(f"rank {rank} has left: {beat.left}" for rank, beat in left.items()), []
    silent_others = [rank for rank in silent if rank != own_rank]
    if silent_others:
        text = _each(f"rank {rank} is silent{_last(others[rank])}" for rank in silent_others)
        return text, silent_others
    if busy := {rank: beat for rank, beat in known.items() if not beat.waits}:
        return _each(f"rank {rank} hangs{_last(beat)}" for rank, beat in busy.items()), []
    steps = {rank: beat.step for rank, beat in beats.items() if beat is not None}
    if steps and min(steps.values()) < max(steps.values()):
        behind = [rank for rank, step in steps.items() if step == min(steps.values())]
        return _each(f"rank {rank} is behind{_last(beats[rank])}" for rank in behind), []
    return "", []


def _last(beat: Beat | None) -> str:
    """The step, activity and duration of a rank's last heartbeat."""
    if beat is None:
        return ", it never came"
    step = f" in step {beat.step}" if beat.step else " before the first step"
    return f"{step}, {beat.doing} for {beat.seconds:.0f} s"


def _each(reasons: Iterable[str]) -> str:
    """The first three texts, and how many more there are."""
    texts = list(reasons)
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(texts[:3]) + more


def _kill(frozen: Sequence[Beat]) -> bool:
    """Kill processes of this computer that cannot end by themselves, such as stopped ones. The run
    is over, and the process that started it would wait for them. Return whether any was killed."""
    any_killed = False
    for beat in frozen:
        if beat.process.is_here and beat.process.is_alive:
            with contextlib.suppress(OSError):
                os.kill(beat.pid, signal.SIGKILL)
                any_killed = True
    return any_killed
