"""Compares two values as they are written: equal operators of the same values, down to the inputs.

What is written alike computes alike, whatever it is, so that nothing has to be expanded. The order
of operands counts, and nothing rests on hashes.
"""

from __future__ import annotations

from pcg.graph.graph import Value


def is_same(left: Value, right: Value) -> bool:
    """Whether two values are written alike; each pair of nodes is looked at once."""
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
