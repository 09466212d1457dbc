"""Compares two values by structure: the same operators of the same values, down to the inputs.

Values of the same structure are equal, whatever their operators compute, so nothing has to be
expanded. The order of operands counts, even of commutative operators. Nothing rests on hashes.
"""

from __future__ import annotations

from pcg.graph.graph import Value


def is_same(left: Value, right: Value) -> bool:
    """Whether two values have the same structure. Each pair of nodes is compared once."""
    seen: set[tuple[int, int]] = set()
    pending = [(left, right)]
    while pending:
        a, b = pending.pop()
        if a.port != b.port:
            return False
        pair = (id(a.node), id(b.node))
        if a.node is b.node or pair in seen:
            continue
        if a.node.call != b.node.call or len(a.node.inputs) != len(b.node.inputs):
            return False
        seen.add(pair)
        pending += zip(a.node.inputs, b.node.inputs, strict=True)
    return True
