"""FlexFlow's rules: tensors [R, S, C] with degrees, R an ordinary dimension.

Degrees are no part of the graphs that come out: a side is typed here, and what its types ask of
sizes becomes equations. Its values are then those of whole tensors. Partition and combine leave
them unchanged; replicate, reduce and linear are equations of ``importers.operators``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pcg.graph.graph import Value, apply, tensor
from pcg.language.poly import ONE, Poly
from pcg.ops import algebra, groups, layout
from substitutions.importers import operators
from substitutions.importers.concats import Concat, Step, changed, common, pieces
from substitutions.importers.imported import Case, IllTypedError, Imported
from substitutions.importers.schema import ForeignOperator, ForeignRule, ForeignSide
from substitutions.importers.sizes import (
    Known,
    equations,
    readable,
    relation,
)
from verifier.trusted.sizes.sizes import SizeEquation, input_size

N, M, K = Poly.of("|N|"), Poly.of("|M|"), Poly.of("|K|")
"""The sizes that all inputs share: samples, output channels, channels."""

DEGREE = "|D|"
"""Stands for the degree of every parallel operator where that is left open."""

RANK = 3


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor."""

    size: Poly
    degree: Poly
    concat: Concat | None = None


@dataclass(frozen=True)
class Tensor:
    """A value whose dimensions are R, S and C."""

    value: Value
    axes: tuple[Axis, ...]

    def with_axis(self, value: Value, dim: int, axis: Axis) -> Tensor:
        return Tensor(value, (*self.axes[:dim], axis, *self.axes[dim + 1 :]))


def input_name(op: int) -> str:
    return f"x{-op}" if op >= -3 else f"w{-op - 3}"


def input_shape(op: int) -> tuple[Poly, Poly, Poly]:
    return (ONE, N, K) if op >= -3 else (ONE, M, K)


def import_rule(rule: ForeignRule, *, symbolic: bool) -> Imported:
    """The rule as graphs, for one symbolic degree in place of the file's, or for the file's.

    Raises IllTypedError where a side has no meaning, or the sides' outputs have different types.
    """
    degrees = stated_degrees(rule)
    if symbolic and len(degrees) != 1:
        raise IllTypedError("there is no one degree that could be left open")
    known = Known(frozenset({DEGREE}) if symbolic else frozenset())
    importer = _Importer(known, symbolic=symbolic)
    left = importer.side("left", rule.left)
    after_left = _relations(known)
    right = importer.side("right", rule.right)
    _match(known, left, right)
    if unbound := rule.right.inputs - rule.left.inputs:
        raise IllTypedError(f"input {max(unbound)} stands on the right side only")
    found = _relations(known)
    conditions = tuple(
        text for s, text in found.items() if " = " in text or after_left.get(s) != text
    )
    case = Case(
        tuple(t.value for t in left),
        tuple(t.value for t in right),
        _size_equations(known, rule.left.inputs | rule.right.inputs),
    )
    degree = DEGREE if symbolic else None
    return Imported(rule.name, rule.source, (case,), degree, degrees, conditions)


def stated_degrees(rule: ForeignRule) -> tuple[int, ...]:
    """The degrees of its parallel operators."""
    found = (o.parameters.get(operators.DEGREE) for _, s in rule.sides for o in s.operators)
    return tuple(sorted({degree for degree in found if degree is not None}))


def _relations(known: Known) -> dict[str, str]:
    """What is known of the sizes that the inputs share."""
    symbols = [size.symbol for size in (N, M, K)]
    pairs = equations(known, [symbol for symbol in symbols if symbol is not None])
    return {str(a): relation(str(a), b) for a, b in pairs}


def _size_equations(known: Known, inputs: frozenset[int]) -> tuple[SizeEquation, ...]:
    """The sizes of the inputs, and those of which others are multiples."""
    own = tuple(
        (Poly.of(input_size(input_name(op), dim)), known.resolve(size))
        for op in sorted(inputs, reverse=True)
        for dim, size in enumerate(input_shape(op))
    )
    return (*own, *equations(known, sorted(known.sizes.solved)))


