"""Regions of pieces in the whole tensor, as indices of numpy and torch."""

from __future__ import annotations

from pcg.language.poly import Poly
from pcg.placement.layout import Layout
from pcg.placement.transfer import Message
from pcg.types.tensor import Halo, Halos

Place = tuple[slice, ...]


def place(layout: Layout, device: int) -> Place:
    """The index of a device's piece in the whole tensor, with its halos."""
    return tuple(slice(start, stop) for start, stop in layout.regions[device])


def extent(layout: Layout, device: int) -> tuple[int, ...]:
    """The shape of a device's piece, with its halos."""
    return tuple(stop - start for start, stop in layout.regions[device])


def within(message: Message, layout: Layout, device: int) -> Place:
    """The index of a message's region within a device's piece."""
    ends = zip(message.region, layout.regions[device], strict=True)
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in ends)


def halos(dims: tuple[int, ...], widths: tuple[tuple[int, int] | None, ...]) -> Halos:
    """The number of halo elements before and after the blocks of each dimension that is cut."""
    given = enumerate(zip(dims, widths, strict=True))
    return tuple(Halo(d, *map(Poly.of, w)) for d, (cut, w) in given if w is not None and cut > 1)
