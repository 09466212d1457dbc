"""Parallel tensors: how a tensor is cut, copied and summed over devices.

A tensor has per dimension a size, a degree (blocks in space) and slices (blocks in time), and two
degrees of its own: ``copies`` that are equal by type and ``partials`` that add up to its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

D = TypeVar("D")


@dataclass(frozen=True)
class Degrees(Generic[D]):
    """The parallel part of a type: integers on a graph, monomials in a proof."""

    dims: tuple[D, ...]
    slices: tuple[D, ...]
    copies: D
    partials: D


@dataclass(frozen=True)
class ParallelTensor:
    """A shape (global sizes) and how it is cut."""

    shape: tuple[int, ...]
    degrees: Degrees[int]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> ParallelTensor:
        """The type of a tensor that lives on one device."""
        ones = (1,) * len(shape)
        return ParallelTensor(shape, Degrees(ones, ones, 1, 1))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of what one device holds."""
        return tuple(s // d for s, d in zip(self.shape, self.degrees.dims, strict=True))

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def pieces(self) -> int:
        """The number of devices that hold a piece: blocks times copies times partials."""
        return prod(self.degrees.dims) * self.degrees.copies * self.degrees.partials

    @property
    def is_whole(self) -> bool:
        return self == ParallelTensor.whole(self.shape)

    def __str__(self) -> str:
        """Such as ``[64/2, 784] copies=2``; ``/d`` a degree, ``|t`` slices in time."""
        d = self.degrees
        dims = ", ".join(
            f"{size}{f'/{cut}' if cut > 1 else ''}{f'|{slices}' if slices > 1 else ''}"
            for size, cut, slices in zip(self.shape, d.dims, d.slices, strict=True)
        )
        copies = f" copies={d.copies}" if d.copies > 1 else ""
        partials = f" partials={d.partials}" if d.partials > 1 else ""
        return f"[{dims}]{copies}{partials}"
