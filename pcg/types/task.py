"""Describe one task of an operator: the block of each index that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelTask:
    """What a kernel may ask about its task; indices and sizes are named as in the equation."""

    attributes: Mapping[str, Any]
    """By name: an int for a position or a size, a float for a real."""
    sizes: Mapping[str, int]
    """Global size of every index."""
    ranges: Mapping[str, tuple[int, int]]
    """Where the block of a cut index starts and ends; whole indices may be absent."""
    starts: tuple[tuple[int, ...], ...] = ()
    """The global index of each operand's first element, which may lie in a halo; none: all 0."""

    def first(self, operand: int, axis: int) -> int:
        """Where a dimension of an operand starts; ``axis`` may count from the last one."""
        return self.starts[operand][axis] if self.starts else 0

    def start(self, index: str) -> int:
        """The first global value of an index on this task."""
        return self.ranges[index][0] if index in self.ranges else 0

    def length(self, index: str) -> int:
        """How many values of an index this task computes."""
        if index not in self.ranges:
            return self.sizes[index]
        start, stop = self.ranges[index]
        return stop - start

    def elements(self, run: str) -> int:
        """The product of the global sizes of a run of indices."""
        elements = 1
        # A plain loop, which torch.compile follows.
        for name, size in self.sizes.items():
            if name.rstrip("0123456789") == run:
                elements *= size
        return elements
