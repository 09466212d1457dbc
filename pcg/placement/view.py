"""Machine views: the devices that run an operator's tasks (Unity, OSDI 2022, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod


@dataclass(frozen=True)
class MachineView:
    """An array of devices: task (t0, t1, ...) runs on device ``start + sum ti * strides[i]``."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def packed(
        start: int, shape: tuple[int, ...], order: tuple[int, ...] | None = None
    ) -> MachineView:
        """Return a view of consecutive devices. ``order`` lists axes from slowest to fastest."""
        strides = [0] * len(shape)
        step = 1
        for axis in reversed(order if order is not None else tuple(range(len(shape)))):
            strides[axis] = step
            step *= shape[axis]
        return MachineView(start, shape, tuple(strides))

    def device(self, task: tuple[int, ...]) -> int:
        return self.start + sum(t * s for t, s in zip(task, self.strides, strict=True))

    def tasks(self) -> Iterator[tuple[int, ...]]:
        """Yield all tasks, the last axis fastest."""
        return product(*(range(n) for n in self.shape))

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices of all tasks, in the order of ``tasks``."""
        devices = [self.start]
        for count, stride in zip(self.shape, self.strides, strict=True):
            devices = [device + i * stride for device in devices for i in range(count)]
        return tuple(devices)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_injective(self) -> bool:
        """Whether no two tasks share a device."""
        return len(set(self.devices)) == self.size

    def __str__(self) -> str:
        axes = ", ".join(f"{n}:{s}" for n, s in zip(self.shape, self.strides, strict=True))
        return f"{self.start} + [{axes}]"
