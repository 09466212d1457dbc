"""The table of parallel operators: the entry of a type that each changes, and its adjoint.

They move data and never change the meaning of a tensor. Each multiplies or divides one entry of the
type by its degree. The gradient goes back through the *adjoint*, which does the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Entry = Literal["dims", "slices", "copies", "partials"]
"""An entry of a tensor's degrees. The first two have a number for each dimension."""


@dataclass(frozen=True)
class ParallelOperator:
    """The type rule of a parallel operator."""

    entry: Entry
    power: Literal[1, -1]
    """1 if the entry is multiplied by the degree, -1 if it is divided."""
    adjoint: str
    """The operator through which the gradient goes back."""
    optional: tuple[str, ...] = ()
    """Attributes that a call may leave out."""

    @property
    def has_dim(self) -> bool:
        """Whether it applies to one dimension."""
        return self.entry in ("dims", "slices")

    @property
    def in_time(self) -> bool:
        """Whether it cuts slices in time, and not blocks on devices."""
        return self.entry == "slices"

    @property
    def attributes(self) -> tuple[str, ...]:
        """The required attributes of a call."""
        return ("dim", "degree") if self.has_dim else ("degree",)


PARALLEL: Mapping[str, ParallelOperator] = {
    # The halo of a partition: how many elements of its neighbours each block also holds.
    "partition": ParallelOperator("dims", 1, "combine", ("before", "after")),
    "combine": ParallelOperator("dims", -1, "partition"),
    "replicate": ParallelOperator("copies", 1, "reduce"),
    "reduce": ParallelOperator("partials", -1, "replicate"),
    "pipeline": ParallelOperator("slices", 1, "batch"),
    "batch": ParallelOperator("slices", -1, "pipeline"),
}
"""The parallel operators by name."""
IN_SPACE = frozenset(name for name, own in PARALLEL.items() if not own.in_time)
"""The operators that cut tensors over devices."""
IN_TIME = frozenset(name for name, own in PARALLEL.items() if own.in_time)
"""The operators that cut the batch into slices in time."""
PLACING = frozenset(name for name, own in PARALLEL.items() if own.power == 1)
"""The operators that, right after a leaf, only state how the leaf is stored."""
