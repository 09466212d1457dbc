"""Which products may leave the gradient of their weight for later.

The backward pass of a product of two tensors is two products, one for each. Others wait for the
gradient of the one that is computed, and nothing but the update for that of a weight. So the first
may come first, and what is sent of it be under way while the second is computed (Narayanan et al.,
Megatron-LM; a zero-bubble schedule, Qi et al., ICLR 2024, parts them further). Only where an
equation is nothing but a sum of products of two operands' elements is there nothing that both
gradients would share.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Node
from pcg.language.expr import Access, Expr, Mul, Sum
from pcg.readings.kind import ATTENTION, call_kind
from pcg.types.operator import Call

BOTH = frozenset({0, 1})


def parts_gradients(node: Node, needs: frozenset[int]) -> bool:
    """Whether an operator is a product of two operands that both get gradients, by a product each.
    ``needs``: the operands that get one."""
    if needs != BOTH or len(node.inputs) != 2:
        return False
    ranks = tuple(value.rank for value in node.inputs)
    return is_plain_product(node.operator_call, ranks)


@lru_cache(maxsize=4096)
def is_plain_product(call: Call, ranks: tuple[int, ...]) -> bool:
    """Whether a call adds up products of an element of each of two operands, and does no more."""
    if call.operator.name in ATTENTION or call_kind(call, ranks) != "contraction":
        return False
    outputs = call.instance(ranks).outputs
    if len(outputs) != 1:
        return False
    body: Expr = outputs[0].body
    while isinstance(body, Sum):
        body = body.body
    if not isinstance(body, Mul) or not all(isinstance(f, Access) for f in body.factors):
        return False
    return sorted(f.operand for f in body.factors if isinstance(f, Access)) == [0, 1]
