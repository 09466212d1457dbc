"""The order of communication, as NCCL has it.

A group of ranks does one thing after the other: what a rank posts to it begins when all that this
rank posted to it before has ended, which takes its peers too. A message has ended when it is
received. Ranks do nothing but post and wait, in an order that is theirs alone, so whether all end
does not depend on who is faster: one run tells. With gloo, where the pairs of ranks of a group wait
for each other only, fewer wait, so that what ends here ends there.

Each rank is a generator that posts and yields what it waits for. Complexity: a few dictionary
operations for everything that is posted and everybody that takes part in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.program import Group
from runtime.validate.errors import Unsound

Key = object
"""What tells apart groups that ranks have created: its members, or the name of a channel."""


@dataclass(eq=False)
class Operation:
    """What a rank posts. Of messages ``sends`` and ``receives`` are left, by peer; of a collective
    all members have to be there. ``what``: in words; ``token``: the same for all that take part."""

    rank: int
    what: object
    token: object
    group: Group = ()
    payload: Any = None
    sends: dict[int, Any] = field(default_factory=dict[int, Any])
    receives: dict[int, Any] = field(default_factory=dict[int, Any])
    meet: Callable[[list[Operation]], None] | None = None
    """Of a collective: what becomes of it, once, with all members by rank."""
    found: Any = None
    """What becomes of it here."""
    is_done: bool = False


Ranks = Generator[Operation, None, None]


class Blame(Exception):
    """What goes wrong between ranks: at whose operation, and why."""

    def __init__(self, operation: Operation, problem: str) -> None:
        super().__init__(problem)
        self.operation, self.problem = operation, problem


class Lanes:
    """What all ranks have posted, by group."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[Key, int], deque[Operation]] = {}
        self._there: dict[Key, int] = {}
        """How many members have a collective in front."""
        self._fronts: deque[tuple[Key, Operation]] = deque()
        self.woken: list[Operation] = []
        """What has ended since it was last asked."""

    def post(self, key: Key, operation: Operation) -> Operation:
        """Add to the end of a rank's lane."""
        lane = self._lanes.setdefault((key, operation.rank), deque())
        lane.append(operation)
        if len(lane) == 1:
            self._fronts.append((key, operation))
            while self._fronts:
                self._reach(*self._fronts.popleft())
        return operation

    def left(self) -> list[Operation]:
        """The front of each lane that is not empty."""
        return [lane[0] for lane in self._lanes.values() if lane]

    def _reach(self, key: Key, operation: Operation) -> None:
        """Something has come to the front of its lane."""
        if operation.meet is not None:
            self._there[key] = there = self._there.get(key, 0) + 1
            if there == len(operation.group):
                self._meet(key, operation)
            return
        for peer in list(operation.sends):
            other = self._front(key, peer)
            if other is not None and operation.rank in other.receives:
                self._hand(key, operation, other)
        for peer in list(operation.receives):
            other = self._front(key, peer)
            if other is not None and operation.rank in other.sends:
                self._hand(key, other, operation)
        self._end(key, operation)

    def _front(self, key: Key, rank: int) -> Operation | None:
        lane = self._lanes.get((key, rank))
        return lane[0] if lane else None

    def _meet(self, key: Key, one: Operation) -> None:
        members: list[Operation] = []
        for rank in one.group:
            other = self._front(key, rank)
            assert other is not None, "counted"
            if other.token != one.token or other.group != one.group:
                raise Blame(other, f"meets another of rank {one.rank}: {one.what}")
            members.append(other)
        self._there[key] = 0
        assert one.meet is not None, "a collective"
        try:
            one.meet(members)
        except Unsound as error:
            raise Blame(one, str(error)) from error
        for member in members:
            member.is_done = True
            self._leave(key, member)

    def _hand(self, key: Key, sender: Operation, receiver: Operation) -> None:
        if sender.token != receiver.token:
            raise Blame(receiver, f"receives what rank {sender.rank} sends with: {sender.what}")
        receiver.found = receiver.found or {}
        receiver.found[sender.rank] = sender.sends.pop(receiver.rank)
        del receiver.receives[sender.rank]
        if sender is not receiver:
            self._end(key, receiver)
            self._end(key, sender)

    def _end(self, key: Key, operation: Operation) -> None:
        if not operation.is_done and not operation.sends and not operation.receives:
            operation.is_done = True
            self._leave(key, operation)

    def _leave(self, key: Key, operation: Operation) -> None:
        lane = self._lanes[key, operation.rank]
        assert lane[0] is operation, "only the front ends"
        lane.popleft()
        self.woken.append(operation)
        if lane:
            self._fronts.append((key, lane[0]))


def run(ranks: Mapping[int, Ranks], lanes: Lanes) -> None:
    """Let all ranks come to their ends. Raises Blame where some never do, or leave something that
    nobody takes."""
    waiting: dict[Operation, int] = {}
    ready = deque(ranks)
    while ready:
        rank = ready.popleft()
        for awaited in ranks[rank]:
            if not awaited.is_done:
                waiting[awaited] = rank
                break
        for woken in lanes.woken:
            if woken in waiting:
                ready.append(waiting.pop(woken))
        lanes.woken.clear()
    stuck = list(waiting) or lanes.left()
    if stuck:
        raise Blame(stuck[0], _why(stuck[0], bool(waiting)))


def _why(operation: Operation, waits: bool) -> str:
    ends = "never ends" if waits else "is left over"
    if operation.group:
        return f"{ends}, expected all of ranks {', '.join(map(str, operation.group))} in it"
    peers = sorted({*operation.sends, *operation.receives})
    return f"{ends}, expected the other end at rank {', '.join(map(str, peers))}"
