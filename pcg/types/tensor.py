"""The type of a tensor that is cut, copied or held in partial sums over devices.

A tensor has per dimension a size, a degree (blocks in space) and slices (blocks in time), and two
degrees of its own: ``copies`` that are equal by type and ``partials`` that add up to its value.

A dimension that is cut may have a halo: each block then holds some elements of its neighbours too,
equal by type to those that these hold. It changes what lies where and not what the tensor means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

from pcg.language.poly import Poly

D = TypeVar("D")


@dataclass(frozen=True)
class Halo:
    """What blocks of a dimension hold of their neighbours: so many elements before and after their
    own, as far as the tensor goes. Numbers on a graph, of sizes and attributes in a proof."""

    dim: int
    before: Poly
    after: Poly

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of elements before and after, on a graph."""
        before, after = self.before.constant, self.after.constant
        assert before is not None
        assert after is not None
        return before, after

    def __str__(self) -> str:
        return f"({self.before},{self.after})"


Halos = tuple[Halo, ...]


@dataclass(frozen=True)
class Degrees(Generic[D]):
    """The parallel part of a type: integers on a graph, monomials in a proof."""

    dims: tuple[D, ...]
    slices: tuple[D, ...]
    copies: D
    partials: D
    halos: Halos = ()
    """Of the dimensions that have one, in order."""

    def halo(self, dim: int) -> Halo | None:
        """The halo of a dimension, if it has one."""
        return next((halo for halo in self.halos if halo.dim == dim), None)


@dataclass(frozen=True)
class ParallelTensor:
    """A shape (global sizes) and how it is cut."""

    shape: tuple[int, ...]
    degrees: Degrees[int]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Types are in nearly every key of the search: hashed once.
        return hash((self.shape, self.degrees))

    def __reduce__(self) -> tuple[type[ParallelTensor], tuple[tuple[int, ...], Degrees[int]]]:
        """Between processes without the hash, which is another in each."""
        return ParallelTensor, (self.shape, self.degrees)

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
        """The shape of what one device holds, without halos."""
        return tuple(s // d for s, d in zip(self.shape, self.degrees.dims, strict=True))

    @property
    def held(self) -> tuple[int, ...]:
        """The shape of what one device holds at most, halos included."""
        shape = list(self.block)
        for halo in self.degrees.halos:
            shape[halo.dim] = min(shape[halo.dim] + sum(halo.widths), self.shape[halo.dim])
        return tuple(shape)

    @property
    def without_halos(self) -> ParallelTensor:
        """The type of the same blocks, of which none holds anything of its neighbours."""
        if not self.degrees.halos:
            return self
        return replace(self, degrees=replace(self.degrees, halos=()))

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def pieces(self) -> int:
        """The number of devices that hold a piece: blocks times copies times partials."""
        return prod(self.degrees.dims) * self.degrees.copies * self.degrees.partials

    def __str__(self) -> str:
        """Such as ``[64/2, 784] copies=2``; ``/d`` a degree, ``|t`` slices in time, ``(b,a)`` a
        halo."""
        d = self.degrees
        dims = ", ".join(
            f"{size}{f'/{cut}' if cut > 1 else ''}{f'|{slices}' if slices > 1 else ''}"
            f"{d.halo(dim) or ''}"
            for dim, (size, cut, slices) in enumerate(
                zip(self.shape, d.dims, d.slices, strict=True)
            )
        )
        copies = f" copies={d.copies}" if d.copies > 1 else ""
        partials = f" partials={d.partials}" if d.partials > 1 else ""
        return f"[{dims}]{copies}{partials}"
