"""The tensors of a foreign rule during import, and the operators that both systems share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pcg.graph.graph import Value, apply, tensor
from pcg.language.poly import ONE, Poly
from pcg.ops import algebra, reindexing
from pcg.ops.elementwise import sigmoid, tanh
from pcg.types.operator import Call
from substitutions.importers import operators
from substitutions.importers.concats import Concat, common, pieces
from substitutions.importers.imported import IllTypedError
from substitutions.importers.schema import ForeignOperator
from substitutions.importers.sizes import KnownSizes, readable
from substitutions.importers.windows import SAME, ForeignWindows
from verifier.trusted.sizes.sizes import input_size

ACTIVATIONS: Mapping[int, Call] = {
    1: sigmoid(),
    2: algebra.relu(),
    3: tanh(),
}
"""The activation for each value of PM_ACTI; 0 means none."""


@dataclass(frozen=True)
class ForeignAxis:
    """A dimension: its size, the last concat along it, and, in FlexFlow, its degree."""

    size: Poly
    concat: Concat | None = None
    degree: Poly = ONE


@dataclass(frozen=True)
class ForeignTensor:
    """A value, with its dimensions."""

    value: Value
    axes: tuple[ForeignAxis, ...]

    @property
    def rank(self) -> int:
        return len(self.axes)

    def with_axis(self, value: Value, dim: int, axis: ForeignAxis) -> ForeignTensor:
        """The tensor with another value and another axis at ``dim``."""
        return ForeignTensor(value, (*self.axes[:dim], axis, *self.axes[dim + 1 :]))


ForeignTensors = tuple[ForeignTensor, ...]


def input_name(op: int) -> str:
    for first, name in ((-1, "x"), (-4, "w"), (-7, "i"), (-10, "k")):
        last = first - (9 if name == "k" else 2)
        if last <= op <= first:
            return f"{name}{first - op + 1}"
    return "s"


def input_tensor(op: int, rank: int) -> ForeignTensor:
    name = input_name(op)
    axes = tuple(ForeignAxis(Poly.of(input_size(name, dim))) for dim in range(rank))
    return ForeignTensor(tensor(name, rank), axes)


def constant(call: Call, *sizes: Poly) -> ForeignTensor:
    return ForeignTensor(apply(call), tuple(ForeignAxis(size) for size in sizes))


def match(known: KnownSizes, left: Sequence[ForeignTensor], right: Sequence[ForeignTensor]) -> None:
    """Demand that paired outputs have equal types. Raises IllTypedError."""
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.rank != b.rank:
            problem = f"rank {a.rank} on the left, {b.rank} on the right"
            raise IllTypedError(f"output {number}: {problem}")
        for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
            what = f"output {number}, dimension {dim}"
            if x.degree != y.degree:
                pair = f"{readable(x.degree)} on the left, {readable(y.degree)} on the right"
                raise IllTypedError(f"{what}: degree {pair}")
            known.equal(x.size, y.size, f"{what}: size")


def same_axis(
    known: KnownSizes, a: ForeignAxis, b: ForeignAxis, what: str, *, size: bool = True
) -> None:
    """Demand that degrees and, with ``size``, sizes are equal. Raises IllTypedError."""
    if a.degree != b.degree:
        pair = f"degree {readable(a.degree)} against {readable(b.degree)}"
        raise IllTypedError(f"{what}: {pair}")
    if size:
        known.equal(a.size, b.size, f"{what}: size")


def alike(
    known: KnownSizes, x: ForeignTensor, y: ForeignTensor, free: int | None = None
) -> ForeignTensor:
    """``x``, with the demand that its ranks, degrees and sizes are those of ``y``, except for the
    size of dimension ``free``. Raises IllTypedError."""
    if x.rank != y.rank:
        raise IllTypedError(f"ranks {x.rank} and {y.rank}")
    axes: list[ForeignAxis] = []
    for dim, (a, b) in enumerate(zip(x.axes, y.axes, strict=True)):
        same_axis(known, a, b, f"dimension {dim}", size=dim != free)
        axes.append(replace(a, concat=common(known, a.concat, b.concat)))
    return ForeignTensor(x.value, tuple(axes))


def elementwise(
    known: KnownSizes, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
) -> ForeignTensors:
    """The element-wise sum or product of two tensors."""
    x, y = inputs
    call = algebra.add() if operator.name == "OP_EW_ADD" else algebra.multiply()
    return (replace(alike(known, x, y), value=apply(call, x.value, y.value)),)


def concatenated(known: KnownSizes, dim: int, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
    """The tensors concatenated along a dimension."""
    x = inputs[0]
    for y in inputs[1:]:
        size = x.axes[dim].size + y.axes[dim].size
        value = apply(reindexing.concat(axis=dim), x.value, y.value)
        x = alike(known, x, y, dim).with_axis(value, dim, replace(x.axes[dim], size=size))
    parts = Concat(tuple((t.axes[dim].size, t.axes[dim].concat) for t in inputs))
    return (x.with_axis(x.value, dim, replace(x.axes[dim], concat=parts)),)


def split(known: KnownSizes, dim: int, x: ForeignTensor, count: int) -> ForeignTensors:
    """The pieces of the last concat along a dimension, each demanded to be a multiple of the
    degree."""
    parts = pieces(known, x.axes[dim].concat, count)
    rest, made = x.value, list[ForeignTensor]()
    for size, concat in parts:
        piece = replace(x.axes[dim], size=size, concat=concat)
        known.divide(size, piece.degree, "size")
        value = rest
        if len(made) < len(parts) - 1:
            value = apply(reindexing.split(axis=dim, at=known.resolve(size)), rest)
            rest = value.node.value(1)
        made.append(x.with_axis(value, dim, piece))
    return tuple(made)


def activated(operator: ForeignOperator, value: Value) -> Value:
    kind = operator.parameters.get(operators.ACTIVATION, 0)
    return apply(ACTIVATIONS[kind], value) if kind else value


def check_ranks(inputs: Sequence[ForeignTensor], rank: int) -> None:
    for x in inputs:
        if x.rank != rank:
            raise IllTypedError(f"an input of rank {x.rank}, expected {rank}")


def axis_of(operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> int:
    rank, axis = inputs[0].rank, operator.parameters[operators.AXIS]
    if operator.parameters.get(operators.NUM_DIM, rank) != rank or axis >= rank:
        raise IllTypedError(f"dimension {axis} of an input of rank {rank}")
    return axis


def permutation(operator: ForeignOperator, rank: int) -> tuple[int, ...]:
    """The order of dimensions that PM_PERM encodes: its digits to the base of the rank."""
    code, order = operator.parameters[operators.PERMUTATION], list[int]()
    for _ in range(rank):
        order.insert(0, code % rank)
        code //= rank
    if code or sorted(order) != list(range(rank)):
        given = operator.parameters[operators.PERMUTATION]
        raise IllTypedError(f"{operators.PERMUTATION} {given} is no order of {rank} dimensions")
    return tuple(order)


def placed(
    operator: ForeignOperator, found: tuple[ForeignWindows, ForeignWindows]
) -> dict[str, Poly | int]:
    """The attributes of a windowed operator that place its windows."""
    rows, columns = found
    return {
        "height": rows.count,
        "width": columns.count,
        "stride_h": operator.parameters[operators.STRIDES[0]],
        "stride_w": operator.parameters[operators.STRIDES[1]],
        "top": rows.before,
        "left": columns.before,
    }


def slid(
    operator: ForeignOperator, x: ForeignTensor, found: tuple[ForeignWindows, ForeignWindows]
) -> tuple[ForeignAxis, ...]:
    """The rows and columns of a windowed operator's output. If they are those of ``x``, they keep
    the concats of ``x``."""
    same = operator.parameters[operators.PADDING] == SAME
    return tuple(
        ForeignAxis(
            windows.count, axis.concat if same and operator.parameters[stride] == 1 else None
        )
        for windows, axis, stride in zip(found, x.axes[2:], operators.STRIDES, strict=True)
    )
