"""Stand-ins: the operators of rules that hold for any element-wise operator.

A rule proved with an unknown function holds for every function. So a rule about ``pointwise``
covers relu, exp, scale, a user's own activation, and so on. ``pointwise2`` and ``pointwise3`` are
the same for two and three operands. Stand-ins occur only in rules. In a model, every operator is
one of ``pcg.ops.OPERATORS`` or a declared torch function.

Batched functions have stand-ins too, one for each form (``pcg.graph.slicewise``). There are
infinitely many forms, so these are made on demand.
"""

from __future__ import annotations

from pcg.graph.opaque import Batched
from pcg.graph.slicewise import SliceForm
from pcg.language.expr import Access, IndexValue, Max, Sum, walk
from pcg.types.operator import Operator, register_operators

_ONE = Operator("pointwise", "out[i...] = any1(x[i...])")

_TWO = Operator("pointwise2", "out[i...] = any2(x[i...], y[i...])")

_THREE = Operator("pointwise3", "out[i...] = any3(x[i...], y[i...], z[i...])")

STAND_INS: dict[str, Operator] = {operator.name: operator for operator in (_ONE, _TWO, _THREE)}
register_operators(STAND_INS.values())


def is_stand_in(operator: Operator) -> bool:
    """Whether an operator occurs only in rules, in the place of others."""
    return operator.name in STAND_INS or isinstance(operator, SliceForm)


_BY_ARITY = {operator.arity: operator for operator in STAND_INS.values()}


def stand_in(operator: Operator) -> Operator | None:
    """Return the stand-in that covers an operator, or None.

    A stand-in covers batched functions, and operators with one output whose elements are functions
    of the operands' elements at the same index.
    """
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
    """Whether every access is at the output's own index, and no index is used as a value."""
    equation = operator.instance((2,) * operator.arity, ())
    if equation.bounds:
        return False
    output_index = tuple(dim.index for dim in equation.outputs[0].dims)
    return all(
        not isinstance(part, (Sum, Max))
        and (not isinstance(part, IndexValue) or part.index.symbols <= set(operator.sizes))
        and (not isinstance(part, Access) or part.index == output_index)
        for part in walk(equation.outputs[0].body)
    )
