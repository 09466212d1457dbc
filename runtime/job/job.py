"""Options, results and errors of a training run, as plain data that passes between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pcg.errors import InputError
from pcg.plan.precision import Precision
from runtime.job.recipe import Recipe
from runtime.world.status import NOT_FINITE, TRY_AGAIN


class AgreedError(InputError):
    """Unusable input that all ranks of a run know of, so that one of them reports it."""


class TryAgain(AgreedError):
    """What keeps a run from going on now, and may be gone the next time."""

    exit_status = TRY_AGAIN


class NotFinite(AgreedError):
    """A run whose loss, gradients or weights are not finite."""

    exit_status = NOT_FINITE


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. ``seed`` fixes weights and data; ``check`` compares with one process."""

    steps: int = 5
    """Counted from the first run on, where one is resumed."""
    recipe: Recipe = field(default_factory=Recipe)
    precision: Precision = "fp32"
    seed: int = 0
    check: bool = False
    data: str | None = None
    """module:function, or FILE.py:function, that returns a dataset; without it data is drawn."""
    checkpoints: Checkpoints | None = None
    initial: str | None = None
    """A state dict of the module, in a file, to begin with; without it weights are drawn."""
    model: str | None = None
    """The module that draws them, as ``pcg.models.make_module`` takes it; without it all are normal
    values."""
    timeline: bool = False
    """Whether the last step is recorded."""
    compiles: bool = False
    """Whether what is between communications goes through torch.compile."""
    stops_not_finite: bool = False
    """Whether a run ends at the first loss or gradient that is not finite."""


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints are kept, how often one is written, and how many stay."""

    folder: str
    every: int = 100
    keep: int = 3
    resume: bool = False
    """Whether to go on from the last one, if there is any."""


@dataclass(frozen=True)
class FinishedStep:
    """A finished training step, from 1; the loss is that before its update."""

    number: int
    loss: float
    seconds: float
    left_out: int = 0
    """Updates that were left out before this one, for the loss was multiplied with too much."""


@dataclass(frozen=True)
class Mark:
    """Something that a rank did in a step: when it began, in seconds from the step's beginning."""

    name: str
    phase: str
    stream: int
    """As in ``pcg.plan.timeline``."""
    start: float
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
class RunReport:
    """A finished run; ``comparisons`` are empty where no check was asked for."""

    steps: tuple[FinishedStep, ...]
    comparisons: tuple[Comparison, ...] = ()
    batches: int = 1
    """Of a step."""
    timeline: tuple[tuple[Mark, ...], ...] = ()
    """Of the last step, by rank, where it was asked for."""
    not_finite: str = ""
    """What is not finite at the end, if anything."""

    @property
    def step_seconds(self) -> float | None:
        """The median time of a step, without the first one, which warms up; None without steps."""
        times = sorted(step.seconds for step in self.steps[1:] or self.steps)
        return times[len(times) // 2] if times else None

    @property
    def passes(self) -> bool:
        return all(comparison.passes for comparison in self.comparisons)


Observer = Callable[[FinishedStep], None]
"""Told of every step as it ends."""


@dataclass(frozen=True)
class Beginning:
    """How a run with checkpoints begins. ``first``: its first step; ``goes_on``: whether steps
    before it are those of checkpoints; ``run``: the identity of the run."""

    first: int
    goes_on: bool
    run: str


Begins = Callable[[Beginning], None]
"""Told on rank 0 how a run with checkpoints begins, before its first step."""
