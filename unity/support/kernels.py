"""Compares kernels of a user's operators with their equations, at random small shapes.

Values and gradients are compared in float64: on whole operands, and on the second half of each
index that may be cut, because the runtime gives a kernel such blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from random import Random
from typing import cast

import torch
from torch import Tensor

from pcg.errors import OperatorError
from pcg.language.equation import Equation
from pcg.language.expr import Access, Apply, IndexValue, Max, Sum, walk
from pcg.language.poly import Poly
from pcg.types.infer import bind_sizes, output_shapes
from pcg.types.local import Axis
from pcg.types.operator import Attribute, Call, Operator
from pcg.types.task import KernelTask
from runtime.execute.kernels import run_equation, run_task
from runtime.execute.precision import in_float64
from substitutions.generate.algebra.enumerate import RankedCall, instances

MAX_INSTANCES = 8
"""The most combinations of ranks that are tried."""
MAX_RANK = 4
"""The largest rank of operands that is tried."""
MAX_SIZE = 4
MAX_ATTRIBUTE = 3
MODES = ((True, False), (False, False), (True, True))
"""Whether operands hold negative numbers too, and whether real attributes are negative."""
DRAWS = 400
"""The most draws of sizes and attributes for a mode, to find some that fit."""
TRIES = 8
"""The most fitting draws that are tried, to find one with finite values."""
TOLERANCE = 1e-9
"""The relative and absolute tolerance, in float64."""


class _DisagreesError(Exception):
    """A kernel does not compute its equation. The text says where."""


class _RaisesError(_DisagreesError):
    """A kernel raises an error."""


@dataclass(frozen=True)
class _Sample:
    """A task of a call, with the shapes and first elements of its blocks.

    ``below``: for operands that hold indices, the bound of these indices. ``signed``: whether other
    operands hold negative numbers too, for which some equations have no value.
    """

    call: Call
    task: KernelTask
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[tuple[int, ...], ...]
    below: Mapping[int, int]
    signed: bool
    part: str
    """The description of this part of the operands; empty for whole operands."""

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        given = ", ".join(f"{name}={value}" for name, value in self.call.attributes)
        parts = [f"on shapes {shapes}" if shapes else "", f"with {given}" if given else ""]
        parts += [f"({self.part})"] if self.part else []
        return " ".join(part for part in parts if part)


def kernel_problem(operator: Operator) -> str | None:
    """Return what is wrong with an operator's kernel; None if nothing is found."""
    rng, generator = Random(0), torch.Generator().manual_seed(0)
    with in_float64():
        for instance in _instances(operator):
            try:
                agreed = _compare_at(instance, rng, generator)
            except _DisagreesError as error:
                return str(error)
            if not agreed:
                ranks = ", ".join(map(str, instance.ranks))
                problem = "no small sizes and attributes give its equation a value"
                return f"its kernel cannot be compared: {problem} at ranks {ranks}"
    return None


def _instances(operator: Operator) -> list[RankedCall]:
    """Return calls of an operator at several ranks, the smallest first."""
    if not operator.arity:
        return [RankedCall(operator(**dict.fromkeys(operator.attributes, 1)), (), ())]
    ranked = sorted(instances(operator, MAX_RANK), key=lambda instance: sum(instance.ranks))
    return ranked[:MAX_INSTANCES]


def _compare_at(instance: RankedCall, rng: Random, generator: torch.Generator) -> bool:
    """Whether the kernel was compared on some whole operands. Raises if it disagrees."""
    call = instance.call
    typing = call.typing(instance.ranks)
    whole = _compare_on(instance, None, rng, generator)
    for axis in typing.axes:
        _compare_on(instance, axis, rng, generator)
    return whole


def _compare_on(
    instance: RankedCall, cut: Axis | None, rng: Random, generator: torch.Generator
) -> bool:
    """Whether the kernel agrees with the equation on a sample with this cut."""
    refused: _RaisesError | None = None
    agreed = False
    for signed, negative in MODES:
        drawn = (_sample(instance, cut, rng, signed, negative) for _ in range(DRAWS))
        fitting = (sample for sample in drawn if sample is not None)
        for sample in islice(fitting, TRIES):
            try:
                compared = _compare(sample, generator)
            except _RaisesError as error:
                if not sample.call.operator.sizes:
                    raise
                # A kernel may refuse useless attributes, such as a stride of 0, but not all.
                refused = error
                continue
            if compared:
                agreed = True
                break
    if refused is not None and not agreed:
        raise refused
    return agreed


