"""Optimizers, their bytes for each element of a weight, and the sizes of gradient buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pcg.errors import one_of
from pcg.plan.precision import FORMATS, Formats, Precision

Optimizer: TypeAlias = Literal["sgd", "momentum", "adam"]

STATES: Mapping[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""The tensors of a weight's size that an optimizer keeps from step to step, beside the weight: a
moving average of the gradient, and for Adam also one of its square (Kingma and Ba, ICLR 2015)."""
STATE_BYTES = 4
"""Bytes of an element of a state. States are float32, whatever the format of the weights."""

BUCKET_BYTES = 25 << 20
"""The size of a bucket of gradients, which is sent when it is full, as in PyTorch (Li et al., VLDB
2020)."""
FIRST_BYTES = 1 << 20
"""The size of the first bucket. It is smaller, so that communication starts early."""


def optimizer_of(name: str) -> Optimizer:
    """Return the optimizer of a name. Raises InputError for any other."""
    return one_of("optimizer", name, STATES)


@dataclass(frozen=True)
class Training:
    """The optimizer and the number formats of training, and whether operators between two
    reshardings are compiled (``torch.compile``)."""

    optimizer: Optimizer = "sgd"
    precision: Precision = "fp32"
    compiled: bool = False

    @property
    def formats(self) -> Formats:
        """The number formats of the precision."""
        return FORMATS[self.precision]

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer states per element of a weight."""
        return STATES[self.optimizer] * STATE_BYTES

    @property
    def parameter_bytes(self) -> int:
        """Bytes per element of a weight: itself, and its copy in the narrow format."""
        return self.formats.wide + self.formats.copy

    @property
    def held_bytes(self) -> int:
        """Bytes per element of a trained weight: the parameter, its gradient and the states."""
        return self.parameter_bytes + self.formats.wide + self.state_bytes

    @property
    def update_bytes(self) -> int:
        """Bytes per element that an update moves: it reads the weight, its gradient and the states,
        and writes the weight, the states, and the copy in the narrow format."""
        return 3 * self.formats.wide + 2 * self.state_bytes + self.formats.copy
