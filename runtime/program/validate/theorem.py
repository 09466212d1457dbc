"""Compute the blocks that each task reads and makes, as the typing theorem says.

The theorem (``verifier.trusted.proof.local``) is about a grid of tasks with a digit for each index
of the equation that is cut, one for partials that pass through, and copies. A task computes the
equation with every cut index in its own block, from its own blocks of the operands; an index that
is summed away turns its digit into one of the result's partial. Here the digits become numbers, of
the types of a plan's graph and the machine views, and of nothing that was lowered from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, TypeVar

from pcg.graph.graph import Signature
from pcg.placement.region import Region
from pcg.placement.view import MachineView
from pcg.types.halo import typing_of
from pcg.types.infer import index_sizes, infer
from pcg.types.local import Axis
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor
from runtime.program.validate.content import Place, Places

T = TypeVar("T")
Starts = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Expected:
    """What the theorem asks of one device."""

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    starts: Starts = ()
    task: KernelTask | None = None
    """One that was right, with where its operands start."""
    task_starts: Starts | None = None

    def task_problem(
        self, task: KernelTask, starts: Starts, attributes: Mapping[str, Any]
    ) -> str | None:
        """What is wrong with a task, if anything. One that was right is remembered."""
        if task is self.task and starts is self.task_starts:
            return None
        if dict(task.attributes) != dict(attributes):
            return f"attributes {dict(task.attributes)}, expected {dict(attributes)}"
        if dict(task.sizes) != self.sizes:
            return f"sizes {dict(task.sizes)}, expected {dict(self.sizes)}"
        if dict(task.ranges) != self.ranges:
            return f"works on {_blocks(task.ranges)}, expected {_blocks(self.ranges)}"
        if starts != self.starts:
            return f"operands start at {starts}, expected {self.starts}"
        self.task, self.task_starts = task, starts
        return None


def tasks_of(
    signature: Signature, partials: Sequence[int], view: MachineView, part: int, places: Places
) -> dict[int, Expected]:
    """What each device of a view has to do. ``partials``: of the tensors behind the operands, some
    of which were added up; ``part``: the slice in time. Digits are taken an axis at a time."""
    types, call = signature.operands, signature.call
    typing = typing_of(call, types)
    axes = [(axis, _degree(axis, types)) for axis in typing.axes]
    sizes = index_sizes(call, types)
    digits = tuple(zip(*view.tasks(), strict=True))
    operands = [
        _operands(t, _columns(t.rank, [a.operands[i] for a, _ in axes], digits), digits[-2], p)
        for i, (t, p) in enumerate(zip(types, partials, strict=True))
    ]
    results = [
        _results(t, [a.outputs[i] for a, _ in axes], [d for _, d in axes], digits)
        for i, t in enumerate(infer(call, types))
    ]
    asked = zip(
        view.devices,
        _rows([own.places(places, part) for own in operands], view.size),
        _rows([own.places(places, part) for own in results], view.size),
        _ranges(axes, digits, sizes, types, part),
        strict=True,
    )
    return {
        device: Expected(given, made, sizes, ranges, tuple([place.start for place in given]))
        for device, given, made, ranges in asked
    }


@dataclass
class Columns:
    """What the theorem asks, by rank; None for one that has nothing to do."""

    tasks: list[Expected | None]
    operands: list[list[Place | None]]
    results: list[list[Place | None]]


def columns(tasks: Mapping[int, Expected], ranks: int) -> Columns:
    """Tasks of devices, by rank."""
    given: list[list[Place | None]] = []
    made: list[list[Place | None]] = []
    for device, own in tasks.items():
        if not given and not made:
            given = [[None] * ranks for _ in own.operands]
            made = [[None] * ranks for _ in own.results]
        for column, place in zip((*given, *made), (*own.operands, *own.results), strict=True):
            column[device] = place
    return Columns([tasks.get(rank) for rank in range(ranks)], given, made)


def joined(
    operand: ParallelTensor, partials: int, view: MachineView, which: int, places: Places
) -> dict[int, Expected]:
    """What each device does with operand ``which`` of a join, whose pieces become partials of one
    tensor: those of the first operand, then those of the second."""
    own = [(n, task) for n, task in enumerate(view.tasks()) if task[0] == which]
    if not own:
        return {}
    digits = tuple(zip(*[task for _, task in own], strict=True))
    given = _operands(operand, digits[1:-2], digits[-2], partials)
    made = tuple([which * operand.degrees.partials + sigma for sigma in digits[-2]])
    results = replace(given, first=made, sums=1)
    ends = zip(own, given.places(places, 0), results.places(places, 0), strict=True)
    return {view.devices[n]: Expected((one,), (other,)) for (n, _), one, other in ends}


def _degree(axis: Axis, types: Sequence[ParallelTensor]) -> int:
    return next(
        t.degrees.dims[dim] for t, dim in zip(types, axis.operands, strict=True) if dim is not None
    )


Column = tuple[int, ...]
"""A digit of each task."""


@dataclass(frozen=True)
class Pieces:
    """Which piece of a tensor each task has: partials [first, first + sums), and a block."""

    tensor: ParallelTensor
    first: Column
    sums: int
    block: tuple[Column | None, ...]
    """By dimension; None for one that is not cut."""

    def places(self, places: Places, part: int) -> tuple[Place, ...]:
        """Of a slice in time, the same for tensors alike."""
        key = self, part
        row = places.rows.get(key)
        if row is None:
            regions = regions_of(self.tensor, self.block, part, len(self.first))
            own = zip(self.first, regions, strict=True)
            row = tuple([places.of(at, at + self.sums, where) for at, where in own])
            places.rows[key] = row
        return row


def _columns(
    rank: int, dims: Sequence[int | None], digits: Sequence[Column]
) -> tuple[Column | None, ...]:
    block: list[Column | None] = [None] * rank
    for dim, column in zip(dims, digits, strict=False):
        if dim is not None:
            block[dim] = column
    return tuple(block)


def _operands(
    tensor: ParallelTensor, block: tuple[Column | None, ...], sigma: Column, partials: int
) -> Pieces:
    """Blocks of an operand: each of its partials is the sum of as many of the tensor behind it."""
    own = tensor.degrees.partials
    sums = partials // own
    first = tuple([at * sums for at in sigma]) if own > 1 else (0,) * len(sigma)
    return Pieces(tensor, first, sums, block)


def _results(
    tensor: ParallelTensor,
    dims: Sequence[int | None],
    degrees: Sequence[int],
    digits: Sequence[Column],
) -> Pieces:
    """Blocks of a result: the digit of an index that is summed away is one of its partial."""
    sigma = digits[-2]
    for dim, degree, column in zip(dims, degrees, digits, strict=False):
        if dim is None:
            sigma = tuple([at * degree + digit for at, digit in zip(sigma, column, strict=True)])
    return Pieces(tensor, sigma, 1, _columns(tensor.rank, dims, digits))


def region(tensor: ParallelTensor, block: Sequence[int], part: int) -> Region:
    """The global indices of a block of a slice: slices of a dimension come first, blocks cut each;
    a halo reaches as far as the slice goes."""
    (only,) = regions_of(tensor, [(at,) for at in block], part, 1)
    return only


def regions_of(
    tensor: ParallelTensor, block: Sequence[Column | None], part: int, count: int
) -> list[Region]:
    """The global indices of ``count`` blocks of a slice. ``block``: their digits by dimension."""
    d = tensor.degrees
    widths: dict[int, tuple[int, int]] = {halo.dim: halo.widths for halo in d.halos}
    spans: list[Iterable[tuple[int, int]]] = []
    for dim, (size, cuts, slices, own) in enumerate(
        zip(tensor.shape, d.dims, d.slices, block, strict=True)
    ):
        settled = size, cuts, slices, widths.get(dim)
        if own is None:
            spans.append(repeat(_span(*settled, 0, part), count))
        else:
            known = {at: _span(*settled, at, part) for at in set(own)}
            spans.append([known[at] for at in own])
    return _rows(spans, count)


def _span(
    size: int, cuts: int, slices: int, widths: tuple[int, int] | None, at: int, part: int
) -> tuple[int, int]:
    """A dimension of a region. The sizes and cuts of a model are few."""
    length = size // slices
    first = part * length if slices > 1 else 0
    start, stop = at * (length // cuts), (at + 1) * (length // cuts)
    if widths is not None:
        before, after = widths
        start, stop = max(0, start - before), min(length, stop + after)
    return first + start, first + stop


def _ranges(
    axes: Sequence[tuple[Axis, int]],
    digits: Sequence[Column],
    sizes: Mapping[str, int],
    types: Sequence[ParallelTensor],
    part: int,
) -> list[dict[str, tuple[int, int]]]:
    """The block of each cut index, by task."""
    names = [axis.name for axis, _ in axes]
    columns: list[list[tuple[int, int]]] = []
    for (axis, degree), column in zip(axes, digits, strict=False):
        slices = max(
            t.degrees.slices[dim]
            for t, dim in zip(types, axis.operands, strict=True)
            if dim is not None
        )
        length = sizes[axis.name] // (degree * slices)
        first = part * (sizes[axis.name] // slices) if slices > 1 else 0
        starts = [first + digit * length for digit in column]
        columns.append([(start, start + length) for start in starts])
    return [dict(zip(names, own, strict=True)) for own in _rows(columns, len(digits[-1]))]


def _rows(columns: Sequence[Iterable[T]], count: int) -> list[tuple[T, ...]]:
    """So many rows, of a number of columns that may be 0."""
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _blocks(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}:{stop}" for name, (start, stop) in ranges.items()) or "all"
