"""Check that all communication ends, by a simulation with the queues of NCCL.

Problem. Ranks post operations to groups and wait for them. Show that no rank waits for ever.

Method. A group executes operations one after the other: an operation that a rank posts to a group
begins when the earlier operations of this rank on this group have ended, which depends on other
ranks. A message ends when it is received. Each rank is a generator, which posts operations and
yields those for which it waits. The order in which a rank posts and waits does not depend on other
ranks. So whether all ranks end does not depend on their speeds, and a single simulation decides.
With gloo, only the two ranks of a pair wait for each other. That is less waiting, so a program that
ends here ends with gloo, too.

Complexity. A few dictionary operations per operation and participant. Exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.program.program import Group
from runtime.program.validate.errors import Unsound

Key = object
"""The identity of a group: its members, or the name of a channel."""


@dataclass(eq=False, slots=True)
class Posted:
    """An operation that a rank posts: messages, or its part of a collective. A collective begins
    when all members have posted it."""

    rank: int
    what: object
    """The operation, for messages."""
    token: object
    """A value that must be equal for all participants."""
    group: Group = ()
    """The members of a collective. Empty for messages."""
    payload: Any = None
    sends: dict[int, Any] = field(default_factory=dict[int, Any])
    """The payloads of messages that have not been sent yet, by peer."""
    receives: dict[int, Any] = field(default_factory=dict[int, Any])
    """The peers whose messages have not arrived yet, as keys."""
    meet: Callable[[list[Posted]], None] | None = None
    """For a collective: called once with the operations of all members, in the order of ranks."""
    found: Any = None
    """The result on this rank, set by ``meet`` or by the arrival of messages."""
    is_done: bool = False


Ranks = Generator[Posted, None, None]


def nothing(members: list[Posted]) -> None:
    """The ``meet`` of a collective whose result is not followed."""


class OrderError(Exception):
    """Operations of several ranks do not fit together. ``operation``: one of them."""

    def __init__(self, operation: Posted, problem: str) -> None:
        super().__init__(problem)
        self.operation, self.problem = operation, problem


@dataclass(eq=False)
class Channel:
    """The operations that the members of a group have posted to it and that have not ended."""

    key: Key
    """Kept alive here, because ``Lanes`` looks keys up by id."""
    lanes: dict[int, deque[Posted]] = field(default_factory=dict[int, "deque[Posted]"])
    """The operations of each rank, in their order."""
    there: int = 0
    """How many members have a collective as their first operation."""

    def front(self, rank: int) -> Posted | None:
        lane = self.lanes.get(rank)
        return lane[0] if lane else None


class Lanes:
    """The operations that all ranks have posted, by group. Methods raise OrderError."""

    def __init__(self) -> None:
        self._channels: dict[Key, Channel] = {}
        self._by_id: dict[int, tuple[Key, Channel]] = {}
        """Channels by the id of their key: groups are long, and many calls share one object."""
        self._fronts: deque[tuple[Channel, Posted]] = deque()
        self.ended: list[Posted] = []
        """The operations that have ended since ``run`` last cleared this list."""

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
        """The first operation of each lane that is not empty."""
        channels = self._channels.values()
        return [lane[0] for channel in channels for lane in channel.lanes.values() if lane]

    def _channel(self, key: Key) -> Channel:
        cached = self._by_id.get(id(key))
        if cached is not None and cached[0] is key:
            return cached[1]
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(key)
        self._by_id[id(key)] = key, channel
        return channel

    def _reach(self, channel: Channel, operation: Posted) -> None:
        """Handle an operation that has become the first of its lane."""
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

    def _meet(self, channel: Channel, last: Posted) -> None:
        """Execute a collective that all members have reached. ``last``: the operation of the last
        one."""
        members: list[Posted] = []
        group, token = last.group, last.token
        for rank in group:
            other = channel.front(rank)
            assert other is not None, "all members have a collective as their first operation"
            if other.token != token or (other.group is not group and other.group != group):
                raise OrderError(other, f"meets another of rank {last.rank}: {last.what}")
            members.append(other)
        channel.there = 0
        assert last.meet is not None, "a collective"
        try:
            last.meet(members)
        except Unsound as error:
            raise OrderError(last, str(error)) from error
        for member in members:
            member.is_done = True
            self._leave(channel, member)

    def _hand(self, channel: Channel, sender: Posted, receiver: Posted) -> None:
        if sender.token != receiver.token:
            problem = f"receives what rank {sender.rank} sends with: {sender.what}"
            raise OrderError(receiver, problem)
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
        assert lane[0] is operation, "only the first operation of a lane can end"
        lane.popleft()
        self.ended.append(operation)
        if lane:
            self._fronts.append((channel, lane[0]))


def run(ranks: Mapping[int, Ranks], lanes: Lanes) -> None:
    """Run all ranks to their ends. Raises OrderError if a rank waits for ever, or posts an
    operation that does not end."""
    waiting: dict[Posted, int] = {}
    # The rank that became ready last goes on first, so that few ranks occupy the processor's cache.
    ready = list(reversed(list(ranks)))
    while ready:
        rank = ready.pop()
        for awaited in ranks[rank]:
            if not awaited.is_done:
                waiting[awaited] = rank
                break
        for operation in lanes.ended:
            if operation in waiting:
                ready.append(waiting.pop(operation))
        lanes.ended.clear()
    stuck = list(waiting) or lanes.left()
    if stuck:
        raise OrderError(stuck[0], _problem(stuck[0], bool(waiting)))


def _problem(operation: Posted, waits: bool) -> str:
    """Describe an operation that does not end. ``waits``: whether its rank waits for it."""
    ends = "never ends" if waits else "is left over"
    if operation.group:
        return f"{ends}, expected all of ranks {', '.join(map(str, operation.group))} in it"
    peers = sorted({*operation.sends, *operation.receives})
    return f"{ends}, expected the other end at rank {', '.join(map(str, peers))}"
