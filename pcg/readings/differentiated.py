"""Find the operands to which gradients go back: those whose elements affect a result.

An operator reads the other operands for their shape only, such as the tensor to whose shape another
one is repeated. They get no gradient, and do not make the result need one.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Node
from pcg.graph.opaque import TorchFunction
from pcg.language.expr import Add, Const, Expr, Mul, accesses
from pcg.types.operator import Call


def differentiated(node: Node) -> frozenset[int]:
    """Return the operands whose values affect an operator's outputs. The others are read for their
    shape only, and get no gradient."""
    # Types are already inferred, however deep the graph is. Ranks would have to be computed.
    return differentiated_by(node.operator_call, tuple(value.type.rank for value in node.inputs))


@lru_cache(maxsize=65536)
def differentiated_by(call: Call, ranks: tuple[int, ...]) -> frozenset[int]:
    """Return the same for a call with operands of such ranks."""
    if isinstance(call.operator, TorchFunction) or call.operator.parallel is not None:
        return frozenset(range(len(ranks)))
    bodies = (reduced(output.body) for output in call.instance(ranks).outputs)
    return frozenset(access.operand for body in bodies for access in accesses(body))


def trained_sources(node: Node) -> list[Node]:
    """Return the nodes to whose values a node's gradient goes back."""
    if node.is_leaf:
        return []
    return [node.inputs[position].node for position in sorted(differentiated(node))]


def reduced(value: Expr) -> Expr:
    """Return the value without terms that are 0 times something."""
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
