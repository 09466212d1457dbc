"""The number of products in torch functions without an equation that are contractions.

The cost of any other such function is that of its reads and writes, which its equation gives. The
cost of these is mostly arithmetic, counted as in a matrix product: two operations per product. The
counts are of dense arithmetic, as for operators with an equation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod

from pcg.graph.independence import CallFormats, OperandSlot
from pcg.graph.opaque import Batched, TorchFunction
from pcg.graph.torch_calls import parse_call
from pcg.types.operator import Operator


def _convolution(given: CallFormats) -> int:
    """Return the products of a convolution: each output element, or each input element of a
    transposed one, meets all weights of its channel."""
    turned = given.values.get("transposed")
    shape = given.shape("input") if turned else given.writes[0].shape
    weight = given.shape("weight")
    return prod(shape) * prod(weight[1:])


def _transposed(given: CallFormats) -> int:
    return prod(given.shape("input")) * prod(given.shape("weight")[1:])


def _attention(given: CallFormats) -> int:
    """Return the products of attention: each query meets all keys, and then all values."""
    query, key, value = (given.shape(name) for name in ("query", "key", "value"))
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent(given: CallFormats) -> int:
    """Return the products of a recurrent network: each sequence element meets all matrices."""
    matrices = (
        given.reads[p.number].shape for p in given.values["params"] if isinstance(p, OperandSlot)
    )
    return prod(given.shape("input")[:-1]) * sum(prod(m) for m in matrices if len(m) == 2)


PRODUCTS: Mapping[str, Callable[[CallFormats], int]] = {
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "scaled_dot_product_attention": _attention,
    **{f"{name}.input": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Counts by torch's name of the function, or of one of its overloads."""


def products(operator: Operator, lengths: Mapping[str, int]) -> int:
    """Return the products that a task of an operator adds up beyond its equation. ``lengths`` are
    the lengths of its axes on that task, by their names in the equation."""
    if not isinstance(operator, TorchFunction):
        return 0
    count = _of_whole(operator)
    if not count or not isinstance(operator, Batched):
        return count
    for number, axis in enumerate(operator.axes):
        size = operator.writes[0].shape[axis.results[0]]
        count = count * lengths[f"n{number}"] // size
    return count


def is_contraction(operator: Operator) -> bool:
    """Whether an operator is a torch function without an equation that adds up products."""
    return isinstance(operator, TorchFunction) and _of_whole(operator) > 0


@lru_cache(maxsize=4096)
def _of_whole(operator: TorchFunction) -> int:
    call = parse_call(operator.function)
    count = PRODUCTS.get(call.name) or PRODUCTS.get(f"{call.name}.{call.overload}")
    if count is None:
        return 0
    values = call.bound([OperandSlot(number) for number in range(len(operator.reads))])
    return count(CallFormats(values, operator.reads, operator.writes))
