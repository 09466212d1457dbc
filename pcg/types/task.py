"""The description of one task of an operator: the block of each index that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelTask:
    """A kernel's view of its task. Indices and sizes have their names in the equation."""

    attributes: Mapping[str, Any]
    """Attributes by name: an int for a position or a size, a float for a real."""
    sizes: Mapping[str, int]
    """The global size of every index."""
    ranges: Mapping[str, tuple[int, int]]
    """The start and the end of each cut index's block. Indices that are not cut may be absent."""
    starts: tuple[tuple[int, ...], ...] = ()
    """The global index of each operand's first element, which may lie in a halo. () if all are
    0."""

    def first(self, operand: int, axis: int) -> int:
        """Return the start of a dimension of an operand. ``axis`` may count from the last."""
        return self.starts[operand][axis] if self.starts else 0

    def start(self, index: str) -> int:
        """Return the first global value of an index in this task."""
        return self.ranges[index][0] if index in self.ranges else 0

    def length(self, index: str) -> int:
        """Return the number of values of an index in this task."""
        if index not in self.ranges:
            return self.sizes[index]
        start, stop = self.ranges[index]
        return stop - start

    def elements(self, run: str) -> int:
        """Return the product of the global sizes of a run of indices."""
        elements = 1
        # A plain loop, which torch.compile can trace.
        for name, size in self.sizes.items():
            if name.rstrip("0123456789") == run:
                elements *= size
        return elements
