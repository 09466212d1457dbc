"""Compute the device of each block of a tensor, for an operator on a machine view.

Problem: an operator runs as a grid of tasks, and a machine view gives the device of each task.
Which block and which partial of each operand and output does a device then hold? Method: the
position of a task along a grid axis is the position of its block along the dimension that the axis
cuts. Complexity: pieces times axes. Equal layouts are computed once. Exact.

The layout of an operand or output follows from the operator's task grid and its machine view. The
grid has an axis for each index that may be cut, in the order of the local typing, then one for
partials that pass through, then one for copies of the whole.

If a dimension has a halo, a piece is a block together with its halo. Only the block itself is sent
to other devices, so that each element comes from one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Signature
from pcg.placement.region import Region
from pcg.placement.view import MachineView
from pcg.types.halo import typing_of
from pcg.types.infer import carriers_of, index_sizes
from pcg.types.local import LocalTyping
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor

_MOST_LAYOUTS = 65536
"""The most layouts that are cached."""


class Piece(NamedTuple):
    """Block ``block`` of partial ``partial``."""

    partial: int
    block: tuple[int, ...]


@lru_cache(maxsize=_MOST_LAYOUTS)
def _piece(partial: int, block: tuple[int, ...]) -> Piece:
    """Return one object for equal pieces: thousands of devices have few different pieces."""
    return Piece(partial, block)


class Cells(NamedTuple):
    """The pieces of a layout, as arrays [pieces] and, for blocks, [pieces, rank]."""

    devices: NDArray[np.int64]
    partials: NDArray[np.int64]
    blocks: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Numbers of pieces: equal for equal pieces, ascending by partial and block."""


