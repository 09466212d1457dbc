"""Compute the blocks that each task reads and writes by the typing theorem.

The theorem (``verifier.trusted.proof.local``) is about a grid of tasks. A task has a digit for each
index of the equation that is cut, a digit for partials that pass through, and one for copies. It
computes the equation with every cut index restricted to its own block, from its own blocks of the
operands. The digit of an index that is summed away becomes a digit of the result's partial.

This module evaluates the digits as numbers. It uses only the types of the plan's graph and the
machine views, and nothing that was lowered from them.
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
    """The task of a device that the theorem requires: the places of its operands and results, the
    sizes and ranges of its indices, and the global index of each operand's first element."""

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    starts: Starts = ()
    task: KernelTask | None = None
    """A task of a program that was compared and is right."""
    task_starts: Starts | None = None
    """The starts of that task's operands."""

    def task_problem(
        self, task: KernelTask, starts: Starts, attributes: Mapping[str, Any]
    ) -> str | None:
        """How a task differs from this one. None if it does not; then the task is remembered, so
        that the same object need not be compared again."""
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
    """The expected task of each device of a view, on slice ``part`` in time. ``partials``: those of
    the tensors behind the operands, of which an operand may be a partial sum."""
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
    by_task = zip(
        view.devices,
        _rows([pieces.places(places, part) for pieces in operands], view.size),
        _rows([pieces.places(places, part) for pieces in results], view.size),
        _ranges(axes, digits, sizes, types, part),
        strict=True,
    )
    return {
        device: Expected(reads, writes, sizes, ranges, tuple([place.start for place in reads]))
        for device, reads, writes, ranges in by_task
    }


@dataclass
class Columns:
    """The expected tasks, and the columns of places of each operand and result, by rank. None for a
    rank without a task."""

    tasks: list[Expected | None]
    operands: list[list[Place | None]]
    results: list[list[Place | None]]


def columns(tasks: Mapping[int, Expected], ranks: int) -> Columns:
    """The tasks of ranks 0 to ``ranks`` - 1 as columns."""
    operands: list[list[Place | None]] = []
    results: list[list[Place | None]] = []
    for device, task in tasks.items():
        if not operands and not results:
            operands = [[None] * ranks for _ in task.operands]
            results = [[None] * ranks for _ in task.results]
        columns_and_places = zip(
            (*operands, *results), (*task.operands, *task.results), strict=True
        )
        for column, place in columns_and_places:
            column[device] = place
    return Columns([tasks.get(rank) for rank in range(ranks)], operands, results)


def joined(
    operand: ParallelTensor, partials: int, view: MachineView, index: int, places: Places
) -> dict[int, Expected]:
    """The tasks of a join for its operand number ``index``. The partials of the result are those of
    the first operand, then those of the second."""
    tasks = [(n, task) for n, task in enumerate(view.tasks()) if task[0] == index]
    if not tasks:
        return {}
    digits = tuple(zip(*[task for _, task in tasks], strict=True))
    reads = _operands(operand, digits[1:-2], digits[-2], partials)
    result_partials = tuple([index * operand.degrees.partials + sigma for sigma in digits[-2]])
    writes = replace(reads, first=result_partials, sums=1)
    by_task = zip(tasks, reads.places(places, 0), writes.places(places, 0), strict=True)
    return {view.devices[n]: Expected((read,), (write,)) for (n, _), read, write in by_task}


def _degree(axis: Axis, types: Sequence[ParallelTensor]) -> int:
    return next(
        t.degrees.dims[dim] for t, dim in zip(types, axis.operands, strict=True) if dim is not None
    )


Column = tuple[int, ...]
"""One digit of each task."""


@dataclass(frozen=True)
class TaskPieces:
    """The piece of a tensor that each task has: partials [first, first + sums), and a block."""

    tensor: ParallelTensor
    first: Column
    sums: int
    block: tuple[Column | None, ...]
    """The digits of the block, by dimension. None for a dimension that is not cut."""

    def places(self, places: Places, part: int) -> tuple[Place, ...]:
        """The place of each task's piece on a slice in time."""
        key = self, part
        row = places.rows.get(key)
        if row is None:
            regions = regions_of(self.tensor, self.block, part, len(self.first))
            by_task = zip(self.first, regions, strict=True)
            row = tuple([places.of(first, first + self.sums, where) for first, where in by_task])
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
) -> TaskPieces:
    """The pieces of an operand. Each of its partials is the sum of equally many partials of the
    tensor behind it, which has ``partials``."""
    own_partials = tensor.degrees.partials
    sums = partials // own_partials
    first = tuple([s * sums for s in sigma]) if own_partials > 1 else (0,) * len(sigma)
    return TaskPieces(tensor, first, sums, block)


def _results(
    tensor: ParallelTensor,
    dims: Sequence[int | None],
    degrees: Sequence[int],
    digits: Sequence[Column],
) -> TaskPieces:
    """The pieces of a result. The digit of an index that is summed away becomes a digit of the
    partial."""
    sigma = digits[-2]
    for dim, degree, column in zip(dims, degrees, digits, strict=False):
        if dim is None:
            sigma = tuple([s * degree + digit for s, digit in zip(sigma, column, strict=True)])
    return TaskPieces(tensor, sigma, 1, _columns(tensor.rank, dims, digits))


def region(tensor: ParallelTensor, block: Sequence[int], part: int) -> Region:
    """The global indices of a block of a slice. A dimension is cut in slices first, and each slice
    in blocks. A halo does not reach beyond the slice."""
    (single,) = regions_of(tensor, [(digit,) for digit in block], part, 1)
    return single


def regions_of(
    tensor: ParallelTensor, block: Sequence[Column | None], part: int, count: int
) -> list[Region]:
    """The global indices of ``count`` blocks of a slice. ``block``: their digits, by dimension."""
    d = tensor.degrees
    widths: dict[int, tuple[int, int]] = {halo.dim: halo.widths for halo in d.halos}
    spans: list[Iterable[tuple[int, int]]] = []
    for dim, (size, cuts, slices, column) in enumerate(
        zip(tensor.shape, d.dims, d.slices, block, strict=True)
    ):
        dimension = size, cuts, slices, widths.get(dim)
        if column is None:
            spans.append(repeat(_span(*dimension, 0, part), count))
        else:
            by_digit = {digit: _span(*dimension, digit, part) for digit in set(column)}
            spans.append([by_digit[digit] for digit in column])
    return _rows(spans, count)


def _span(
    size: int, cuts: int, slices: int, widths: tuple[int, int] | None, digit: int, part: int
) -> tuple[int, int]:
    """The indices [start, stop) of a block in one dimension. ``widths``: of a halo, if any."""
    length = size // slices
    first = part * length if slices > 1 else 0
    start, stop = digit * (length // cuts), (digit + 1) * (length // cuts)
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
    """The range [start, stop) of each cut index, by task."""
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
    return [dict(zip(names, row, strict=True)) for row in _rows(columns, len(digits[-1]))]


def _rows(columns: Sequence[Iterable[T]], count: int) -> list[tuple[T, ...]]:
    """The ``count`` rows of some columns. There may be no columns."""
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _blocks(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}:{stop}" for name, (start, stop) in ranges.items()) or "all"
