"""Ranks as threads of a single process: a simulated world without processes or sockets."""

from __future__ import annotations

import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from runtime.world.collectives import World
from runtime.world.network import FlatName, Network

T = TypeVar("T")
MESSAGES = "messages"


@dataclass(frozen=True)
class Members:
    """A group of ranks: its number in the order of creation, and its members."""

    number: int
    ranks: tuple[int, ...]


@dataclass(eq=False)
class Operation:
    """An operation that a rank has posted to a group. ``what``: the collective, or messages."""

    what: str
    rank: int
    own: Any = None
    """The rank's own part of a collective."""
    sends: dict[int, Tensor] = field(default_factory=dict)
    receives: dict[int, Tensor] = field(default_factory=dict)
    """Messages that have not been met yet."""
    heard: list[Any] | None = None
    """The parts of all members of a collective, by rank."""

    @property
    def is_done(self) -> bool:
        if self.what == MESSAGES:
            return not self.sends and not self.receives
        return self.heard is not None


@dataclass
class Post:
    """The operations that ranks have posted, in lanes that are worked off from the front.

    ``ordered``: as with NCCL, a group has one lane on each rank. An operation in it begins when all
    earlier ones have ended, and a message has ended when it is received. Otherwise, much as with
    gloo, the collectives of a group have a lane, and so has each pair of ranks. Nobody waits for a
    message that he sends.

    If all ranks that still work wait for operations that have not ended, these never will. This is
    a deadlock. It is found at once, however slow the computer is.
    """

    working: int
    """The number of ranks that have not ended."""
    ordered: bool = False
    _lanes: dict[Any, deque[Operation]] = field(default_factory=lambda: defaultdict(deque))
    _awaited: set[Operation] = field(default_factory=set)
    """The operations that ranks wait for. Each rank waits for one operation at a time."""
    _changed: Condition = field(default_factory=Condition)

    def meet(self, what: str, rank: int, group: Members, own: Any) -> Operation:
        """Post a rank's part of a collective."""
        made = Operation(what, rank, own)
        with self._changed:
            self._lanes[self._lane(group, rank)].append(made)
            self._go_on(group)
        return made

    def exchange(
        self, rank: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], group: Members
    ) -> list[Operation]:
        """Post messages. The returned operations can be waited for."""
        with self._changed:
            made = [Operation(MESSAGES, rank, sends=dict(sends), receives=dict(receives))]
            if self.ordered:
                self._lanes[self._lane(group, rank)].extend(made)
            else:
                for peer, values in sends.items():
                    sent = Operation(MESSAGES, rank, sends={peer: values.clone()})
                    self._lanes[self._lane(group, rank, rank, peer)].append(sent)
                made = [Operation(MESSAGES, rank, receives={p: v}) for p, v in receives.items()]
                for peer, awaited in zip(receives, made, strict=True):
                    self._lanes[self._lane(group, rank, peer, rank)].append(awaited)
            self._go_on(group)
        return made

    def wait(self, operation: Operation) -> None:
        with self._changed:
            if not operation.is_done:
                self._awaited.add(operation)
                self._tell_deadlock()
            while not operation.is_done:
                if len(self._awaited) >= self.working:
                    raise AssertionError(f"no end of {operation.what}: all ranks wait")
                self._changed.wait()

    def leave(self) -> None:
        """Note that a rank has ended."""
        with self._changed:
            self.working -= 1
            self._tell_deadlock()

    @property
    def left(self) -> int:
        """The operations that have not been met."""
        return sum(map(len, self._lanes.values()))

    def _lane(self, group: Members, rank: int, *ends: int) -> Any:
        """The lane of an operation. ``ends``: sender and receiver of a message."""
        return (group, rank) if self.ordered else (group, rank, *ends)

    def _go_on(self, group: Members) -> None:
        """Work off the lanes as far as possible, after an operation was added."""
        lanes = [key for key in self._lanes if key[0] == group]
        while sum(self._begin(key) for key in lanes):
            pass

    def _begin(self, key: Any) -> bool:
        """Try the operation at the front of a lane. Returns whether that changed anything."""
        if (first := self._front(key)) is None:
            return False
        if first.what != MESSAGES:
            return self._meet(key[0], first)
        changed = False
        for peer, values in list(first.sends.items()):
            there = self._lane(key[0], peer, first.rank, peer)
            other = self._front(there)
            if other is None or first.rank not in other.receives:
                continue
            place = other.receives.pop(first.rank)
            assert (place.shape, place.dtype) == (values.shape, values.dtype)
            place.copy_(values)
            del first.sends[peer]
            self._end(there)
            changed = True
        self._end(key)
        return changed

    def _meet(self, group: Members, first: Operation) -> bool:
        """Let members meet if they have the same collective at the same place in the order of their
        group."""
        fronts = [self._front(self._lane(group, rank)) for rank in group.ranks]
        there = [front for front in fronts if front is not None and front.what != MESSAGES]
        if len(there) < len(fronts):
            return False
        assert {front.what for front in there} == {first.what}
        heard = [front.own for front in there]
        for front in there:
            front.heard = heard
            self._end(self._lane(group, front.rank))
        return True

    def _front(self, key: Any) -> Operation | None:
        lane = self._lanes.get(key)
        return lane[0] if lane else None

    def _end(self, key: Any) -> None:
        """Remove the operation at the front of a lane if it has ended."""
        if (first := self._front(key)) is not None and first.is_done:
            self._lanes[key].popleft()
            self._awaited.discard(first)
            self._changed.notify_all()

    def _tell_deadlock(self) -> None:
        if len(self._awaited) >= self.working:
            self._changed.notify_all()


