"""Regions of tensors: a range of indices in each dimension, and what is computed with them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

Region = tuple[tuple[int, int], ...]
"""[start, stop) in each dimension: global, or counted from the first element of a piece."""


def whole_region(shape: Iterable[int]) -> Region:
    """All of a tensor."""
    return tuple((0, size) for size in shape)


def extent(region: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple([stop - start for start, stop in region])


def elements(region: Region) -> int:
    """The number of elements of a region."""
    return prod(extent(region))


def starts_of(region: Region) -> tuple[int, ...]:
    """The index of a region's first element."""
    return tuple([start for start, _ in region])


def within(region: Region, piece: Region) -> Region:
    """A region counted from the first element of a piece."""
    return tuple(
        (start - first, stop - first)
        for (start, stop), (first, _) in zip(region, piece, strict=True)
    )


def intersection(a: Region, b: Region) -> Region | None:
    """What two regions have in common; None for nothing."""
    shared = tuple((max(i, k), min(j, m)) for (i, j), (k, m) in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def as_slices(region: Region) -> tuple[slice, ...]:
    """A region as an array is indexed with it."""
    return tuple([slice(start, stop) for start, stop in region])


def region_text(region: Region) -> str:
    """A region for people, such as ``[0:4, 8:16]``."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in region)}]"
