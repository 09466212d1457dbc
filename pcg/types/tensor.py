"""The type of a tensor that is cut, copied or held in partial sums over devices.

Each dimension has a size, a degree (blocks in space) and slices (blocks in time). The tensor itself
has ``copies``, which are equal by type, and ``partials``, which add up to its value.

A dimension that is cut may have a halo: each block also holds some elements of its neighbours,
equal by type to theirs. A halo changes where data lies, not what the tensor means.
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
    """The elements of neighbours that blocks of a dimension also hold: so many before and after
    their own, within the tensor. The widths are numbers on a graph, and polynomials in a proof."""

    dim: int
    before: Poly
    after: Poly

    @property
    def widths(self) -> tuple[int, int]:
        """The widths before and after, on a graph."""
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
    """The halos of the dimensions that have one, in order."""

    def halo(self, dim: int) -> Halo | None:
        """Return the halo of a dimension, or None."""
        return next((halo for halo in self.halos if halo.dim == dim), None)


@dataclass(frozen=True)
class ParallelTensor:
    """A shape of global sizes, and how it is cut."""

    shape: tuple[int, ...]
    degrees: Degrees[int]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Types are in nearly every key of the search's caches, so the hash is stored.
        return hash((self.shape, self.degrees))

    def __reduce__(self) -> tuple[type[ParallelTensor], tuple[tuple[int, ...], Degrees[int]]]:
        """Pickle without the hash, which differs between processes."""
        return ParallelTensor, (self.shape, self.degrees)

    @staticmethod
    def whole(shape: tuple[int, ...]) -> ParallelTensor:
        """Return the type of a tensor that lives on one device."""
        ones = (1,) * len(shape)
        return ParallelTensor(shape, Degrees(ones, ones, 1, 1))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of one device's block, without halos."""
        return tuple(s // d for s, d in zip(self.shape, self.degrees.dims, strict=True))

    @property
    def held(self) -> tuple[int, ...]:
        """The largest shape that a device holds, with halos."""
        shape = list(self.block)
        for halo in self.degrees.halos:
            shape[halo.dim] = min(shape[halo.dim] + sum(halo.widths), self.shape[halo.dim])
        return tuple(shape)

    @property
    def without_halos(self) -> ParallelTensor:
        """The type of the same blocks without halos."""
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
        """Print the type, such as ``[64/2, 784] copies=2``.

        ``/d`` is a degree, ``|t`` slices in time, and ``(b,a)`` a halo.
        """
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