def _sample(
    instance: RankedCall, cut: Axis | None, rng: Random, signed: bool, negative: bool
) -> _Sample | None:
    """Return a random sample; None if the drawn sizes or attributes do not fit."""
    equation = instance.call.instance(instance.ranks)
    drawn = _index_sizes(equation, cut, rng)
    call = _attributed(instance.call, equation, drawn, rng, negative)
    shapes = tuple(
        tuple(prod(drawn[name] for name in dim.names) for dim in operand.dims)
        for operand in equation.operands
    )
    try:
        sizes = bind_sizes(call, equation, shapes)
        output_shapes(call, equation, sizes)
    except OperatorError:
        return None
    named = {name[1:-1]: size for name, size in sizes.items() if name.startswith("|")}
    if min((*named.values(), *_reduced(equation, sizes)), default=1) < 1:
        return None
    below = _index_operands(equation, sizes)
    starts = tuple((0,) * len(shape) for shape in shapes)
    if cut is None:
        return _Sample(call, KernelTask(call.values, named, {}), shapes, starts, below, signed, "")
    half, odd = divmod(named[cut.name], 2)
    if odd:
        return None
    task = KernelTask(call.values, named, {cut.name: (half, 2 * half)})
    shapes, starts = _second_half(shapes, cut)
    part = f"the second half of index {cut.name}"
    return _Sample(call, task, shapes, starts, below, signed, part)


def _reduced(equation: Equation, sizes: Mapping[str, int]) -> list[int]:
    """Return the sizes of the indices of sums and maxima."""
    parts = (part for output in equation.outputs for part in walk(output.body))
    return [part.size.evaluate(sizes) for part in parts if isinstance(part, (Sum, Max))]


