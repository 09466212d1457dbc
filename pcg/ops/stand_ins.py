"""Stand-ins: what a rule writes for any operator that computes element by element.

A rule that is proved with a function of which nothing is known holds for every function. So one
rule about ``pointwise`` covers relu, exp, scale, a user's own activation, and so on; ``pointwise2``
and ``pointwise3`` are the same for two and three operands. Stand-ins occur in rules only: in a
model every operator is one of ``pcg.ops.OPERATORS``, or a torch function that it declares.

Batched functions have stand-ins too, one for each form that occurs (``pcg.graph.slicewise``). There
is no end of these, so they are made when a graph asks for them.
"""

from __future__ import annotations

from pcg.graph.opaque import Batched
from pcg.graph.slicewise import SliceForm
from pcg.language.expr import Access, IndexValue, Max, Sum, walk
from pcg.types.operator import Operator, own

_ONE = Operator("pointwise", "out[i...] = any1(x[i...])")

_TWO = Operator("pointwise2", "out[i...] = any2(x[i...], y[i...])")

_THREE = Operator("pointwise3", "out[i...] = any3(x[i...], y[i...], z[i...])")

STAND_INS: dict[str, Operator] = {operator.name: operator for operator in (_ONE, _TWO, _THREE)}
own(STAND_INS.values())


def is_stand_in(operator: Operator) -> bool:
    """Whether an operator occurs in rules only, in the place of others."""
    return operator.name in STAND_INS or isinstance(operator, SliceForm)


_BY_ARITY = {operator.arity: operator for operator in STAND_INS.values()}


def stand_in(operator: Operator) -> Operator | None:
    """The stand-in that covers an operator: its one output has at each index a function of its
    operands' elements at that index, or it is a batched function. None if there is none, or it
    moves data."""
    if isinstance(operator, Batched):
        return operator.form
    if operator.parallel is not None or operator.template.positions:
        return None
    if len(operator.outputs) != 1 or is_stand_in(operator):
        return None
    if len(operator.runs) != 1:
        return None
    run = operator.runs[0]
    parts = operator.template.placing
    if any([(d.run, d.names) for d in part.dims] != [(True, (run,))] for part in parts):
        return None
    return _BY_ARITY.get(operator.arity) if _is_local(operator) else None


def _is_local(operator: Operator) -> bool:
    """Whether every access is at the output's own index, and the index itself is not a value."""
    equation = operator.instance((2,) * operator.arity, ())
    if equation.bounds:
        return False
    own = tuple(dim.index for dim in equation.outputs[0].dims)
    return all(
        not isinstance(part, (Sum, Max))
        and (not isinstance(part, IndexValue) or part.index.symbols <= set(operator.sizes))
        and (not isinstance(part, Access) or part.index == own)
        for part in walk(equation.outputs[0].body)
    )