@dataclass(frozen=True)
class Layout:
    """The piece of a tensor on each device. A device holds at most one."""

    type: ParallelTensor
    pieces: tuple[tuple[int, Piece], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Layouts are keys in all of the search and have many pieces, so the hash is stored.
        return hash((self.type, self.pieces))

    @cached_property
    def cells(self) -> Cells:
        """The pieces as arrays, in the order of ``pieces``."""
        places = [(device, piece.partial, *piece.block) for device, piece in self.pieces]
        table = np.array(places, np.int64).reshape(len(places), 2 + self.type.rank)
        numbers = table[:, 1].copy()
        for dim, degree in enumerate(self.type.degrees.dims):
            numbers = numbers * degree + table[:, 2 + dim]
        return Cells(table[:, 0], table[:, 1], table[:, 2:], numbers)

    @cached_property
    def by_device(self) -> Mapping[int, Piece]:
        return dict(self.pieces)

    @cached_property
    def holders(self) -> Mapping[Piece, tuple[int, ...]]:
        """The devices that hold each piece, in ascending order."""
        holders: dict[Piece, list[int]] = {}
        for device, piece in sorted(self.pieces):
            holders.setdefault(piece, []).append(device)
        return {piece: tuple(devices) for piece, devices in holders.items()}

    @cached_property
    def devices(self) -> tuple[int, ...]:
        return tuple(sorted(device for device, _ in self.pieces))

    def groups(self, size: int) -> frozenset[int]:
        """The numbers of the groups of ``size`` consecutive devices that hold pieces."""
        first, last = self.devices[0] // size, self.devices[-1] // size
        if first == last:
            return frozenset((first,))
        return frozenset(device // size for device in self.devices)

    @cached_property
    def regions(self) -> Mapping[int, Region]:
        """The global indices of each device's piece, halo included."""
        starts, stops = (ends.tolist() for ends in self.bounds(self.cells.blocks))
        spans = (tuple(zip(*ends, strict=True)) for ends in zip(starts, stops, strict=True))
        return dict(zip((device for device, _ in self.pieces), spans, strict=True))

    def bounds(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts and stops of pieces, given their blocks [pieces, rank]. Halos are
        included, within the tensor."""
        length = np.array(self.type.block, np.int64)
        starts, stops = blocks * length, (blocks + 1) * length
        for halo in self.type.degrees.halos:
            dim, (before, after) = halo.dim, halo.widths
            starts[:, dim] = np.maximum(starts[:, dim] - before, 0)
            stops[:, dim] = np.minimum(stops[:, dim] + after, self.type.shape[dim])
        return starts, stops

    @cached_property
    def one_slice(self) -> Layout | None:
        """The layout of one slice as a tensor of its own, or None for a tensor without slices."""
        slices = self.type.degrees.slices
        if prod(slices) == 1:
            return None
        shape = tuple(size // times for size, times in zip(self.type.shape, slices, strict=True))
        degrees = replace(self.type.degrees, slices=(1,) * self.type.rank)
        return Layout(ParallelTensor(shape, degrees), self.pieces)

    @property
    def without_halos(self) -> Layout:
        """The layout of the same blocks without halos."""
        return replace(self, type=self.type.without_halos) if self.type.degrees.halos else self


def grid(node: Node) -> tuple[int, ...]:
    """Return the shape of the task grid of a compute operator or a join."""
    if node.is_join:
        # The first axis is the operand, the others are the pieces of one operand.
        return (2, *_pieces_shape(node.inputs[0].type))
    cuts = tuple(degree for _, degree in _axes(node))
    copies = node.types[0].degrees.copies
    return (*cuts, _passing(node), copies)


def covers(view: MachineView, node: Node) -> bool:
    """Whether a view has devices for all tasks of a node. It may have several devices for each
    task: the last axis may be a multiple of the copies in the grid."""
    *cuts, copies = grid(node)
    shape = view.shape
    return shape[:-1] == tuple(cuts) and len(shape) > len(cuts) and shape[-1] % copies == 0


@lru_cache(maxsize=1 << 12)
def default_layout(tensor: ParallelTensor, start: int = 0) -> Layout:
    """Return the default layout: consecutive devices, blocks slowest, copies fastest."""
    view = MachineView.packed(start, _pieces_shape(tensor))
    tasks = zip(view.devices, view.tasks(), strict=True)
    return Layout(tensor, tuple((device, Piece(task[-2], task[:-2])) for device, task in tasks))


@lru_cache(maxsize=1 << 12)
def relocated(layout: Layout, devices: tuple[int, ...]) -> Layout | None:
    """Return the layout on other devices, or None if their number does not fit. It may be a
    multiple: neighbouring devices then hold different pieces."""
    times, rest = divmod(len(devices), len(layout.pieces))
    if rest or not times:
        return None
    pieces = [piece for _, piece in layout.pieces] * times
    return Layout(layout.type, tuple(zip(devices, pieces, strict=True)))


@lru_cache(maxsize=_MOST_LAYOUTS)
def moved_by(layout: Layout, by: int) -> Layout:
    """Return the layout on devices whose numbers are higher by ``by``, which may be negative. Equal
    layouts become one object."""
    if not by:
        return layout
    made = Layout(layout.type, tuple((device + by, piece) for device, piece in layout.pieces))
    return _interned.setdefault(made, made)


_interned: dict[Layout, Layout] = {}

LayoutOf = Callable[[Node, int, MachineView], Layout]


def _cached(layout_of: LayoutOf) -> LayoutOf:
    """Cache layouts, which depend only on the call and the types of operands. Equal layouts become
    one object, which is faster to compare."""
    layouts: dict[tuple[Signature, int, MachineView], Layout] = {}

    @wraps(layout_of)
    def cached(node: Node, position: int, view: MachineView) -> Layout:
        key = (node.signature, position, view)
        layout = layouts.get(key)
        if layout is None:
            if len(layouts) >= _MOST_LAYOUTS:
                layouts.clear()
                _interned.clear()
            layout = layout_of(node, position, view)
            layout = layouts[key] = _interned.setdefault(layout, layout)
        return layout

    return cached


@_cached
def output_layout(node: Node, port: int, view: MachineView) -> Layout:
    """Return the layout of an output if its operator runs on ``view``."""
    tensor = node.types[port]
    if node.is_join:
        inner = node.inputs[0].type.degrees.partials
        joined = (
            (view.device(task), _piece(task[0] * inner + task[-2], task[1:-2]))
            for task in view.tasks()
        )
        return Layout(tensor, tuple(joined))
    degrees = [degree for _, degree in _axes(node)]
    positions = [axis.outputs[port] for axis in _typing(node).axes]
    pieces: list[tuple[int, Piece]] = []
    for device, task in zip(view.devices, view.tasks(), strict=True):
        partial, block = task[-2], [0] * tensor.rank
        for position, degree, digit in zip(positions, degrees, task, strict=False):
            if position is None:
                partial = partial * degree + digit
            else:
                block[position] = digit
        pieces.append((device, _piece(partial, tuple(block))))
    return Layout(tensor, tuple(pieces))


@_cached
def operand_layout(node: Node, operand: int, view: MachineView) -> Layout:
    """Return the layout of an operand that its operator needs to run on ``view``."""
    tensor = node.inputs[operand].type
    if node.is_join:
        pieces = (
            (view.device(task), _piece(task[-2], task[1:-2]))
            for task in view.tasks()
            if task[0] == operand
        )
        return Layout(tensor, tuple(pieces))
    positions = [axis.operands[operand] for axis in _typing(node).axes]
    carries = operand in carriers_of([value.type.degrees for value in node.inputs])
    placed: list[tuple[int, Piece]] = []
    for device, task in zip(view.devices, view.tasks(), strict=True):
        block = [0] * tensor.rank
        for position, digit in zip(positions, task, strict=False):
            if position is not None:
                block[position] = digit
        placed.append((device, _piece(task[-2] if carries else 0, tuple(block))))
    return Layout(tensor, tuple(placed))


def tasks(node: Node, view: MachineView) -> Iterator[tuple[int, KernelTask]]:
    """Yield the devices of a compute operator, each with its task."""
    call = node.operator_call
    types = [value.type for value in node.inputs]
    sizes = index_sizes(call, types)
    axes = _axes(node)
    for task in view.tasks():
        ranges: dict[str, tuple[int, int]] = {}
        for (name, degree), digit in zip(axes, task, strict=False):
            length = sizes[name] // degree
            ranges[name] = (digit * length, (digit + 1) * length)
        yield view.device(task), KernelTask(call.values, sizes, ranges)


def _pieces_shape(tensor: ParallelTensor) -> tuple[int, ...]:
    d = tensor.degrees
    shape = (*d.dims, d.partials, d.copies)
    assert prod(shape) == tensor.pieces
    return shape


def _typing(node: Node) -> LocalTyping:
    return typing_of(node.operator_call, [value.type for value in node.inputs])


def _axes(node: Node) -> list[tuple[str, int]]:
    """Return the indices of the task grid with their degrees."""
    degrees: list[tuple[str, int]] = []
    for axis in _typing(node).axes:
        operand, position = axis.first_place
        degrees.append((axis.name, node.inputs[operand].type.degrees.dims[position]))
    return degrees


def _passing(node: Node) -> int:
    types = [value.type.degrees for value in node.inputs]
    carriers = carriers_of(types)
    return types[min(carriers)].partials if carriers else 1
