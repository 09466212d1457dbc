"""Options, results and errors of a training run: plain data, which processes send to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pcg.errors import InputError
from pcg.plan.precision import Precision
from runtime.job.recipe import Recipe
from runtime.world.status import NOT_FINITE, TRY_AGAIN


class AgreedError(InputError):
    """Unusable input, raised on all ranks of a run together, so that a single rank reports it."""


class TryAgain(AgreedError):
    """A condition that ends this run but may be gone the next time, such as a full disk."""

    exit_status = TRY_AGAIN


class NotFinite(AgreedError):
    """The loss, the gradients or the weights of a run are not finite."""

    exit_status = NOT_FINITE


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. ``seed`` fixes the weights and the data that are drawn. ``check``: whether to
    compare the run with training on one process."""

    steps: int = 5
    """The number of training steps. A resumed run counts those of the earlier runs too."""
    recipe: Recipe = field(default_factory=Recipe)
    precision: Precision = "fp32"
    seed: int = 0
    check: bool = False
    data: str | None = None
    """The function that returns a dataset, as module:function or FILE.py:function. Without it the
    data is drawn from the seed."""
    checkpoints: Checkpoints | None = None
    initial: str | None = None
    """A file with a state dict of the module, the initial weights. Without it they are drawn."""
    model: str | None = None
    """The module that draws the initial weights, a name or path for ``pcg.models.make_module``.
    Without it all weights are drawn from a normal distribution."""
    timeline: bool = False
    """Whether to record a timeline of the last step."""
    compiles: bool = False
    """Whether the segments between communications go through torch.compile."""
    stops_not_finite: bool = False
    """Whether the run ends at the first loss or gradient that is not finite."""


@dataclass(frozen=True)
class Checkpoints:
    """The folder of checkpoints. One is written after every ``every`` steps, and the newest
    ``keep`` of them stay."""

    folder: str
    every: int = 100
    keep: int = 3
    resume: bool = False
    """Whether to go on from the newest checkpoint, if there is any."""


@dataclass(frozen=True)
class FinishedStep:
    """A finished training step. Steps are counted from 1. The loss is from before the update."""

    number: int
    loss: float
    seconds: float
    left_out: int = 0
    """The number of updates skipped before this one because the loss scale was too large."""


@dataclass(frozen=True)
class Mark:
    """An interval of a rank's timeline. ``start``: seconds since the beginning of the step."""

    name: str
    phase: str
    stream: int
    """As in ``pcg.plan.timeline``."""
    start: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """The largest error of one quantity, compared with the same training on one process."""

    kind: Literal["loss", "output", "weight"]
    name: str
    absolute: float
    relative: float
    """``absolute`` divided by max(1, the largest absolute value expected)."""

    @property
    def passes(self) -> bool:
        # Not "error > tolerance": a NaN has to fail.
        return self.relative <= TOLERANCE


TOLERANCE = 1e-10
"""The largest relative error that passes a check."""


@dataclass(frozen=True)
class RunReport:
    """The results of a finished run. ``comparisons`` is empty if no check was asked for."""

    steps: tuple[FinishedStep, ...]
    comparisons: tuple[Comparison, ...] = ()
    batches: int = 1
    """Batches per step."""
    timeline: tuple[tuple[Mark, ...], ...] = ()
    """The timeline of the last step, by rank. Empty if none was asked for."""
    not_finite: str = ""
    """Names the loss or weights that are not finite at the end. Empty if all are finite."""

    @property
    def step_seconds(self) -> float | None:
        """The median seconds of a step, the first one (a warm-up) left out. None without steps."""
        times = sorted(step.seconds for step in self.steps[1:] or self.steps)
        return times[len(times) // 2] if times else None

    @property
    def passes(self) -> bool:
        return all(comparison.passes for comparison in self.comparisons)


Observer = Callable[[FinishedStep], None]
"""A callback, which gets each step as it ends."""


@dataclass(frozen=True)
class Beginning:
    """How a run with checkpoints begins. ``first``: its first step. ``goes_on``: whether the steps
    before that one come from a checkpoint. ``run``: the identity of the run."""

    first: int
    goes_on: bool
    run: str


Begins = Callable[[Beginning], None]
"""A callback on rank 0, called before the first step of a run with checkpoints."""