@dataclass
class Pending:
    """Communication under way. ``end``: the result, once it has been waited for."""

    post: Post
    operation: Operation
    end: Callable[[list[Any]], object] = lambda _: None

    def wait(self) -> None:
        self.post.wait(self.operation)
        self.end(self.operation.heard or [])


class ThreadNetwork(Network):
    """The network of one rank, by the post. Collectives add up in the order of ranks."""

    def __init__(self, rank: int, size: int, post: Post) -> None:
        self._rank, self._post = rank, post
        self.everyone = Members(0, tuple(range(size)))
        self._created = 0

    def group(self, ranks: Sequence[int]) -> Members:
        # All ranks create the same groups in the same order.
        self._created += 1
        return Members(self._created, tuple(ranks))

    def all_reduce(self, values: Tensor, group) -> Pending:
        def end(heard: list[Any]) -> None:
            values.copy_(torch.stack(heard).sum(0))

        return self._meet("all_reduce", values, group, end)

    def collective(self, name: FlatName, result: Tensor, own: Tensor, group) -> Pending:
        def end(heard: list[Tensor]) -> None:
            if name == "all_gather":
                result.copy_(torch.cat(heard))
                return
            place = group.ranks.index(self._rank)
            parts = [values.chunk(len(heard))[place] for values in heard]
            result.copy_(
                torch.stack(parts).sum(0) if name == "reduce_scatter" else torch.cat(parts)
            )

        return self._meet(name, own, group, end)

    def messages(self, sent, received, group) -> list[Pending]:
        made = self._post.exchange(self._rank, sent, received, group or self.everyone)
        return [Pending(self._post, operation) for operation in made]

    def notes(self, value: Any, size: int) -> list[Any]:
        result: list[Any] = []
        self._meet("notes", value, None, result.extend).wait()
        return result

    def _meet(self, what: str, own: Any, group: Members | None, end) -> Pending:
        given = own.clone() if isinstance(own, Tensor) else own
        made = self._post.meet(what, self._rank, group or self.everyone, given)
        return Pending(self._post, made, end)


def on_ranks(size: int, work: Callable[[World], T], *, ordered: bool = False) -> list[T]:
    """The results of every rank's work, by rank. All ranks work at the same time. ``ordered``: as
    with NCCL. Checks that every message is received."""
    post, results, errors = Post(size, ordered), {}, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(World(rank, size, network=ThreadNetwork(rank, size, post)))
        except BaseException:
            errors.append(f"rank {rank}: {traceback.format_exc()}")
        finally:
            post.leave()

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert post.left == 0
    return [results[rank] for rank in range(size)]
