"""The content of a register: a block of the sum of some partials of a tensor.

Problem. A register is an array of numbers. Its content is described by a triple (tensor, partials,
region): element i is the sum over sigma in [first, last) of V(sigma; start + i), for V as in the
meaning of a parallel tensor. Instructions move blocks of registers and add them up. The sum of
blocks in a register must again be one such triple.

Method. The blocks that are added up are boxes in (partial, index...). They form a triple if all
belong to one tensor, have the same offset between their global region and their region in the
register, and cover the register's box exactly once. Coverage is counted on the grid that the
boxes' ends span, not by element.

Complexity. O(boxes * cells of the grid) at worst. Exact.
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
    """A tensor of the plan's graph: a leaf or a result of an operator. There is one object per
    tensor."""

    name: str
    """Its name in the printed graph of the plan."""
    value: Value
    partials: int
    shape: tuple[int, ...]
    trains: bool
    """Whether it depends on a weight."""


@dataclass(eq=False, slots=True)
class Place:
    """Partials [first, last) and a region of a tensor, global [start, stop) in each dimension.
    ``Places`` creates them, so that equal places are one object."""

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
    """The places of a validation, each as one object, and caches of lists of them."""

    def __init__(self) -> None:
        self._places = Answers[tuple[int, int, Region], Place](lambda key: Place(*key))
        self.rows: dict[object, tuple[Place, ...]] = {}
        """The places of all tasks of a view, by all that determines them."""
        self.collected: dict[object, tuple[object, list[Place]]] = {}
        """The places of all members after a collective, by all that determines them."""

    def of(self, first: int, last: int, region: Region) -> Place:
        return self._places[first, last, region]


class Content(NamedTuple):
    """The content of a register."""

    tensor: PlanTensor
    place: Place

    def __str__(self) -> str:
        return f"{self.tensor.name}, {self.place}"


class Contents:
    """The contents of registers, by name."""

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
        """Set the contents of several registers at once."""
        self.tensors.update(zip(names, tensors, strict=True))
        self.places.update(zip(names, places, strict=True))

    def update(self, others: Contents) -> None:
        self.tensors.update(others.tensors)
        self.places.update(others.places)


class Fragment(NamedTuple):
    """A block of a tensor that is added to region ``at`` of a register. ``region``: its global
    region."""

    at: Region
    tensor: PlanTensor
    first: int
    last: int
    region: Region


def fragment(content: Content, cut: Region | None, at: Region | None) -> Fragment:
    """Region ``cut`` of a register with some content, to be added to region ``at`` of another
    register. None stands for the whole register.

    Raises Unsound if ``cut`` is not inside the register, or ``at`` has another shape.
    """
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
    """The content of a register of ``shape`` after the parts were added to it. Raises Unsound if it
    is not a block of one tensor, with each element of each partial once."""
    if not parts:
        raise Unsound(f"nothing is put into a register of shape {list(shape)}")
    first_part = parts[0]
    tensor = first_part.tensor
    offset = tuple(g - a for (g, _), (a, _) in zip(first_part.region, first_part.at, strict=True))
    for part in parts:
        if part.tensor is not tensor:
            raise Unsound(f"adds {part.tensor.name} to {tensor.name}")
        if tuple(g - a for (g, _), (a, _) in zip(part.region, part.at, strict=True)) != offset:
            text = f"{region_text(part.region)} of {tensor.name} is put at {region_text(part.at)}"
            others = f"{region_text(first_part.region)} at {region_text(first_part.at)}"
            raise Unsound(f"{text}, where others put {others}")
    first, last = min(p.first for p in parts), max(p.last for p in parts)
    if len(parts) > 1 or extent(first_part.at) != shape:
        boxes = [((p.first, p.last), *p.at) for p in parts]
        problem = covers(boxes, ((first, last), *whole_region(shape)))
        if problem is not None:
            times, (partials, *box) = problem
            region = region_text(
                tuple((a + o, b + o) for (a, b), o in zip(box, offset, strict=True))
            )
            how = "missing" if not times else f"added {times} times"
            raise Unsound(f"{tensor.name}{region} of partial {partials[0]} is {how}")
    whole = tuple((o, o + n) for o, n in zip(offset, shape, strict=True))
    return Content(tensor, places.of(first, last, whole))


Box = tuple[tuple[int, int], ...]


def covers(boxes: Sequence[Box], whole: Box) -> tuple[int, Box] | None:
    """None if boxes cover the box ``whole`` exactly once, and nothing outside of it. Otherwise, of
    a part that is covered wrongly: how often it is covered, and the part."""
    if _are_in_a_row(boxes, whole):
        return None
    cuts = [sorted({*ends, *(e for box in boxes for e in box[d])}) for d, ends in enumerate(whole)]
    indices = [{cut: i for i, cut in enumerate(of_dim)} for of_dim in cuts]
    counts = np.zeros([len(of_dim) - 1 for of_dim in cuts], np.int32)
    for box in boxes:
        cells = (slice(of_dim[a], of_dim[b]) for (a, b), of_dim in zip(box, indices, strict=True))
        counts[tuple(cells)] += 1
    spans = zip(whole, indices, strict=True)
    inside = tuple(slice(of_dim[a], of_dim[b]) for (a, b), of_dim in spans)
    expected = np.zeros_like(counts)
    expected[inside] = 1
    wrong = np.argwhere(counts != expected)
    if not len(wrong):
        return None
    cell = tuple(int(i) for i in wrong[0])
    part = tuple(list(pairwise(of_dim))[i] for i, of_dim in zip(cell, cuts, strict=True))
    return int(counts[cell]), part


def _are_in_a_row(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes are exactly ``whole`` cut along one dimension. Then no grid is needed."""
    cut = {d for box in boxes if box != whole for d, span in enumerate(box) if span != whole[d]}
    if len(cut) != 1:
        return not cut and len(boxes) == 1
    (dim,) = cut
    start, stop = whole[dim]
    for first, last in sorted([box[dim] for box in boxes]):
        if first != start or last <= first:
            return False
        start = last
    return start == stop
