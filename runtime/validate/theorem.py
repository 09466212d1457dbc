"""Where the typing theorem puts things: the block of each index that a task computes, and the
blocks of operands and results that this takes.

The theorem (``verifier.trusted.local``) is about a grid of tasks with a digit for each index of the
equation that is cut, one for partials that pass through, and copies. A task computes the equation
with every cut index in its own block, from its own blocks of the operands; an index that is summed
away turns its digit into one of the result's partial. Here the digits become numbers, of the
types of a plan's graph and the machine views, and of nothing that was lowered from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pcg.graph import Signature
from pcg.halo import typing_of
from pcg.infer import bind_sizes, infer
from pcg.layout import Region
from pcg.local import Axis
from pcg.task import Task
from pcg.tensor import ParallelTensor
from pcg.view import MachineView
from runtime.validate.content import Place, Places

Starts = tuple[tuple[int, ...], ...]


@dataclass
class Expected:
    """What the theorem asks of one device."""

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    starts: Starts = ()
    _task: Task | None = None
    _starts: Starts | None = None

    def task_problem(self, task: Task, starts: Starts, attributes: Mapping[str, Any]) -> str | None:
        """What is wrong with a task, if anything. One that was right is remembered."""
        if task is self._task and starts is self._starts:
            return None
        if dict(task.attributes) != dict(attributes):
            return f"attributes {dict(task.attributes)}, expected {dict(attributes)}"
        if dict(task.sizes) != self.sizes:
            return f"sizes {dict(task.sizes)}, expected {dict(self.sizes)}"
        if dict(task.ranges) != self.ranges:
            return f"works on {_blocks(task.ranges)}, expected {_blocks(self.ranges)}"
        if starts != self.starts:
            return f"operands start at {starts}, expected {self.starts}"
        self._task, self._starts = task, starts
        return None


def tasks_of(
    signature: Signature, partials: Sequence[int], view: MachineView, part: int, places: Places
) -> dict[int, Expected]:
    """What each device of a view has to do. ``partials``: of the tensors behind the operands, some
    of which were added up; ``part``: the slice in time."""
    types, call = signature.operands, signature.call
    typing = typing_of(call, types)
    axes = [(axis, _degree(axis, types)) for axis in typing.axes]
    equation = call.instance(tuple(t.rank for t in types))
    sizes = bind_sizes(call, equation, [t.shape for t in types])
    sizes = {name[1:-1]: size for name, size in sizes.items() if name.startswith("|")}
    outputs = infer(call, types)
    found: dict[int, Expected] = {}
    for task in view.tasks():
        digits, sigma = task[: len(axes)], task[-2]
        operands = tuple(
            _operand(t, _block(t.rank, [a.operands[i] for a, _ in axes], digits), sigma, p, part)
            for i, (t, p) in enumerate(zip(types, partials, strict=True))
        )
        results = tuple(
            _result(t, [a.outputs[i] for a, _ in axes], [d for _, d in axes], task, part)
            for i, t in enumerate(outputs)
        )
        found[view.device(task)] = Expected(
            tuple(places.of(*own) for own in operands),
            tuple(places.of(*own) for own in results),
            sizes,
            _ranges(axes, digits, sizes, types, part),
            tuple(tuple(start for start, _ in own[2]) for own in operands),
        )
    return found


def joined(
    operand: ParallelTensor, partials: int, view: MachineView, which: int, places: Places
) -> dict[int, Expected]:
    """What each device does with operand ``which`` of a join, whose pieces become partials of one
    tensor: those of the first operand, then those of the second."""
    found: dict[int, Expected] = {}
    for task in view.tasks():
        if task[0] != which:
            continue
        block, sigma = task[1:-2], task[-2]
        given = _operand(operand, block, sigma, partials, 0)
        made = which * operand.degrees.partials + sigma
        result = places.of(made, made + 1, given[2])
        found[view.device(task)] = Expected((places.of(*given),), (result,))
    return found


def _degree(axis: Axis, types: Sequence[ParallelTensor]) -> int:
    return next(
        t.degrees.dims[dim] for t, dim in zip(types, axis.operands, strict=True) if dim is not None
    )


def _block(rank: int, dims: Sequence[int | None], digits: Sequence[int]) -> tuple[int, ...]:
    block = [0] * rank
    for dim, digit in zip(dims, digits, strict=True):
        if dim is not None:
            block[dim] = digit
    return tuple(block)


Given = tuple[int, int, Region]
"""Partials and region."""


def _operand(
    tensor: ParallelTensor, block: Sequence[int], sigma: int, partials: int, part: int
) -> Given:
    """A block of an operand: each of its partials is the sum of as many of the tensor behind it."""
    own = tensor.degrees.partials
    sums, at = partials // own, sigma if own > 1 else 0
    return at * sums, (at + 1) * sums, region(tensor, block, part)


def _result(
    tensor: ParallelTensor,
    dims: Sequence[int | None],
    degrees: Sequence[int],
    task: Sequence[int],
    part: int,
) -> Given:
    sigma = task[-2]
    for dim, degree, digit in zip(dims, degrees, task, strict=False):
        if dim is None:
            sigma = sigma * degree + digit
    block = _block(tensor.rank, dims, task[: len(dims)])
    return sigma, sigma + 1, region(tensor, block, part)


def region(tensor: ParallelTensor, block: Sequence[int], part: int) -> Region:
    """The global indices of a block of a slice: slices of a dimension come first, blocks cut each;
    a halo reaches as far as the slice goes."""
    d = tensor.degrees
    widths: dict[int, tuple[int, int]] = {halo.dim: halo.widths for halo in d.halos}
    return tuple(
        [
            _span(size, cuts, slices, widths.get(dim), at, part)
            for dim, (size, cuts, slices, at) in enumerate(
                zip(tensor.shape, d.dims, d.slices, block, strict=True)
            )
        ]
    )


@lru_cache(maxsize=1 << 16)
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
    digits: Sequence[int],
    sizes: Mapping[str, int],
    types: Sequence[ParallelTensor],
    part: int,
) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for (axis, degree), digit in zip(axes, digits, strict=True):
        slices = max(
            t.degrees.slices[dim]
            for t, dim in zip(types, axis.operands, strict=True)
            if dim is not None
        )
        length = sizes[axis.name] // (degree * slices)
        start = (part * (sizes[axis.name] // slices) if slices > 1 else 0) + digit * length
        found[axis.name] = (start, start + length)
    return found


def _blocks(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}:{stop}" for name, (start, stop) in ranges.items()) or "all"
