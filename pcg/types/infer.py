"""Infer the types of an operator's outputs from those of its operands: shapes, then degrees.

Shapes follow from the equation. Degrees follow from the local typing of a compute operator, or from
the type rule of a parallel operator.

The same function infers degrees in two arithmetics (``Arithmetic``): integers on a graph, where a
mismatch raises an error, and monomials in a proof, where a mismatch is recorded as a condition. The
conditions of halos on sizes are separate: ``pcg.types.halo.demands`` yields them for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeVar

from pcg.errors import OperatorError
from pcg.language.equation import Equation
from pcg.language.poly import Poly
from pcg.types.halo import check_halos, check_widths, halos_after, open_typing
from pcg.types.local import Axis, LocalTyping
from pcg.types.operator import Attribute, Call
from pcg.types.parallel_operators import PARALLEL, ParallelOperator
from pcg.types.tensor import Degrees, ParallelTensor

D = TypeVar("D")


class Arithmetic(Protocol[D]):
    """Positive numbers under multiplication. ``where`` is (operand, dimension), for messages."""

    def of(self, value: Attribute | int) -> D:
        """Return the degree for an attribute or a constant."""
        ...

    def times(self, a: D, b: D) -> D: ...

    def divide(self, a: D, b: D, where: tuple[int, int | None], what: str) -> D:
        """Return a / b, which has to be an integer."""
        ...

    def same(self, a: D, b: D, where: tuple[int, int | None], what: str) -> None:
        """Require a == b."""
        ...


class Integers:
    """Arithmetic of concrete degrees. A mismatch raises OperatorError."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def of(self, value: Attribute | int) -> int:
        degree = value.constant if isinstance(value, Poly) else value
        if not isinstance(degree, int) or degree < 1:
            raise OperatorError(
                self._call.name, "*", None, f"degree {value}, expected a positive integer"
            )
        return degree

    def times(self, a: int, b: int) -> int:
        return a * b

    def divide(self, a: int, b: int, where: tuple[int, int | None], what: str) -> int:
        if a % b:
            self._raise(where, f"{what} {a} cannot be divided by {b}")
        return a // b

    def same(self, a: int, b: int, where: tuple[int, int | None], what: str) -> None:
        if a != b:
            self._raise(where, f"{what} {a}, expected {b}")

    def _raise(self, where: tuple[int, int | None], problem: str) -> None:
        operand, dim = where
        name = self._call.operator.operand_names[operand]
        raise OperatorError(self._call.name, name, dim, problem)


def infer(call: Call, inputs: Sequence[ParallelTensor]) -> tuple[ParallelTensor, ...]:
    """Return the types of the outputs. Raises OperatorError naming operator, operand, dimension."""
    # 2.0 equals 2, but is no valid degree.
    return _infer(call, tuple(inputs), tuple(type(value) for _, value in call.attributes))


@lru_cache(maxsize=65536)
def _infer(
    call: Call, inputs: tuple[ParallelTensor, ...], _attributes: tuple[type, ...]
) -> tuple[ParallelTensor, ...]:
    ranks = tuple(tensor.rank for tensor in inputs)
    equation = call.instance(ranks)
    sizes = bind_sizes(call, equation, [tensor.shape for tensor in inputs])
    shapes = output_shapes(call, equation, sizes)
    operand_degrees = [tensor.degrees for tensor in inputs]
    degrees = infer_degrees(
        call, ranks, operand_degrees, Integers(call), carriers_of(operand_degrees)
    )
    if call.operator.parallel is None:
        halos = [x.halos for x in operand_degrees]
        check_halos(call, halos, [tensor.shape for tensor in inputs], sizes)
        _check_blocks(call, open_typing(call, ranks, halos), operand_degrees, sizes)
    for output in degrees:
        check_widths(call, output.halos)
    outputs = tuple(ParallelTensor(s, d) for s, d in zip(shapes, degrees, strict=True))
    _check_divisible(call, outputs)
    return outputs


def carriers_of(inputs: Sequence[Degrees[int]]) -> frozenset[int]:
    """Return the operands that carry partials."""
    return frozenset(i for i, degrees in enumerate(inputs) if degrees.partials > 1)


