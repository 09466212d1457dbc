"""Turn the random numbers of dropout into inputs of the graph.

What an element draws then depends on the run's seed, the step and the element's global index, as
for all data that is drawn, and not on how a plan cuts: plans can be compared, and copies of a
tensor are equal.
"""

from __future__ import annotations

from statistics import NormalDist

from pcg.capture.call import AtenCall, Unsupported
from pcg.graph.graph import Value, apply, leaf
from pcg.ops.algebra import scale
from pcg.ops.elementwise import clamp, dropout, negate, shift
from pcg.plan.naming import DRAWN

DROPOUT = "aten.native_dropout.default"
STEEP = 1e30
"""What makes any difference between two numbers of a float format 1 or more."""


def dropped(call: AtenCall, site: str) -> tuple[Value, Value]:
    """What is left of a tensor, and the mask. ``site`` names the call. Raises Unsupported where
    nothing would be left, or nothing dropped."""
    x, share = call.value("input"), 1.0 - call.number("p")
    call.expect(train=True)
    if not 0.0 < share < 1.0:
        raise Unsupported("p")
    drawn = leaf("input", f"{DRAWN}{site}", x.type.shape)
    # Normal numbers below the quantile of the share give 1, and others 0.
    below = apply(shift(offset=NormalDist().inv_cdf(share)), apply(negate(), drawn))
    mask = apply(clamp(low=0.0, high=1.0), apply(scale(factor=STEEP), below))
    return apply(dropout(scale=1.0 / share), x, mask), mask
