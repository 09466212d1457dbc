"""The parallel operators in one table: what each changes of a tensor's type, and what undoes it.

They move data and never change what a tensor means. Each multiplies or divides one entry of the
type by its degree; the gradient goes back through the *adjoint*, which does the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Entry = Literal["dims", "slices", "copies", "partials"]
"""What of a tensor's degrees an operator changes; the first two have an entry a dimension."""


@dataclass(frozen=True)
class ParallelOperator:
    """One parallel operator."""

    entry: Entry
    power: Literal[1, -1]
    """Whether the entry is multiplied by the degree, or divided."""
    adjoint: str
    """The operator that its gradient goes back through."""
    optional: tuple[str, ...] = ()
    """Attributes that a call may leave out."""

    @property
    def has_dim(self) -> bool:
        """Whether it is about one dimension."""
        return self.entry in ("dims", "slices")

    @property
    def in_time(self) -> bool:
        """Whether it is about slices in time, and not about devices."""
        return self.entry == "slices"

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that a call has to have."""
        return ("dim", "degree") if self.has_dim else ("degree",)


PARALLEL: Mapping[str, ParallelOperator] = {
    # A partition's halo: how many elements of its neighbours each block holds too.
    "partition": ParallelOperator("dims", 1, "combine", ("before", "after")),
    "combine": ParallelOperator("dims", -1, "partition"),
    "replicate": ParallelOperator("copies", 1, "reduce"),
    "reduce": ParallelOperator("partials", -1, "replicate"),
    "pipeline": ParallelOperator("slices", 1, "batch"),
    "batch": ParallelOperator("slices", -1, "pipeline"),
}
"""By name."""
IN_SPACE = frozenset(name for name, own in PARALLEL.items() if not own.in_time)
"""The operators that cut tensors over devices."""
IN_TIME = frozenset(name for name, own in PARALLEL.items() if own.in_time)
"""Those that cut the batch into slices."""
PLACING = frozenset(name for name, own in PARALLEL.items() if own.power == 1)
"""Those that, after a leaf, only say how the leaf is stored."""
