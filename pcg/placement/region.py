"""Regions of tensors: a range of indices in each dimension, and arithmetic of regions."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

Region = tuple[tuple[int, int], ...]
"""[start, stop) in each dimension, as global indices or counted from a piece's first element."""


def whole_region(shape: Iterable[int]) -> Region:
    """Return the region of a whole tensor."""
    return tuple((0, size) for size in shape)


def extent(region: Region) -> tuple[int, ...]:
    """Return the shape of a region."""
    return tuple([stop - start for start, stop in region])


def elements(region: Region) -> int:
    """Return the number of elements of a region."""
    return prod(extent(region))


def starts_of(region: Region) -> tuple[int, ...]:
    """Return the index of a region's first element."""
    return tuple([start for start, _ in region])


def within(region: Region, piece: Region) -> Region:
    """Return a region counted from the first element of a piece."""
    return tuple(
        (start - first, stop - first)
        for (start, stop), (first, _) in zip(region, piece, strict=True)
    )


def intersection(a: Region, b: Region) -> Region | None:
    """Return the intersection of two regions, or None if it is empty."""
    shared = tuple((max(i, k), min(j, m)) for (i, j), (k, m) in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def as_slices(region: Region) -> tuple[slice, ...]:
    """Return a region as the slices that index an array."""
    return tuple([slice(start, stop) for start, stop in region])


def region_text(region: Region) -> str:
    """Return the text of a region, such as ``[0:4, 8:16]``."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in region)}]"
