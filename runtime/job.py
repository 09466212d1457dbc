"""What a run is asked to do and what it answers: plain data that passes between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

DTypeName = Literal["float32", "float64"]


@dataclass(frozen=True)
class Options:
    """How to train. ``seed`` fixes weights and data; ``check`` compares with one process."""

    steps: int = 5
    rate: float = 0.01
    dtype: DTypeName = "float32"
    seed: int = 0
    check: bool = False


@dataclass(frozen=True)
class Step:
    """A finished training step, from 1; the loss is that before its update."""

    number: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """The largest error of one quantity against the run on one process."""

    kind: Literal["loss", "output", "weight"]
    name: str
    absolute: float
    relative: float
    """Absolute error over max(1, largest absolute value expected)."""

    @property
    def passes(self) -> bool:
        # Not "error > tolerance": a NaN has to fail.
        return self.relative <= TOLERANCE


TOLERANCE = 1e-10
"""The largest relative error that passes a check."""


@dataclass(frozen=True)
class Report:
    """A finished run; ``comparisons`` are empty where no check was asked for."""

    steps: tuple[Step, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def step_seconds(self) -> float:
        """The median time of a step, without the first one, which warms up."""
        times = sorted(step.seconds for step in self.steps[1:] or self.steps)
        return times[len(times) // 2]

    @property
    def passes(self) -> bool:
        return all(comparison.passes for comparison in self.comparisons)


Observer = Callable[[Step], None]
"""Told of every step as it ends."""
