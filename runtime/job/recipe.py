"""The training recipe: optimizer, learning-rate schedule, clipping and accumulation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import cos, isfinite, pi
from typing import Literal, TypeAlias, get_args

from pcg.errors import InputError

OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]
ScheduleName: TypeAlias = Literal["constant", "linear", "cosine", "step"]


@dataclass(frozen=True)
class Recipe:
    """How a training step turns gradients into an update. Names and meanings are those of
    ``torch.optim``."""

    optimizer: OptimizerName = "sgd"
    rate: float = 0.01
    """The learning rate, before the schedule."""
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    """Added to the gradient for sgd and adam; applied to the weight, decoupled, for adamw."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = None
    """The largest norm of all gradients together. Gradients of a larger norm are scaled down."""
    accumulate: int = 1
    """Batches per step. The gradient is the mean over them."""
    schedule: ScheduleName = "constant"
    warmup: int = 0
    """The number of first steps, over which the rate grows linearly to its full value."""
    decay: int = 1
    """For the schedules linear and cosine: the number of steps after the warm-up over which the
    rate decreases. For the schedule step: the number of steps between two drops."""
    gamma: float = 0.1
    """The factor by which each drop of the schedule step multiplies the rate."""
    floor: float = 0.0
    """The fraction of the rate that remains at the end of the schedules linear and cosine."""

    def __post_init__(self) -> None:
        for name, least, what in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= least):
                raise InputError(option(name), f"expected {what}, got {value}")
        for name in ("beta1", "beta2"):
            if not getattr(self, name) < 1:
                raise InputError(f"--{name}", f"expected less than 1, got {getattr(self, name)}")
        if self.clip == 0:
            raise InputError("--clip", "expected a number above 0, got 0")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("--nesterov", "expected --momentum and no --dampening with it")
        for name, known in (("optimizer", OptimizerName), ("schedule", ScheduleName)):
            if (given := getattr(self, name)) not in get_args(known):
                expected = ", ".join(get_args(known))
                raise InputError(option(name), f"expected one of {expected}, got {given}")

    @property
    def states(self) -> tuple[str, ...]:
        """Torch's names of the optimizer states, each a tensor of its weight's shape."""
        if self.optimizer == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return ("exp_avg", "exp_avg_sq")

    def factor(self, updates: int) -> float:
        """The factor by which the schedule multiplies the rate after a number of updates."""
        if updates < self.warmup:
            return (updates + 1) / (self.warmup + 1)
        past = updates - self.warmup
        progress = min(past / self.decay, 1.0)
        match self.schedule:
            case "constant":
                return 1.0
            case "linear":
                return 1.0 - (1.0 - self.floor) * progress
            case "cosine":
                return self.floor + (1.0 - self.floor) * (1.0 + cos(pi * progress)) / 2
            case "step":
                return self.gamma ** (past // self.decay)

    def differences(self, other: Recipe) -> list[str]:
        """The options in which another recipe differs, one text each."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [
            f"{option(name)} {getattr(other, name)} instead of {value}"
            for name, value in values.items()
            if getattr(other, name) != value
        ]


def option(name: str) -> str:
    """The command-line option that sets a field of a recipe."""
    return {"rate": "--lr", "decay": "--decay-steps"}.get(name, f"--{name.replace('_', '-')}")


_BOUNDS = (
    ("rate", 0, "0 or more"),
    ("momentum", 0, "0 or more"),
    ("dampening", float("-inf"), "a finite number"),
    ("weight_decay", 0, "0 or more"),
    ("beta1", 0, "0 or more"),
    ("beta2", 0, "0 or more"),
    ("epsilon", 0, "0 or more"),
    ("clip", 0, "a number above 0"),
    ("accumulate", 1, "1 or more"),
    ("warmup", 0, "0 or more"),
    ("decay", 1, "1 or more"),
    ("gamma", 0, "0 or more"),
    ("floor", 0, "0 or more"),
)
"""For each number: its field, its smallest value, and the expected range in words."""
