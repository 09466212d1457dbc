"""Imports FlexFlow's rules: tensors [R, S, C] with degrees, where R is an ordinary dimension.

The imported graphs have no degrees. A side is typed here, and the conditions of its types on sizes
become equations. The values are then those of whole tensors. Partition and combine leave them
unchanged; replicate, reduce and linear are operators of ``pcg.ops.groups``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pcg.graph.graph import apply, tensor
from pcg.language.poly import ONE, Poly
from pcg.ops import algebra, groups
from substitutions.importers import operators
from substitutions.importers.concats import Rescaling, changed
from substitutions.importers.imported import IllTypedError, ImportedCase, ImportedRule
from substitutions.importers.schema import ForeignOperator, ForeignRule, ForeignSide
from substitutions.importers.sizes import (
    KnownSizes,
    equations,
    readable,
    relation,
)
from substitutions.importers.tensors import (
    ForeignAxis,
    ForeignTensor,
    ForeignTensors,
    concatenated,
    elementwise,
    match,
    same_axis,
    split,
)
from verifier.trusted.sizes.sizes import SizeEquation, input_size

N, M, K = Poly.of("|N|"), Poly.of("|M|"), Poly.of("|K|")
"""The sizes that all inputs share: samples, output channels, channels."""

DEGREE = "|D|"
"""The symbol of the degree of every parallel operator, if that is left open."""

RANK = 3


def input_name(op: int) -> str:
    return f"x{-op}" if op >= -3 else f"w{-op - 3}"


def input_shape(op: int) -> tuple[Poly, Poly, Poly]:
    return (ONE, N, K) if op >= -3 else (ONE, M, K)


def import_rule(rule: ForeignRule, *, symbolic: bool) -> ImportedRule:
    """The rule as graphs. ``symbolic``: with one symbolic degree in place of the file's degree.

    Raises IllTypedError if a side has no meaning, or the outputs of the sides have different types.
    """
    degrees = stated_degrees(rule)
    if symbolic and len(degrees) != 1:
        raise IllTypedError(f"{len(degrees)} different degrees, expected one to leave open")
    known = KnownSizes(frozenset({DEGREE}) if symbolic else frozenset())
    importer = _Importer(known, symbolic=symbolic)
    left = importer.side("left", rule.left)
    after_left = _relations(known)
    right = importer.side("right", rule.right)
    match(known, left, right)
    if unbound := rule.right.inputs - rule.left.inputs:
        raise IllTypedError(f"input {max(unbound)} stands on the right side only")
    relations = _relations(known)
    conditions = tuple(
        text for s, text in relations.items() if " = " in text or after_left.get(s) != text
    )
    case = ImportedCase(
        tuple(t.value for t in left),
        tuple(t.value for t in right),
        _size_equations(known, rule.left.inputs | rule.right.inputs),
    )
    degree = DEGREE if symbolic else None
    return ImportedRule(rule.name, rule.source, (case,), degree, degrees, conditions)


def stated_degrees(rule: ForeignRule) -> tuple[int, ...]:
    """The degrees of a rule's parallel operators."""
    degrees = (o.parameters.get(operators.DEGREE) for _, s in rule.sides for o in s.operators)
    return tuple(sorted({degree for degree in degrees if degree is not None}))


def _relations(known: KnownSizes) -> dict[str, str]:
    """The equations of the sizes that the inputs share, as text by symbol."""
    symbols = [size.symbol for size in (N, M, K)]
    pairs = equations(known, [symbol for symbol in symbols if symbol is not None])
    return {str(a): relation(str(a), b) for a, b in pairs}


def _size_equations(known: KnownSizes, inputs: frozenset[int]) -> tuple[SizeEquation, ...]:
    """The equations of the sizes of the inputs, and of the sizes that are products."""
    input_equations = tuple(
        (Poly.of(input_size(input_name(op), dim)), known.resolve(size))
        for op in sorted(inputs, reverse=True)
        for dim, size in enumerate(input_shape(op))
    )
    return (*input_equations, *equations(known, sorted(known.sizes.solved)))