def _index_sizes(equation: Equation, cut: Axis | None, rng: Random) -> dict[str, int]:
    """Draw sizes for the indices of operands. The size of a cut index is even."""
    stated = {name: bound.constant for name, bound in equation.bounds}
    names = {name for operand in equation.operands for dim in operand.dims for name in dim.names}
    sizes: dict[str, int] = {}
    for name in sorted(names):
        fixed = stated.get(name)
        sizes[name] = rng.randint(1, MAX_SIZE) if fixed is None else fixed
        if cut is not None and name == cut.name and fixed is None:
            sizes[name] = 2 * rng.randint(1, MAX_SIZE // 2)
    return sizes


def _attributed(
    call: Call, equation: Equation, drawn: Mapping[str, int], rng: Random, negative: bool
) -> Call:
    """Return the call with values for its sizes and reals. A size of an index of an operand is
    given. Others are drawn, now and then as 0."""
    stated = {bound: drawn[name] for name, bound in equation.bounds if name in drawn}
    given: dict[str, Attribute] = call.values
    for name in call.operator.sizes:
        free = rng.choice((0, *range(1, MAX_ATTRIBUTE + 1), *range(1, MAX_ATTRIBUTE + 1)))
        given[name] = stated.get(Poly.of(name), free)
    for name in call.operator.reals:
        given[name] = round(rng.uniform(0.1, 2.0), 2) * (-1 if negative else 1)
    return call.operator(**given)


def _index_operands(equation: Equation, sizes: Mapping[str, int]) -> dict[int, int]:
    """Return the operands whose elements are compared with ``==``, and a bound of the elements: the
    size of the index that they are compared with, or 2."""
    limits: dict[int, int] = {}
    for part in (part for output in equation.outputs for part in walk(output.body)):
        if not (isinstance(part, Apply) and part.function == "eq"):
            continue
        inner = [i for arg in part.args for i in walk(arg)]
        symbols = {s for i in inner if isinstance(i, IndexValue) for s in i.index.symbols}
        below = max((sizes.get(f"|{symbol}|", 2) for symbol in symbols), default=2)
        limits |= {i.operand: below for i in inner if isinstance(i, Access)}
    return limits


def _second_half(
    shapes: Sequence[tuple[int, ...]], cut: Axis
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the shapes and first elements of the blocks for the second half of an index.

    If the index is the first of a merged dimension, this is the second half of the dimension.
    """
    halves = [
        [size // 2 if position == at else size for position, size in enumerate(shape)]
        for shape, at in zip(shapes, cut.operands, strict=True)
    ]
    starts = [
        [half if position == at else 0 for position, half in enumerate(shape)]
        for shape, at in zip(halves, cut.operands, strict=True)
    ]
    return tuple(map(tuple, halves)), tuple(map(tuple, starts))


def _compare(sample: _Sample, generator: torch.Generator) -> bool:
    """Whether any value is finite. Raises if the kernel disagrees."""
    operands = [_operand(sample, i, generator) for i in range(len(sample.shapes))]
    wanted = run_equation(sample.call, sample.task, operands, sample.starts)
    ours = _run_kernel(sample, operands)
    names = sample.call.operator.outputs
    for name, a, b in zip(names, ours, wanted, strict=True):
        of = f" of {name}" if len(names) > 1 else ""
        _same(sample, f"element {{}}{of}", a, b)
    finite = all(bool(b.isfinite().all()) for b in wanted)
    if finite:
        _compare_gradients(sample, operands, ours, wanted, generator)
    return any(bool(b.isfinite().any()) for b in wanted)


def _operand(sample: _Sample, number: int, generator: torch.Generator) -> Tensor:
    shape = sample.shapes[number]
    if number in sample.below:
        return torch.randint(sample.below[number], shape, generator=generator).double()
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values if sample.signed else values.abs() + 0.1).requires_grad_()


def _run_kernel(sample: _Sample, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    operator = sample.call.operator
    # Copies, because a kernel may write to its operands.
    copies = [operand.clone() for operand in operands]
    try:
        returned = run_task(sample.call, sample.task, copies, sample.starts)
    except Exception as error:
        raise _RaisesError(f"its kernel raises {_text(error)} {sample}") from error
    results = cast(tuple[object, ...], returned)  # a kernel may return anything
    if len(results) != len(operator.outputs):
        problem = f"returns {len(results)} tensors {sample}, expected {len(operator.outputs)}"
        raise _DisagreesError(f"its kernel {problem}")
    tensors = [value for value in results if isinstance(value, Tensor)]
    if len(tensors) < len(results):
        wrong = next(value for value in results if not isinstance(value, Tensor))
        problem = f"returns a {type(wrong).__name__} {sample}, expected a tensor"
        raise _DisagreesError(f"its kernel {problem}")
    return tuple(tensors)


def _text(error: Exception) -> str:
    """Return the type and the first line of an error."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _compare_gradients(
    sample: _Sample,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    wanted: Sequence[Tensor],
    generator: torch.Generator,
) -> None:
    """Compare the gradients of the operands for random gradients of the outputs."""
    sources = [i for i, operand in enumerate(operands) if operand.requires_grad]
    given = [torch.randn(b.shape, generator=generator, dtype=torch.float64) for b in wanted]
    expected = _gradients(operands, sources, wanted, given)
    try:
        ours = _gradients(operands, sources, results, given)
    except Exception as error:
        problem = f"raises {_text(error)} in back-propagation {sample}"
        raise _RaisesError(f"its kernel {problem}") from error
    names = sample.call.operator.operand_names
    for i, a, b in zip(sources, ours, expected, strict=True):
        _same(sample, f"the gradient of {names[i]} at element {{}}", a, b)


def _gradients(
    operands: Sequence[Tensor],
    sources: Sequence[int],
    results: Sequence[Tensor],
    given: Sequence[Tensor],
) -> list[Tensor]:
    """Return the gradients of some operands; zeros if no result depends on one."""
    pairs = [(r, g.to(r.dtype)) for r, g in zip(results, given, strict=True) if r.requires_grad]
    of = [operands[i] for i in sources]
    if not pairs or not of:
        return [torch.zeros_like(operand) for operand in of]
    # Zeros, not None: one side may not know that it does not depend on an operand.
    gradients = torch.autograd.grad(
        [r for r, _ in pairs],
        of,
        [g for _, g in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return list(gradients)


def _same(sample: _Sample, what: str, got: Tensor, wanted: Tensor) -> None:
    """Raise if two tensors differ. ``what``: the description of an element, with ``{}`` for its
    place. If a value of the equation is not finite, the kernel may have any value there."""
    if got.shape != wanted.shape:
        problem = f"shape {list(got.shape)} {sample}, expected {list(wanted.shape)}"
        raise _DisagreesError(f"its kernel returns {problem}")
    ours, theirs = got.detach().double(), wanted.detach().double()
    near = torch.isclose(ours, theirs, TOLERANCE, TOLERANCE) | ~theirs.isfinite()
    if bool(near.all()):
        return
    at = tuple(int(i) for i in (~near).nonzero()[0])
    where = what.format(list(at))
    problem = f"{where} is {float(ours[at]):.10g}, expected {float(theirs[at]):.10g}"
    raise _DisagreesError(f"its kernel disagrees with its equation {sample}: {problem}")
