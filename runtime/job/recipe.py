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
    """What a training step does with gradients. Names and meanings are those of ``torch.optim``."""

    optimizer: OptimizerName = "sgd"
    rate: float = 0.01
    """The learning rate, before the schedule."""
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    """A part of the loss for sgd and adam; of the update, decoupled, for adamw."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = None
    """The largest norm of all gradients together; longer ones are shortened to it."""
    accumulate: int = 1
    """Batches a step; the gradient is the mean over them."""
    schedule: ScheduleName = "constant"
    warmup: int = 0
    """Steps at the beginning over which the rate grows linearly to its full size."""
    decay: int = 1
    """Steps after the warm-up over which linear and cosine go down, or between drops of step."""
    gamma: float = 0.1
    """What each drop of step leaves of the rate."""
    floor: float = 0.0
    """What linear and cosine leave of the rate in the end."""

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
        """What the optimizer keeps of each weight, a tensor of its shape each, as torch says."""
        if self.optimizer == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return ("exp_avg", "exp_avg_sq")

    def factor(self, updates: int) -> float:
        """What the schedule makes of the rate after so many updates."""
        if updates < self.warmup:
            return (updates + 1) / (self.warmup + 1)
        past = updates - self.warmup
        gone = min(past / self.decay, 1.0)
        match self.schedule:
            case "constant":
                return 1.0
            case "linear":
                return 1.0 - (1.0 - self.floor) * gone
            case "cosine":
                return self.floor + (1.0 - self.floor) * (1.0 + cos(pi * gone)) / 2
            case "step":
                return self.gamma ** (past // self.decay)

    def differences(self, other: Recipe) -> list[str]:
        """What another recipe has otherwise, as text."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return [
            f"{option(name)} {getattr(other, name)} instead of {value}"
            for name, value in mine.items()
            if getattr(other, name) != value
        ]


def option(name: str) -> str:
    """The option of the command line that a field of a recipe comes from."""
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
"""Each number's option, its least value, and that in words."""
