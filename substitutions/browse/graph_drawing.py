"""Places the boxes of a small directed graph in layers, with data flowing from top to bottom.

Method: the usual steps of a layered drawing (Sugiyama, Tagawa, Toda 1981): layers, an order within
each layer with few crossings, then positions. A wire over several layers has a bend in each layer
between, which gets room like a box. Positions minimise squared distances to the mean of the
neighbours, in sweeps down and up. Within a layer that is an isotonic regression (pool adjacent
violators).
Complexity: ``SWEEPS`` times the square of the number of wires.
Heuristic, except for the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

GAP = 14
"""The least distance between boxes of a layer."""
SWEEPS = 8


@dataclass(frozen=True)
class Wire:
    """A wire from an output of one box to an input of another. ``leaves`` and ``enters``: the
    distances of its ends from the middles of the boxes."""

    source: int
    target: int
    leaves: float = 0
    enters: float = 0


@dataclass(frozen=True)
class BoxLayout:
    """The positions of boxes and wires. ``depth``: the number of layers. ``centres``: the distance
    of each box's middle from the left edge. ``layers``: the layer of each box, from the top.
    ``bends``: the bends of each wire, one for each layer between its ends."""

    width: float
    depth: int
    centres: tuple[float, ...]
    layers: tuple[int, ...]
    bends: tuple[tuple[float, ...], ...]


def layout(widths: Sequence[float], wires: Sequence[Wire], sinks: Sequence[int]) -> BoxLayout:
    """Place boxes of the given widths. Wires lead from lower to higher numbers. ``sinks`` are
    placed in the last layer."""
    layers = _layers(len(widths), wires, sinks)
    drawing = _Drawing(widths, wires, layers)
    drawing.untangle()
    places = drawing.places()
    shift = min(p - w / 2 for p, w in zip(places, drawing.widths, strict=True))
    right = max(p + w / 2 for p, w in zip(places, drawing.widths, strict=True))
    bends = (tuple(places[point] - shift for point in points) for points in drawing.bends)
    return BoxLayout(
        right - shift,
        max(layers, default=-1) + 1,
        tuple(p - shift for p in places[: len(widths)]),
        tuple(layers),
        tuple(bends),
    )


def _layers(count: int, wires: Sequence[Wire], sinks: Sequence[int]) -> list[int]:
    """The layer of each box: below all boxes that it reads. A box that reads none is right above
    its first reader."""
    layers = [0] * count
    for wire in sorted(wires, key=lambda w: w.target):
        layers[wire.target] = max(layers[wire.target], layers[wire.source] + 1)
    last = max((layers[sink] for sink in sinks), default=0)
    for sink in sinks:
        layers[sink] = last
    for box in reversed(range(count)):
        readers = [layers[wire.target] for wire in wires if wire.source == box]
        if readers and not any(wire.target == box for wire in wires):
            layers[box] = min(readers) - 1
    return layers


@dataclass(frozen=True)
class _Link:
    """A piece of a wire, from one layer to the next."""

    above: int
    below: int
    leaves: float
    enters: float


class _Drawing:
    """A drawing as rows of points in order. Boxes and bends are points with a width."""

    def __init__(
        self, widths: Sequence[float], wires: Sequence[Wire], layers: Sequence[int]
    ) -> None:
        self.widths = [float(width) for width in widths]
        self.bends: list[tuple[int, ...]] = []
        self._rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
        self._links: list[_Link] = []
        for box in _by_use(wires, len(widths)):
            self._rows[layers[box]].append(box)
        for wire in wires:
            self.bends.append(self._add(wire, layers))
        self._above: dict[int, list[_Link]] = {}
        self._below: dict[int, list[_Link]] = {}
        for link in self._links:
            self._above.setdefault(link.below, []).append(link)
            self._below.setdefault(link.above, []).append(link)

    def _add(self, wire: Wire, layers: Sequence[int]) -> tuple[int, ...]:
        """Split a wire into links, and return its bends."""
        points: list[int] = []
        for layer in range(layers[wire.source] + 1, layers[wire.target]):
            points.append(len(self.widths))
            self._rows[layer].append(len(self.widths))
            self.widths.append(0.0)
        ends = [wire.source, *points, wire.target]
        for above, below in pairwise(ends):
            leaves = wire.leaves if above == wire.source else 0
            enters = wire.enters if below == wire.target else 0
            self._links.append(_Link(above, below, leaves, enters))
        return tuple(points)

    def untangle(self) -> None:
        """Sort each row by the mean of its points' neighbours, in sweeps up and down, and keep the
        order with the fewest crossings."""
        best, fewest = [row[:] for row in self._rows], self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            upwards = sweep % 2 == 0
            for row in reversed(self._rows) if upwards else self._rows:
                ranks = self._ranks()
                row.sort(key=lambda point: self._mean(point, ranks, upwards=upwards))
            if (crossings := self._crossings()) < fewest:
                best, fewest = [row[:] for row in self._rows], crossings
        self._rows = best

    def _ranks(self) -> dict[int, float]:
        """Positions that depend on the order in a row only."""
        return {point: 1e3 * place for row in self._rows for place, point in enumerate(row)}

    def _mean(self, point: int, places: Mapping[int, float], *, upwards: bool) -> float:
        """The mean of the positions that the neighbours below (or above) give a point; its own
        position if it has none."""
        if upwards:
            links = self._below.get(point, [])
            wanted = [places[i.below] + i.enters - i.leaves for i in links]
        else:
            links = self._above.get(point, [])
            wanted = [places[i.above] + i.leaves - i.enters for i in links]
        return sum(wanted) / len(wanted) if wanted else places[point]

    def _crossings(self) -> int:
        """The number of pairs of links that cross."""
        ranks = self._ranks()
        row_of = {point: number for number, row in enumerate(self._rows) for point in row}
        ends: dict[int, list[tuple[float, float]]] = {}
        for i in self._links:
            pair = ranks[i.above] + i.leaves, ranks[i.below] + i.enters
            ends.setdefault(row_of[i.above], []).append(pair)
        total = 0
        for pairs in ends.values():
            above, below = np.array(pairs).T
            apart = (above[:, None] - above) * (below[:, None] - below)
            total += int(np.count_nonzero(apart < 0)) // 2
        return total

    def places(self) -> list[float]:
        """The position of the middle of every point."""
        places: dict[int, float] = {}
        for row in self._rows:
            places.update(zip(row, self._spread(row, [0.0] * len(row)), strict=True))
        for sweep in range(SWEEPS):
            upwards = sweep % 2 == 1
            for row in reversed(self._rows) if upwards else self._rows:
                wanted = [self._mean(point, places, upwards=upwards) for point in row]
                places.update(zip(row, self._spread(row, wanted), strict=True))
        return [places[point] for point in range(len(self.widths))]

    def _spread(self, row: Sequence[int], wanted: Sequence[float]) -> list[float]:
        """The positions nearest to the wanted ones that the order and the widths allow."""
        offsets = [0.0]
        for left, right in pairwise(row):
            apart = (self.widths[left] + self.widths[right]) / 2 + GAP
            offsets.append(offsets[-1] + apart)
        fitted = increasing([w - offset for w, offset in zip(wanted, offsets, strict=False)])
        return [place + offset for place, offset in zip(fitted, offsets, strict=False)]


def _by_use(wires: Sequence[Wire], count: int) -> list[int]:
    """The boxes in depth-first order from those that nothing reads, operands from left to right."""
    operands: dict[int, list[int]] = {}
    for wire in wires:
        operands.setdefault(wire.target, []).append(wire.source)
    read = {wire.source for wire in wires}
    visited: dict[int, None] = {}

    def visit(box: int) -> None:
        if box not in visited:
            visited[box] = None
            for operand in operands.get(box, []):
                visit(operand)

    for box in range(count):
        if box not in read:
            visit(box)
    return list(visited)


def increasing(wanted: Sequence[float]) -> list[float]:
    """The numbers in non-decreasing order with the least squared distance to those wanted."""
    blocks: list[tuple[float, int]] = []
    for value in wanted:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, number = blocks.pop()
            total, count = total + before, count + number
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
