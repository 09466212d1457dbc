"""Check that communication ends: simulate who waits for whom, with the queues of NCCL.

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

from runtime.program.program import Group
from runtime.program.validate.errors import Unsound

Key = object
"""What tells apart groups that ranks have created: its members, or the name of a channel."""


@dataclass(eq=False, slots=True)
class Posted:
    """What a rank posts. Of messages ``sends`` and ``receives`` are left, by peer; of a collective
    all members have to be there. ``what``: in words; ``token``: the same for all that take part."""

    rank: int
    what: object
    token: object
    group: Group = ()
    payload: Any = None
    sends: dict[int, Any] = field(default_factory=dict[int, Any])
    receives: dict[int, Any] = field(default_factory=dict[int, Any])
    meet: Callable[[list[Posted]], None] | None = None
    """Of a collective: what becomes of it, once, with all members by rank."""
    found: Any = None
    """What becomes of it here."""
    is_done: bool = False


Ranks = Generator[Posted, None, None]


def nothing(members: list[Posted]) -> None:
    """What becomes of a collective that brings nothing that is followed."""


class Blame(Exception):
    """What goes wrong between ranks: at whose operation, and why."""

    def __init__(self, operation: Posted, problem: str) -> None:
        super().__init__(problem)
        self.operation, self.problem = operation, problem


@dataclass(eq=False)
class Channel:
    """What the members of a group have posted to it, by rank. ``there``: how many members have a
    collective in front; ``key``: which keeps the object alive that it is known by."""

    key: Key
    lanes: dict[int, deque[Posted]] = field(default_factory=dict[int, "deque[Posted]"])
    there: int = 0

    def front(self, rank: int) -> Posted | None:
        lane = self.lanes.get(rank)
        return lane[0] if lane else None


class Lanes:
    """What all ranks have posted, by group."""

    def __init__(self) -> None:
        self._channels: dict[Key, Channel] = {}
        self._known: dict[int, tuple[Key, Channel]] = {}
        """By object that is a key: groups are long, and mostly the same objects."""
        self._fronts: deque[tuple[Channel, Posted]] = deque()
        self.woken: list[Posted] = []
        """What has ended since it was last asked."""

    def post(self, key: Key, operation: Posted) -> Posted:
        """Add to the end of a rank's lane."""
        channel = self._channel(key)
        lane = channel.lanes.get(operation.rank)
        if lane is None:
            lane = channel.lanes[operation.rank] = deque()
        lane.append(operation)
        if len(lane) == 1:
            self._fronts.append((channel, operation))
            while self._fronts:
                self._reach(*self._fronts.popleft())
        return operation

    def left(self) -> list[Posted]:
        """The front of each lane that is not empty."""
        channels = self._channels.values()
        return [lane[0] for channel in channels for lane in channel.lanes.values() if lane]

    def _channel(self, key: Key) -> Channel:
        known = self._known.get(id(key))
        if known is not None and known[0] is key:
            return known[1]
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(key)
        self._known[id(key)] = key, channel
        return channel

    def _reach(self, channel: Channel, operation: Posted) -> None:
        """Something has come to the front of its lane."""
        if operation.meet is not None:
            channel.there += 1
            if channel.there == len(operation.group):
                self._meet(channel, operation)
            return
        for peer in list(operation.sends):
            other = channel.front(peer)
            if other is not None and operation.rank in other.receives:
                self._hand(channel, operation, other)
        for peer in list(operation.receives):
            other = channel.front(peer)
            if other is not None and operation.rank in other.sends:
                self._hand(channel, other, operation)
        self._end(channel, operation)

    def _meet(self, channel: Channel, one: Posted) -> None:
        members: list[Posted] = []
        group, token = one.group, one.token
        for rank in group:
            other = channel.front(rank)
            assert other is not None, "counted"
            if other.token != token or (other.group is not group and other.group != group):
                raise Blame(other, f"meets another of rank {one.rank}: {one.what}")
            members.append(other)
        channel.there = 0
        assert one.meet is not None, "a collective"
        try:
            one.meet(members)
        except Unsound as error:
            raise Blame(one, str(error)) from error
        for member in members:
            member.is_done = True
            self._leave(channel, member)

    def _hand(self, channel: Channel, sender: Posted, receiver: Posted) -> None:
        if sender.token != receiver.token:
            raise Blame(receiver, f"receives what rank {sender.rank} sends with: {sender.what}")
        receiver.found = receiver.found or {}
        receiver.found[sender.rank] = sender.sends.pop(receiver.rank)
        del receiver.receives[sender.rank]
        if sender is not receiver:
            self._end(channel, receiver)
            self._end(channel, sender)

    def _end(self, channel: Channel, operation: Posted) -> None:
        if not operation.is_done and not operation.sends and not operation.receives:
            operation.is_done = True
            self._leave(channel, operation)

    def _leave(self, channel: Channel, operation: Posted) -> None:
        lane = channel.lanes[operation.rank]
        assert lane[0] is operation, "only the front ends"
        lane.popleft()
        self.woken.append(operation)
        if lane:
            self._fronts.append((channel, lane[0]))


def run(ranks: Mapping[int, Ranks], lanes: Lanes) -> None:
    """Let all ranks come to their ends. Raises Blame where some never do, or leave something that
    nobody takes."""
    waiting: dict[Posted, int] = {}
    # Who was woken last goes on first: a small group stays in the processor's caches for a while.
    ready = list(reversed(list(ranks)))
    while ready:
        rank = ready.pop()
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


def _why(operation: Posted, waits: bool) -> str:
    ends = "never ends" if waits else "is left over"
    if operation.group:
        return f"{ends}, expected all of ranks {', '.join(map(str, operation.group))} in it"
    peers = sorted({*operation.sends, *operation.receives})
    return f"{ends}, expected the other end at rank {', '.join(map(str, peers))}"
