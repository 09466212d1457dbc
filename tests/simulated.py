"""Ranks as threads of one process: the world of a run without processes or sockets."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Lock, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from runtime.collectives import World

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds after which a message that has not come is taken for a deadlock."""


@dataclass
class Post:
    """Queues of messages, by sender, receiver and what they are for."""

    _queues: dict[Any, Queue[Any]] = field(default_factory=lambda: defaultdict(Queue))
    _lock: Lock = field(default_factory=Lock)

    def send(self, key: tuple[Any, ...], what: Any) -> None:
        self._queue(key).put(what)

    def receive(self, key: tuple[Any, ...]) -> Any:
        try:
            return self._queue(key).get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"no message {key}") from None

    @property
    def left(self) -> int:
        """Messages that nobody has asked for."""
        return sum(queue.qsize() for queue in self._queues.values())

    def _queue(self, key: tuple[Any, ...]) -> Queue[Any]:
        with self._lock:
            return self._queues[key]


@dataclass
class ThreadWorld(World):
    """One rank; what it communicates goes through the post, and collectives add up in the order
    of ranks."""

    post: Post = field(default_factory=Post)

    def prepare(self, groups, *, both_ways=False) -> None:
        """Groups need nothing here."""

    def start_all_reduce(self, values: Tensor, group) -> Callable[[], None]:
        self._tell(group, values.clone())

        def wait() -> None:
            values.copy_(torch.stack(self._hear(group)).sum(0))

        return wait

    def all_gather(self, values: Tensor, group) -> Tensor:
        self._tell(group, values.clone())
        return torch.cat(self._hear(group))

    def reduce_scatter(self, values: Tensor, group) -> Tensor:
        self._tell(group, values.clone())
        parts = [found.chunk(len(group))[group.index(self.rank)] for found in self._hear(group)]
        return torch.stack(parts).sum(0)

    def all_to_all(self, values: Tensor, group) -> Tensor:
        self._tell(group, values.clone())
        return torch.cat([v.chunk(len(group))[group.index(self.rank)] for v in self._hear(group)])

    def exchange(self, outgoing, incoming, dtype, channel="forward") -> dict[int, Tensor]:
        for peer, values in outgoing.items():
            self.post.send((self.rank, peer, channel), values.clone())
        received = {peer: self.post.receive((peer, self.rank, channel)) for peer in incoming}
        for peer, values in received.items():
            assert (len(values), values.dtype) == (incoming[peer], dtype)
        return received

    def total(self, value: float) -> float:
        everyone = tuple(range(self.size))
        self._tell(everyone, torch.tensor(value, dtype=torch.float64))
        return torch.stack(self._hear(everyone)).sum().item()

    def _tell(self, group, values: Tensor) -> None:
        for peer in group:
            self.post.send((self.rank, peer, group), values)

    def _hear(self, group) -> list[Tensor]:
        return [self.post.receive((peer, self.rank, group)) for peer in group]


def on_ranks(size: int, work: Callable[[ThreadWorld], T]) -> list[T]:
    """What every rank's work returns, by rank; all work at the same time. Demands that every
    message is received."""
    post, found, errors = Post(), {}, []

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadWorld(rank, size, post=post))
        except BaseException:
            errors.append(f"rank {rank}: {traceback.format_exc()}")

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert post.left == 0
    return [found[rank] for rank in range(size)]
