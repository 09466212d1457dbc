"""Tensors of TASO's rules while they are imported, and the parameters of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.graph.graph import Value, apply, tensor
from pcg.language.poly import Poly
from pcg.ops import algebra, elementwise
from pcg.types.operator import Call
from substitutions.importers import operators
from substitutions.importers.concats import Concat
from substitutions.importers.imported import IllTypedError
from substitutions.importers.schema import ForeignOperator
from substitutions.importers.windows import SAME, Windows
from verifier.trusted.sizes.sizes import input_size

ACTIVATIONS: Mapping[int, Call] = {
    1: elementwise.sigmoid(),
    2: algebra.relu(),
    3: elementwise.tanh(),
}
"""By the values of PM_ACTI; 0 is none."""


@dataclass(frozen=True)
class Axis:
    """A dimension: its size, and the last concat along it."""

    size: Poly
    concat: Concat | None = None


@dataclass(frozen=True)
class Tensor:
    value: Value
    axes: tuple[Axis, ...]

    @property
    def rank(self) -> int:
        return len(self.axes)


Made = tuple[Tensor, ...]


def input_name(op: int) -> str:
    for first, name in ((-1, "x"), (-4, "w"), (-7, "i"), (-10, "k")):
        last = first - (9 if name == "k" else 2)
        if last <= op <= first:
            return f"{name}{first - op + 1}"
    return "s"


def input_tensor(op: int, rank: int) -> Tensor:
    name = input_name(op)
    axes = tuple(Axis(Poly.of(input_size(name, dim))) for dim in range(rank))
    return Tensor(tensor(name, rank), axes)


def constant(call: Call, *sizes: Poly) -> Tensor:
    return Tensor(apply(call), tuple(Axis(size) for size in sizes))


def with_axis(x: Tensor, dim: int, axis: Axis) -> Tensor:
    return Tensor(x.value, (*x.axes[:dim], axis, *x.axes[dim + 1 :]))


def activated(operator: ForeignOperator, value: Value) -> Value:
    kind = operator.parameters.get(operators.ACTIVATION, 0)
    return apply(ACTIVATIONS[kind], value) if kind else value


def check_ranks(inputs: Sequence[Tensor], rank: int) -> None:
    for x in inputs:
        if x.rank != rank:
            raise IllTypedError(f"an input of rank {x.rank}, expected {rank}")


def axis_of(operator: ForeignOperator, inputs: Sequence[Tensor]) -> int:
    rank, axis = inputs[0].rank, operator.parameters[operators.AXIS]
    if operator.parameters.get(operators.NUM_DIM, rank) != rank or axis >= rank:
        raise IllTypedError(f"dimension {axis} of an input of rank {rank}")
    return axis


def permutation(operator: ForeignOperator, rank: int) -> tuple[int, ...]:
    """The order of the dimensions that PM_PERM stands for: its digits to the base of the rank."""
    code, order = operator.parameters[operators.PERMUTATION], list[int]()
    for _ in range(rank):
        order.insert(0, code % rank)
        code //= rank
    if code or sorted(order) != list(range(rank)):
        given = operator.parameters[operators.PERMUTATION]
        raise IllTypedError(f"{operators.PERMUTATION} {given} is no order of {rank} dimensions")
    return tuple(order)


def placed(operator: ForeignOperator, found: tuple[Windows, Windows]) -> dict[str, Poly | int]:
    """The attributes of a windowed operator that say where its windows are."""
    rows, columns = found
    return {
        "height": rows.count,
        "width": columns.count,
        "stride_h": operator.parameters[operators.STRIDES[0]],
        "stride_w": operator.parameters[operators.STRIDES[1]],
        "top": rows.before,
        "left": columns.before,
    }


def slid(operator: ForeignOperator, x: Tensor, found: tuple[Windows, Windows]) -> tuple[Axis, ...]:
    """The rows and columns of what windows give; where these are those of ``x``, it is joined
    where ``x`` is."""
    same = operator.parameters[operators.PADDING] == SAME
    return tuple(
        Axis(windows.count, axis.concat if same and operator.parameters[stride] == 1 else None)
        for windows, axis, stride in zip(found, x.axes[2:], operators.STRIDES, strict=True)
    )