@dataclass(frozen=True)
class _Importer:
    known: KnownSizes
    symbolic: bool

    def side(self, name: str, side: ForeignSide) -> ForeignTensors:
        """Type all operators of a side, and return its mapped outputs."""
        made: dict[int, ForeignTensors] = {}
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

    def partition(
        self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (x,) = inputs
        dim = operator.parameters[operators.PARALLEL_DIM]
        axis = replace(x.axes[dim], degree=x.axes[dim].degree * self.degree(operator))
        self.known.divide(axis.size, axis.degree, "size")
        return (x.with_axis(x.value, dim, axis),)

    def combine(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        (x,) = inputs
        dim = operator.parameters[operators.PARALLEL_DIM]
        degree = x.axes[dim].degree.over(self.degree(operator))
        if degree is None:
            pair = f"{readable(x.axes[dim].degree)} by {readable(self.degree(operator))}"
            raise IllTypedError(f"dimension {dim}: degree {pair}")
        return (x.with_axis(x.value, dim, replace(x.axes[dim], degree=degree)),)

    def replicate(
        self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (x,) = inputs
        dim, degree = operator.parameters[operators.PARALLEL_DIM], self.degree(operator)
        old = x.axes[dim]
        concat = changed(old.concat, Rescaling(degree))
        axis = ForeignAxis(old.size * degree, concat, old.degree * degree)
        value = apply(groups.repeat_each(axis=dim, times=degree), x.value)
        return (x.with_axis(value, dim, axis),)

    def reduce(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        (x,) = inputs
        dim, degree = operator.parameters[operators.PARALLEL_DIM], self.degree(operator)
        old = x.axes[dim]
        size = self.known.divide(old.size, degree, f"size of dimension {dim}")
        left = self._reduced(old.degree, degree)
        axis = ForeignAxis(size, changed(old.concat, Rescaling(degree, divides=True)), left)
        value = apply(groups.sum_groups(axis=dim, times=degree), x.value)
        return (x.with_axis(value, dim, axis),)

    def linear(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        x, w = inputs
        self._check_slices("x", x.axes[0], "w", w.axes[1])
        self._check_slices("w", w.axes[0], "x", x.axes[1])
        same_axis(self.known, x.axes[2], w.axes[2], "channels of x and w")
        shares = x.axes[2].degree
        value = apply(groups.sliced_linear(shares=shares), x.value, w.value)
        if operator.parameters[operators.ACTIVATION]:
            value = apply(algebra.relu(), value)
        return (ForeignTensor(value, (ForeignAxis(shares, degree=shares), x.axes[1], w.axes[1])),)

    def concat(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        return concatenated(self.known, self._axis(operator), inputs)

    def split(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        return split(self.known, self._axis(operator), inputs[0], operator.outputs)

    def elementwise(
        self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        return elementwise(self.known, operator, inputs)

    def relu(self, operator: ForeignOperator, inputs: Sequence[ForeignTensor]) -> ForeignTensors:
        (x,) = inputs
        return (replace(x, value=apply(algebra.relu(), x.value)),)

    def _axis(self, operator: ForeignOperator) -> int:
        rank = operator.parameters.get(operators.NUM_DIM, RANK)
        axis = operator.parameters[operators.AXIS]
        if rank != RANK or axis >= RANK:
            raise IllTypedError(f"dimension {axis} of rank {rank}, but all ranks are {RANK}")
        return axis

    def _check_slices(self, name: str, slices: ForeignAxis, other: str, cut: ForeignAxis) -> None:
        """Check that the R of one operand has a slice for each shard of the other operand. Raises
        IllTypedError."""
        if (slices.size, slices.degree) != (cut.degree, cut.degree):
            have = f"R of {name} has size {readable(slices.size)}, degree {readable(slices.degree)}"
            raise IllTypedError(f"{have}; the cut of {other} has degree {readable(cut.degree)}")

    def _reduced(self, old: Poly, degree: Poly) -> Poly:
        """A degree divided by another, but at least 1. Raises IllTypedError if the quotient is no
        integer."""
        if (exact := old.over(degree)) is not None:
            return exact
        a, b = old.constant, degree.constant
        if old == ONE or (a is not None and b is not None and a < b):
            return ONE
        raise IllTypedError(f"degree {readable(old)} by {readable(degree)}")


def _input(op: int) -> ForeignTensor:
    axes = tuple(ForeignAxis(size) for size in input_shape(op))
    return ForeignTensor(tensor(input_name(op), RANK), axes)


_Reader = Callable[[_Importer, ForeignOperator, Sequence[ForeignTensor]], ForeignTensors]

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
