"""How weights are trained, what that takes for each of them, and the sizes of gradient buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pcg.errors import one_of
from pcg.plan.precision import FORMATS, Formats, Precision

Optimizer: TypeAlias = Literal["sgd", "momentum", "adam"]

STATES: Mapping[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Tensors of a weight's size that it keeps from step to step, beside the weight: a moving average
of the gradient, and Adam one of its square (Kingma and Ba, ICLR 2015)."""
STATE_BYTES = 4
"""States are float32, whatever the weights are."""

BUCKET_BYTES = 25 << 20
"""A buffer of gradients is full, and sent, when it holds as much, as in PyTorch (Li et al., VLDB
2020)."""
FIRST_BYTES = 1 << 20
"""The first one is full sooner, so that communication starts early."""


def optimizer_of(name: str) -> Optimizer:
    """The optimizer of a name. Raises InputError for any other."""
    return one_of("optimizer", name, STATES)


@dataclass(frozen=True)
class Training:
    """By which optimizer, and in which number formats, weights are trained; and whether operators
    between two moves are compiled (``torch.compile``)."""

    optimizer: Optimizer = "sgd"
    precision: Precision = "fp32"
    compiled: bool = False

    @property
    def formats(self) -> Formats:
        """The number formats of the precision."""
        return FORMATS[self.precision]

    @property
    def state_bytes(self) -> int:
        """Bytes of an element of a weight that the optimizer keeps."""
        return STATES[self.optimizer] * STATE_BYTES

    @property
    def parameter_bytes(self) -> int:
        """Bytes of an element of a weight: itself, and its copy in the narrow format."""
        return self.formats.wide + self.formats.copy

    @property
    def held_bytes(self) -> int:
        """Bytes of an element of a weight that is trained: the parameter, its gradient and the
        states."""
        return self.parameter_bytes + self.formats.wide + self.state_bytes

    @property
    def update_bytes(self) -> int:
        """Bytes of an element that an update moves: it reads the weight, its gradient and the
        states, and writes the weight, the states, and the copy in the narrow format."""
        return 3 * self.formats.wide + 2 * self.state_bytes + self.formats.copy