def _match(known: Known, left: Sequence[Tensor], right: Sequence[Tensor]) -> None:
    """Demand that paired outputs have equal types. Raises IllTypedError."""
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
            what = f"output {number}, dimension {dim}"
            if x.degree != y.degree:
                pair = f"{readable(x.degree)} on the left, {readable(y.degree)} on the right"
                raise IllTypedError(f"{what}: degree {pair}")
            known.equal(x.size, y.size, f"{what}: size")


@dataclass(frozen=True)
class _Importer:
    known: Known
    symbolic: bool

    def side(self, name: str, side: ForeignSide) -> tuple[Tensor, ...]:
        """The tensors of a side that are mapped; all its operators are typed."""
        made: dict[int, tuple[Tensor, ...]] = {}
        for number in side.order:
            operator = side.operators[number]
            inputs = [made[r.op][r.port] if r.op >= 0 else _input(r.op) for r in operator.inputs]
            try:
                made[number] = _READERS[operator.name](self, operator, inputs)
            except IllTypedError as error:
                reason = f"operator {number} ({operator.name}): {error.reason}"
                raise IllTypedError(reason, name, error.demand) from None
        return tuple(made[r.op][r.port] for r in side.outputs)

    def degree(self, operator: ForeignOperator) -> Poly:
        return Poly.of(DEGREE if self.symbolic else operator.parameters[operators.DEGREE])

    def _check_divides(self, axis: Axis) -> None:
        self.known.divide(axis.size, axis.degree, "size")

    def partition(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        dim = operator.parameters[operators.PARALLEL_DIM]
        axis = replace(x.axes[dim], degree=x.axes[dim].degree * self.degree(operator))
        self._check_divides(axis)
        return (x.with_axis(x.value, dim, axis),)

    def combine(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        dim = operator.parameters[operators.PARALLEL_DIM]
        degree = x.axes[dim].degree.over(self.degree(operator))
        if degree is None:
            pair = f"{readable(x.axes[dim].degree)} by {readable(self.degree(operator))}"
            raise IllTypedError(f"dimension {dim}: degree {pair}")
        return (x.with_axis(x.value, dim, replace(x.axes[dim], degree=degree)),)

    def replicate(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        dim, degree = operator.parameters[operators.PARALLEL_DIM], self.degree(operator)
        old = x.axes[dim]
        axis = Axis(old.size * degree, old.degree * degree, changed(old.concat, Step(degree)))
        value = apply(groups.repeat_each(axis=dim, times=degree), x.value)
        return (x.with_axis(value, dim, axis),)

    def reduce(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        dim, degree = operator.parameters[operators.PARALLEL_DIM], self.degree(operator)
        old = x.axes[dim]
        size = self.known.divide(old.size, degree, f"size of dimension {dim}")
        left = self._reduced(old.degree, degree)
        axis = Axis(size, left, changed(old.concat, Step(degree, divides=True)))
        value = apply(groups.sum_groups(axis=dim, times=degree), x.value)
        return (x.with_axis(value, dim, axis),)

    def linear(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, w = inputs
        self._check_slices("x", x.axes[0], "w", w.axes[1])
        self._check_slices("w", w.axes[0], "x", x.axes[1])
        self._same(x.axes[2], w.axes[2], "channels of x and w")
        shares = x.axes[2].degree
        value = apply(groups.sliced_linear(shares=shares), x.value, w.value)
        if operator.parameters[operators.ACTIVATION]:
            value = apply(algebra.relu(), value)
        return (Tensor(value, (Axis(shares, shares), x.axes[1], w.axes[1])),)

    def concat(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        dim = self._axis(operator)
        x = inputs[0]
        for y in inputs[1:]:
            size = x.axes[dim].size + y.axes[dim].size
            value = apply(layout.concat(axis=dim), x.value, y.value)
            x = self._alike(x, y, dim).with_axis(value, dim, replace(x.axes[dim], size=size))
        parts = Concat(tuple((t.axes[dim].size, t.axes[dim].concat) for t in inputs))
        return (x.with_axis(x.value, dim, replace(x.axes[dim], concat=parts)),)

    def split(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        dim = self._axis(operator)
        axis = x.axes[dim]
        parts = pieces(self.known, axis.concat, operator.outputs)
        rest, found = x.value, list[Tensor]()
        for size, concat in parts:
            piece = Axis(size, axis.degree, concat)
            self._check_divides(piece)
            value = rest
            if len(found) < len(parts) - 1:
                both = apply(layout.split(axis=dim, at=size), rest)
                value, rest = both, both.node.value(1)
            found.append(x.with_axis(value, dim, piece))
        return tuple(found)

    def elementwise(
        self, operator: ForeignOperator, inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        x, y = inputs
        call = algebra.add() if operator.name == "OP_EW_ADD" else algebra.multiply()
        return (replace(self._alike(x, y), value=apply(call, x.value, y.value)),)

    def relu(self, operator: ForeignOperator, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = inputs
        return (replace(x, value=apply(algebra.relu(), x.value)),)

    def _axis(self, operator: ForeignOperator) -> int:
        rank = operator.parameters.get(operators.NUM_DIM, RANK)
        axis = operator.parameters[operators.AXIS]
        if rank != RANK or axis >= RANK:
            raise IllTypedError(f"dimension {axis} of rank {rank}, but all ranks are {RANK}")
        return axis

    def _alike(self, x: Tensor, y: Tensor, free: int | None = None) -> Tensor:
        """``x``, whose sizes and degrees are those of ``y``, but for the size of ``free``."""
        axes: list[Axis] = []
        for dim, (a, b) in enumerate(zip(x.axes, y.axes, strict=True)):
            self._same(a, b, f"dimension {dim}", size=dim != free)
            axes.append(replace(a, concat=common(self.known, a.concat, b.concat)))
        return Tensor(x.value, tuple(axes))

    def _same(self, a: Axis, b: Axis, what: str, *, size: bool = True) -> None:
        if a.degree != b.degree:
            pair = f"degree {readable(a.degree)} against {readable(b.degree)}"
            raise IllTypedError(f"{what}: {pair}")
        if size:
            self.known.equal(a.size, b.size, f"{what}: size")

    def _check_slices(self, name: str, slices: Axis, other: str, cut: Axis) -> None:
        """Each shard of one operand uses a slice of the other's R."""
        if (slices.size, slices.degree) != (cut.degree, cut.degree):
            have = f"R of {name} has size {readable(slices.size)}, degree {readable(slices.degree)}"
            raise IllTypedError(f"{have}; the cut of {other} has degree {readable(cut.degree)}")

    def _reduced(self, old: Poly, degree: Poly) -> Poly:
        """A degree divided by another, at least 1. Raises IllTypedError if it is not whole."""
        if (exact := old.over(degree)) is not None:
            return exact
        a, b = old.constant, degree.constant
        if old == ONE or (a is not None and b is not None and a < b):
            return ONE
        raise IllTypedError(f"degree {readable(old)} by {readable(degree)}")


def _input(op: int) -> Tensor:
    axes = tuple(Axis(size, ONE) for size in input_shape(op))
    return Tensor(tensor(input_name(op), RANK), axes)


_Reader = Callable[[_Importer, ForeignOperator, Sequence[Tensor]], tuple[Tensor, ...]]

_READERS: Mapping[str, _Reader] = {
    "OP_PARTITION": _Importer.partition,
    "OP_COMBINE": _Importer.combine,
    "OP_REPLICATE": _Importer.replicate,
    "OP_REDUCE": _Importer.reduce,
    "OP_LINEAR": _Importer.linear,
    "OP_CONCAT": _Importer.concat,
    "OP_SPLIT": _Importer.split,
    "OP_EW_ADD": _Importer.elementwise,
    "OP_EW_MUL": _Importer.elementwise,
    "OP_RELU": _Importer.relu,
}
