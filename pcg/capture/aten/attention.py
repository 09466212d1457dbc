"""Translate torch's scaled dot-product attention into graph operators."""

from __future__ import annotations

from math import sqrt

from pcg.capture.aten.call import AtenCall, Unsupported
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.random import Normal, dropped
from pcg.capture.aten.shapes import reshaped, shape_of, spread, swapped
from pcg.capture.constants import is_causal
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, attention, layers
from pcg.ops.constants import lower_triangle
from pcg.ops.elementwise import shift
from pcg.ops.reductions import max_axis
from pcg.ops.reindexing import expand

LEFT_OUT = 1e30
"""By how much the score of a hidden key is lowered. Its weight is then 0 in every number format.
If all keys of a query are hidden, the result is an average, which is replaced by zeros."""


def attended(call: AtenCall) -> Value:
    """Return attention without dropout, as one operator."""
    call.expect(dropout_p=0.0)
    q, k, v = _operands(call)
    if _sees_only_before(call, q, k):
        return apply(attention.causal_attention(), q, k, v)
    mask = _added(call, q, k)
    if mask is None:
        return apply(attention.attention(), q, k, v)
    return _of_what_sees(call, apply(attention.masked_attention(), q, k, v, mask))


def attended_in_parts(call: AtenCall, normal: Normal) -> Value:
    """Return attention with dropout, as operators for scores, weights and their product."""
    rate = call.number("dropout_p")
    if rate == 0.0:
        return attended(call)
    q, k, v = _operands(call)
    product = algebra.matmul() if q.rank == 2 else algebra.batch_matmul()
    turned = swapped(k, k.rank - 2, k.rank - 1)
    scores = scaled(apply(product, q, turned), 1.0 / sqrt(shape_of(q)[-1]))
    mask = _added(call, q, k)
    if mask is not None:
        scores = apply(algebra.add(), scores, mask)
    shares = apply(layers.softmax(axis=scores.rank - 1), scores)
    left = scaled(shares, 0.0) if rate == 1.0 else dropped(shares, 1.0 - rate, normal)[0]
    return _of_what_sees(call, apply(product, left, v))


def _operands(call: AtenCall) -> tuple[Value, Value, Value]:
    """Return queries, keys and values of equal batch and heads. Queries include the scale."""
    q, k, v = (call.value(name) for name in ("query", "key", "value"))
    if call.arguments["enable_gqa"]:
        k, v = (_for_groups(x, shape_of(q)) for x in (k, v))
    if not shape_of(q)[:-2] == shape_of(k)[:-2] == shape_of(v)[:-2]:
        raise Unsupported("ranks")
    if call.arguments["scale"] is not None:
        q = scaled(q, call.number("scale") * sqrt(shape_of(q)[-1]))  # operators divide by the root
    return q, k, v


def _sees_only_before(call: AtenCall, q: Value, k: Value) -> bool:
    """Whether a query sees the keys up to its own position, and no others."""
    mask = call.maybe("attn_mask")
    if mask is None or "attn_mask" not in call.choices:
        return bool(call.arguments["is_causal"])
    return is_causal(mask, shape_of(q)[-2], shape_of(k)[-2])


def _of_what_sees(call: AtenCall, attended: Value) -> Value:
    """Return ``attended``, with zeros for queries that see no key if the mask allows any."""
    mask = call.maybe("attn_mask")
    if mask is None or "attn_mask" not in call.choices or _shows_the_first(mask):
        return attended
    sees = apply(max_axis(axis=mask.rank - 1), mask)
    sees = spread(reshaped(sees, (*shape_of(sees), 1)), shape_of(attended), attended)
    return apply(algebra.multiply(), attended, sees)


def _shows_the_first(mask: Value) -> bool:
    """Whether a mask is known to show each query at least the first key."""
    while mask.node.name in ("expand", "slice") and mask.node.inputs[0].rank > 1:
        call = mask.node.operator_call
        is_rows = call.integer("axis") == mask.rank - 2
        if mask.node.name == "slice" and not is_rows:
            return False
        if mask.node.name == "expand" and call.integer("axis") >= mask.rank - 2:
            return False
        mask = mask.node.inputs[0]
    return mask.node.name == "lower_triangle"


def _added(call: AtenCall, q: Value, k: Value) -> Value | None:
    """Return the additive mask in the shape of the scores, or None if there is no mask."""
    mask, scores = call.maybe("attn_mask"), (*shape_of(q)[:-1], shape_of(k)[-2])
    is_choice = "attn_mask" in call.choices
    if call.arguments["is_causal"]:
        mask, is_choice = apply(lower_triangle(rows=scores[-2], columns=scores[-1])), True
    if mask is None:
        return None
    if is_choice:
        # A hidden key gets a score that no other score can make up for.
        mask = scaled(apply(shift(offset=-1.0), mask), LEFT_OUT)
    return spread(mask, scores)


def _for_groups(x: Value, queries: tuple[int, ...]) -> Value:
    """Return keys or values repeated for all heads of queries that share them."""
    *batch, heads, length, size = shape_of(x)
    times = queries[-3] // heads
    wide = apply(expand(axis=len(batch) + 1, size=times), x)
    return reshaped(wide, (*batch, heads * times, length, size))
