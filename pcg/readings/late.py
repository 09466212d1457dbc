"""The products that can compute the gradient of their weight late.

The backward pass of a product of two tensors is two products, one for each gradient. Other
operators wait for the gradient of the activation, but only the update waits for that of the weight.
So the first can be communicated while the second is computed (Narayanan et al., Megatron-LM). A
zero-bubble schedule separates them further (Qi et al., ICLR 2024). The equation has to be nothing
but a sum of products of two operands' elements, since the two gradients then share no work.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Node
from pcg.language.expr import Access, Expr, Mul, Sum
from pcg.readings.kind import ATTENTION, call_kind
from pcg.types.operator import Call

BOTH = frozenset({0, 1})


def has_separate_gradients(node: Node, needs: frozenset[int]) -> bool:
    """Whether an operator is a product of two operands with gradients, each of which is a product.
    ``needs`` are the operands that need gradients."""
    if needs != BOTH or len(node.inputs) != 2:
        return False
    ranks = tuple(value.rank for value in node.inputs)
    return is_plain_product(node.operator_call, ranks)


@lru_cache(maxsize=4096)
def is_plain_product(call: Call, ranks: tuple[int, ...]) -> bool:
    """Whether a call only adds up products of one element of each of two operands."""
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
