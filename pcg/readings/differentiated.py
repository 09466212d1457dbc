"""Which operands of an operator gradients go back to: those whose elements matter to a result.

Some operands are read for their shape alone, as by what says how often something is repeated. They
get no gradient, and a result is no more trained for one of them being so.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Node
from pcg.graph.opaque import TorchFunction
from pcg.language.expr import Add, Const, Expr, Mul, accesses
from pcg.types.operator import Call


def differentiated(node: Node) -> frozenset[int]:
    """The operands whose values an operator's outputs depend on: others it reads for their shape
    alone, and no gradient goes back to them."""
    call = node.operator_call
    if isinstance(call.operator, TorchFunction) or call.operator.parallel is not None:
        return frozenset(range(len(node.inputs)))
    # Types are known however deep a graph is; ranks would be asked of all that is below.
    return _differentiated(call, tuple(value.type.rank for value in node.inputs))


@lru_cache(maxsize=65536)
def _differentiated(call: Call, ranks: tuple[int, ...]) -> frozenset[int]:
    bodies = (reduced(output.body) for output in call.instance(ranks).outputs)
    return frozenset(access.operand for body in bodies for access in accesses(body))


def reduced(value: Expr) -> Expr:
    """The value without terms that are 0 times something."""
    match value:
        case Add(terms):
            left = tuple(reduced(term) for term in terms if not _vanishes(term))
            return left[0] if len(left) == 1 else Add(left)
        case _:
            return value


def _vanishes(term: Expr) -> bool:
    return isinstance(term, Mul) and any(
        isinstance(factor, Const) and factor.value == 0 for factor in term.factors
    )
