"""Ranks as threads of one process: the world of a run without processes or sockets."""

from __future__ import annotations

import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from runtime.collectives import World

T = TypeVar("T")


@dataclass
class Post:
    """Queues of messages, by sender, receiver and what they are for.

    Where all ranks that still work wait for messages, none of which is there, none will ever come:
    that is a deadlock, found at once, however slow the computer is.
    """

    working: int
    """Ranks that have not ended."""
    _queues: dict[Any, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    _awaited: set[Any] = field(default_factory=set)
    """What ranks wait for; each waits for one message at a time."""
    _changed: Condition = field(default_factory=Condition)

    def send(self, key: tuple[Any, ...], what: Any) -> None:
        with self._changed:
            self._queues[key].append(what)
            if key in self._awaited:
                self._awaited.remove(key)
                self._changed.notify_all()

    def receive(self, key: tuple[Any, ...]) -> Any:
        with self._changed:
            queue = self._queues[key]
            if not queue:
                self._awaited.add(key)
                self._tell_deadlock()
            while not queue:
                if len(self._awaited) >= self.working:
                    raise AssertionError(f"no message {key}: all ranks wait")
                self._changed.wait()
            return queue.popleft()

    def leave(self) -> None:
        """A rank has ended."""
        with self._changed:
            self.working -= 1
            self._tell_deadlock()

    @property
    def left(self) -> int:
        """Messages that nobody has asked for."""
        return sum(map(len, self._queues.values()))

    def _tell_deadlock(self) -> None:
        if len(self._awaited) >= self.working:
            self._changed.notify_all()


@dataclass
class ThreadWorld(World):
    """One rank; what it communicates goes through the post, and collectives add up in the order
    of ranks."""

    post: Post = field(default_factory=lambda: Post(1))
    _counts: dict[Any, int] = field(default_factory=dict)

    def prepare(self, groups, *, both_ways=False) -> None:
        """Groups need nothing here."""

    def start_all_reduce(self, values: Tensor, group) -> Callable[[], None]:
        key = self._tell("all_reduce", group, values)

        def wait() -> None:
            values.copy_(torch.stack(self._hear(key)).sum(0))

        return wait

    def all_gather(self, values: Tensor, group) -> Tensor:
        return torch.cat(self._hear(self._tell("all_gather", group, values)))

    def reduce_scatter(self, values: Tensor, group) -> Tensor:
        heard = self._hear(self._tell("reduce_scatter", group, values))
        return torch.stack([v.chunk(len(group))[group.index(self.rank)] for v in heard]).sum(0)

    def all_to_all(self, values: Tensor, group) -> Tensor:
        heard = self._hear(self._tell("all_to_all", group, values))
        return torch.cat([v.chunk(len(group))[group.index(self.rank)] for v in heard])

    def exchange(self, outgoing, incoming, dtype, channel="forward") -> dict[int, Tensor]:
        for peer, values in outgoing.items():
            self.post.send((self.rank, peer, channel), values.clone())
        received = {peer: self.post.receive((peer, self.rank, channel)) for peer in incoming}
        for peer, values in received.items():
            assert (len(values), values.dtype) == (incoming[peer], dtype)
        return received

    def start_total(self, value: Tensor | float) -> Callable[[], float]:
        number = torch.as_tensor(value, dtype=torch.float64)
        key = self._tell("total", tuple(range(self.size)), number)
        return lambda: torch.stack(self._hear(key)).sum().item()

    def gather(self, value: Any) -> list[Any]:
        everyone = range(self.size)
        for peer in everyone:
            self.post.send((self.rank, peer, "note"), value)
        return [self.post.receive((peer, self.rank, "note")) for peer in everyone]

    def _tell(self, what: str, group, values: Tensor) -> tuple[Any, ...]:
        """Give all members a copy. Members meet at what they do together in the same place of the
        order of all that the group does, as with gloo and NCCL."""
        number = self._counts[group] = self._counts.get(group, 0) + 1
        for peer in group:
            self.post.send((self.rank, peer, group, number, what), values.clone())
        return group, number, what

    def _hear(self, key: tuple[Any, ...]) -> list[Tensor]:
        return [self.post.receive((peer, self.rank, *key)) for peer in key[0]]


def on_ranks(size: int, work: Callable[[ThreadWorld], T]) -> list[T]:
    """What every rank's work returns, by rank; all work at the same time. Demands that every
    message is received."""
    post, found, errors = Post(size), {}, []

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadWorld(rank, size, post=post))
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
    return [found[rank] for rank in range(size)]
