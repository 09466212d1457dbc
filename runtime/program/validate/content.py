"""Track what a register holds: a block of the sum of some partials of a tensor.

Problem. A register is an array of numbers. What it holds is said as (tensor, partials, region):
element i of it is the sum over sigma in [first, last) of V(sigma; start + i), for V as in the
meaning of a parallel tensor. Instructions move blocks of registers and add them up; what comes
together in a register has again to be one such triple.

Method. Blocks that arrive are boxes in (partial, index...); they make a triple up when all are of
one tensor, at one distance from where they are put, and cover the box of the whole exactly once.
That is counted over the boxes' own grid, so no element is looked at: O(boxes * cells) at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pcg.graph.graph import Value
from pcg.memo import Answers
from pcg.placement.region import Region, extent, region_text, starts_of, whole_region
from runtime.program.validate.errors import Unsound


@dataclass(eq=False)
class PlanTensor:
    """A tensor of the plan's graph: a leaf, or what an operator makes. One object for each."""

    name: str
    """As the plan's graph is printed."""
    value: Value
    partials: int
    shape: tuple[int, ...]
    trains: bool
    """Whether it depends on a weight."""


@dataclass(eq=False, slots=True)
class Place:
    """Partials [first, last) and a region, global [start, stop) in each dimension. Equal places are
    one object: ``Places`` makes them."""

    first: int
    last: int
    region: Region
    extent: tuple[int, ...] = field(init=False)
    start: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.extent = extent(self.region)
        self.start = starts_of(self.region)

    def __str__(self) -> str:
        return f"partials {self.first}:{self.last} of {region_text(self.region)}"


class Places:
    """Every place that a validation has met, once."""

    def __init__(self) -> None:
        self._known = Answers[tuple[int, int, Region], Place](lambda key: Place(*key))
        self.rows: dict[object, tuple[Place, ...]] = {}
        """The places of all tasks of a view, by what they follow from."""
        self.collected: dict[object, tuple[object, list[Place]]] = {}
        """The places of a collective's members after it, by what they follow from."""

    def of(self, first: int, last: int, region: Region) -> Place:
        return self._known[first, last, region]


class Content(NamedTuple):
    """What a register holds."""

    tensor: PlanTensor
    place: Place

    def __str__(self) -> str:
        return f"{self.tensor.name}, {self.place}"


class Contents:
    """What registers hold, by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, PlanTensor] = {}
        self.places: dict[str, Place] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __setitem__(self, name: str, content: Content) -> None:
        self.tensors[name], self.places[name] = content

    def get(self, name: str) -> Content | None:
        tensor = self.tensors.get(name)
        return None if tensor is None else Content(tensor, self.places[name])

    def hold(
        self, names: Sequence[str], tensors: Sequence[PlanTensor], places: Sequence[Place]
    ) -> None:
        """Several at once."""
        self.tensors.update(zip(names, tensors, strict=True))
        self.places.update(zip(names, places, strict=True))

    def update(self, others: Contents) -> None:
        self.tensors.update(others.tensors)
        self.places.update(others.places)


class Fragment(NamedTuple):
    """Something that is added to region ``at`` of a register."""

    at: Region
    tensor: PlanTensor
    first: int
    last: int
    region: Region


def fragment(content: Content, cut: Region | None, at: Region | None) -> Fragment:
    """Region ``cut`` of a register, for region ``at`` of another; None: all of it. Raises Unsound
    where the register is smaller, or ``at`` of another shape."""
    tensor, place = content
    region = place.region
    if cut is not None:
        if len(cut) != len(region) or any(
            not 0 <= a < b <= size for (a, b), size in zip(cut, place.extent, strict=True)
        ):
            raise Unsound(f"takes {region_text(cut)} of a register of shape {list(place.extent)}")
        region = tuple((s + a, s + b) for (s, _), (a, b) in zip(region, cut, strict=True))
    size = extent(region)
    if at is None:
        at = whole_region(size)
    elif extent(at) != size:
        raise Unsound(f"puts a block of shape {list(size)} at {region_text(at)}")
    return Fragment(at, tensor, place.first, place.last, region)


def assemble(parts: Sequence[Fragment], shape: tuple[int, ...], places: Places) -> Content:
    """What a register of ``shape`` holds that parts were added to. Raises Unsound where that is no
    block of one tensor, each element and partial once."""
    if not parts:
        raise Unsound(f"nothing is put into a register of shape {list(shape)}")
    one = parts[0]
    offset = tuple(g - a for (g, _), (a, _) in zip(one.region, one.at, strict=True))
    for part in parts:
        if part.tensor is not one.tensor:
            raise Unsound(f"adds {part.tensor.name} to {one.tensor.name}")
        if tuple(g - a for (g, _), (a, _) in zip(part.region, part.at, strict=True)) != offset:
            own = (
                f"{region_text(part.region)} of {part.tensor.name} is put at {region_text(part.at)}"
            )
            raise Unsound(
                f"{own}, where others put {region_text(one.region)} at {region_text(one.at)}"
            )
    first, last = min(p.first for p in parts), max(p.last for p in parts)
    if len(parts) > 1 or extent(one.at) != shape:
        boxes = [((p.first, p.last), *p.at) for p in parts]
        problem = covers(boxes, ((first, last), *whole_region(shape)))
        if problem is not None:
            times, (partials, *region) = problem
            some = region_text(
                tuple((a + o, b + o) for (a, b), o in zip(region, offset, strict=True))
            )
            how = "missing" if not times else f"added {times} times"
            raise Unsound(f"{one.tensor.name}{some} of partial {partials[0]} is {how}")
    whole = tuple((o, o + n) for o, n in zip(offset, shape, strict=True))
    return Content(one.tensor, places.of(first, last, whole))


Box = tuple[tuple[int, int], ...]


def covers(boxes: Sequence[Box], whole: Box) -> tuple[int, Box] | None:
    """None where boxes cover a whole box exactly once; else a part of it, and how often that is
    covered. What lies outside counts as covered too often."""
    if _are_in_a_row(boxes, whole):
        return None
    cuts = [sorted({*ends, *(e for box in boxes for e in box[d])}) for d, ends in enumerate(whole)]
    places = [{cut: i for i, cut in enumerate(own)} for own in cuts]
    counts = np.zeros([len(own) - 1 for own in cuts], np.int32)
    for box in boxes:
        cells = (slice(own[a], own[b]) for (a, b), own in zip(box, places, strict=True))
        counts[tuple(cells)] += 1
    inside = tuple(slice(own[a], own[b]) for (a, b), own in zip(whole, places, strict=True))
    wanted = np.zeros_like(counts)
    wanted[inside] = 1
    wrong = np.argwhere(counts != wanted)
    if not len(wrong):
        return None
    at = tuple(int(i) for i in wrong[0])
    part = tuple(list(pairwise(own))[i] for i, own in zip(at, cuts, strict=True))
    return int(counts[at]), part


def _are_in_a_row(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes are a whole one cut along one dimension: then they need no counting."""
    cut = {d for box in boxes if box != whole for d, own in enumerate(box) if own != whole[d]}
    if len(cut) != 1:
        return not cut and len(boxes) == 1
    (dim,) = cut
    start, stop = whole[dim]
    for first, last in sorted([box[dim] for box in boxes]):
        if first != start or last <= first:
            return False
        start = last
    return start == stop