def bind_sizes(call: Call, equation: Equation, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return the size of every index, as ``|name|``, and of every size attribute, by its name."""
    sizes = {name: call.integer(name) for name in call.operator.sizes}
    for name, size in sizes.items():
        if size < 0:
            problem = f"attribute {name} is {size}, expected at least 0"
            raise OperatorError(call.name, "*", None, problem)
    for operand, shape in zip(equation.operands, shapes, strict=True):
        for position, (dim, size) in enumerate(zip(operand.dims, shape, strict=True)):
            name, *inner = dim.names
            if inner:
                continue
            known = sizes.setdefault(f"|{name}|", size)
            if known != size:
                problem = f"size {size}, expected {known} (index {name})"
                raise OperatorError(call.name, operand.name, position, problem)
    _divide_merged(call, equation, shapes, sizes)
    for name, bound in equation.bounds:
        sizes[f"|{name}|"] = bound.evaluate(sizes)
    for operand, shape in zip(equation.operands, shapes, strict=True):
        for position, (dim, size) in enumerate(zip(operand.dims, shape, strict=True)):
            if (expected := dim.size.evaluate(sizes)) != size:
                problem = f"size {size}, expected {expected} ({dim.size})"
                raise OperatorError(call.name, operand.name, position, problem)
    return sizes


def index_sizes(call: Call, types: Sequence[ParallelTensor]) -> dict[str, int]:
    """Return the size of every index, by its name, for operands of these types."""
    equation = call.instance(tuple(t.rank for t in types))
    sizes = bind_sizes(call, equation, [t.shape for t in types])
    return {name[1:-1]: size for name, size in sizes.items() if name.startswith("|")}


def _divide_merged(
    call: Call, equation: Equation, shapes: Sequence[tuple[int, ...]], sizes: dict[str, int]
) -> None:
    """Add the sizes that follow from a merged dimension and its other indices to ``sizes``."""
    for name, bound in equation.bounds:
        if bound.symbols <= sizes.keys():
            sizes[f"|{name}|"] = bound.evaluate(sizes)
    for quotient in equation.quotients:
        size = shapes[quotient.operand][quotient.position]
        divisor = quotient.divisor.evaluate(sizes)
        if divisor < 1 or size % divisor:
            operand = equation.operands[quotient.operand].name
            problem = f"size {size}, expected a multiple of {divisor} ({quotient.divisor})"
            raise OperatorError(call.name, operand, quotient.position, problem)
        sizes[f"|{quotient.name}|"] = size // divisor


def output_shapes(
    call: Call, equation: Equation, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the global shapes of the outputs."""
    shapes = tuple(
        tuple(dim.size.evaluate(sizes) for dim in output.dims) for output in equation.outputs
    )
    for output, shape in zip(equation.outputs, shapes, strict=True):
        for position, size in enumerate(shape):
            if size < 1:
                problem = f"size {size}, expected at least 1"
                raise OperatorError(call.name, output.name, position, problem)
    return shapes


def infer_degrees(
    call: Call,
    ranks: tuple[int, ...],
    inputs: Sequence[Degrees[D]],
    arithmetic: Arithmetic[D],
    carriers: frozenset[int],
) -> tuple[Degrees[D], ...]:
    """Return the degrees of the outputs. The operands in ``carriers`` carry partials."""
    kind = call.operator.parallel
    if kind is None:
        return _infer_local(call, ranks, inputs, arithmetic, carriers)
    if kind in PARALLEL:
        degrees = _infer_parallel(call, PARALLEL[kind], inputs[0], arithmetic)
    else:
        degrees = _infer_join(inputs, arithmetic)
    return (replace(degrees, halos=halos_after(call, ranks, [x.halos for x in inputs])),)


def _infer_parallel(
    call: Call, rule: ParallelOperator, x: Degrees[D], arithmetic: Arithmetic[D]
) -> Degrees[D]:
    factor = arithmetic.of(call.values["degree"])

    def changed(degree: D, dim: int | None, what: str) -> D:
        if rule.power == 1:
            return arithmetic.times(degree, factor)
        return arithmetic.divide(degree, factor, (0, dim), what)

    if rule.entry == "copies":
        return replace(x, copies=changed(x.copies, None, "copies"))
    if rule.entry == "partials":
        return replace(x, partials=changed(x.partials, None, "partials"))
    dim = call.integer("dim")
    if not 0 <= dim < len(x.dims):
        problem = f"no such dimension, the rank is {len(x.dims)}"
        raise OperatorError(call.name, "x", dim, problem)
    before = x.dims if rule.entry == "dims" else x.slices
    after = (*before[:dim], changed(before[dim], dim, "degree"), *before[dim + 1 :])
    return replace(x, dims=after) if rule.entry == "dims" else replace(x, slices=after)


def _infer_join(inputs: Sequence[Degrees[D]], arithmetic: Arithmetic[D]) -> Degrees[D]:
    x, y = inputs
    for dim, (a, b) in enumerate(zip(x.dims, y.dims, strict=True)):
        arithmetic.same(b, a, (1, dim), "degree")
    for dim, (a, b) in enumerate(zip(x.slices, y.slices, strict=True)):
        arithmetic.same(b, a, (1, dim), "slices")
    arithmetic.same(y.copies, x.copies, (1, None), "copies")
    arithmetic.same(y.partials, x.partials, (1, None), "partials")
    return replace(x, partials=arithmetic.times(x.partials, arithmetic.of(2)))


def _infer_local(
    call: Call,
    ranks: tuple[int, ...],
    inputs: Sequence[Degrees[D]],
    arithmetic: Arithmetic[D],
    carriers: frozenset[int],
) -> tuple[Degrees[D], ...]:
    """Return the degrees of a compute operator's outputs. Its task grid has an axis for each cut
    index, one for passing partials and one for copies of the whole."""
    typing = open_typing(call, ranks, [x.halos for x in inputs])
    one = arithmetic.of(1)
    _check_uncut(call, typing, inputs, arithmetic)
    passing = _passing_partials(call, typing, inputs, arithmetic, carriers)
    degrees = {a.name: _axis_degree(a, inputs, arithmetic, slices=False) for a in typing.axes}
    slices = {a.name: _axis_degree(a, inputs, arithmetic, slices=True) for a in typing.axes}
    for axis in typing.axes:
        # A window would need the next slice in time too.
        windows = [window for window in typing.windows if window.axis == axis]
        if windows or None in axis.outputs:
            where = axis.first_place
            kind = "window" if windows else "summed"
            arithmetic.same(slices[axis.name], one, where, f"slices of a {kind} index")
    copies: D | None = None
    for i, x in enumerate(inputs):
        used = one if i in carriers else passing
        for axis in typing.axes:
            if axis.operands[i] is None:
                used = arithmetic.times(used, degrees[axis.name])
        shared = arithmetic.divide(x.copies, used, (i, None), "copies")
        if copies is None:
            copies = shared
        else:
            expected = arithmetic.times(copies, used)
            arithmetic.same(x.copies, expected, (i, None), "copies")
    copies = one if copies is None else copies  # a constant lives on one device
    return tuple(
        _output_degrees(typing, output, len(dims), degrees, slices, copies, passing, arithmetic)
        for output, dims in enumerate(o.dims for o in call.instance(ranks).outputs)
    )


def _check_uncut(
    call: Call, typing: LocalTyping, inputs: Sequence[Degrees[D]], arithmetic: Arithmetic[D]
) -> None:
    one = arithmetic.of(1)
    slid = {place for window in typing.windows for place in window.places}
    for i, x in enumerate(inputs):
        for dim in range(len(x.dims)):
            if typing.axis_at(i, dim) is None:
                halo = " without a halo" if (i, dim) in slid else ""
                what = f"{call.name} reads along this dimension, which refuses a cut{halo}: degree"
                arithmetic.same(x.dims[dim], one, (i, dim), what)
                arithmetic.same(x.slices[dim], one, (i, dim), "slices")


def _passing_partials(
    call: Call,
    typing: LocalTyping,
    inputs: Sequence[Degrees[D]],
    arithmetic: Arithmetic[D],
    carriers: frozenset[int],
) -> D:
    """Return the partials that pass through, which are equal on all operands that carry them."""
    one = arithmetic.of(1)
    if carriers and carriers not in typing.carriers:
        names = ", ".join(call.operator.operand_names[i] for i in sorted(carriers))
        problem = "partial sums cannot pass, it is not linear in just these operands"
        raise OperatorError(call.name, names, None, problem)
    passing = inputs[min(carriers)].partials if carriers else one
    for i, x in enumerate(inputs):
        arithmetic.same(x.partials, passing if i in carriers else one, (i, None), "partials")
    return passing


def _axis_degree(
    axis: Axis, inputs: Sequence[Degrees[D]], arithmetic: Arithmetic[D], *, slices: bool
) -> D:
    degree: D | None = None
    for i, position in enumerate(axis.operands):
        if position is None:
            continue
        value = (inputs[i].slices if slices else inputs[i].dims)[position]
        if degree is None:
            degree = value
        else:
            what = f"{'slices' if slices else 'degree'} of index {axis.name}:"
            arithmetic.same(value, degree, (i, position), what)
    assert degree is not None
    return degree


def _output_degrees(
    typing: LocalTyping,
    output: int,
    rank: int,
    degrees: Mapping[str, D],
    slices: Mapping[str, D],
    copies: D,
    partials: D,
    arithmetic: Arithmetic[D],
) -> Degrees[D]:
    one = arithmetic.of(1)
    dims, times = [one] * rank, [one] * rank
    for axis in typing.axes:
        position = axis.outputs[output]
        if position is None:
            partials = arithmetic.times(partials, degrees[axis.name])
        else:
            dims[position], times[position] = degrees[axis.name], slices[axis.name]
    return Degrees(tuple(dims), tuple(times), copies, partials)


def _check_blocks(
    call: Call,
    typing: LocalTyping,
    inputs: Sequence[Degrees[int]],
    sizes: Mapping[str, int],
) -> None:
    """Raise OperatorError unless the leading index of a merged dimension is itself cut evenly."""
    for axis in typing.axes:
        operand, dim = axis.first_place
        cut = inputs[operand].dims[dim] * inputs[operand].slices[dim]
        size = sizes[f"|{axis.name}|"]
        if size % cut:
            problem = f"degree {cut} does not divide size {size} of index {axis.name}"
            name = call.operator.operand_names[operand]
            raise OperatorError(call.name, name, dim, problem)


def _check_divisible(call: Call, outputs: Sequence[ParallelTensor]) -> None:
    for output, name in zip(outputs, call.operator.outputs, strict=True):
        cuts = zip(output.shape, output.degrees.dims, output.degrees.slices, strict=True)
        for dim, (size, degree, slices) in enumerate(cuts):
            if size % (degree * slices):
                problem = f"degree {degree * slices} does not divide size {size}"
                raise OperatorError(call.name, name, dim, problem)
