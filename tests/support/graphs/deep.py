"""Small graphs of repeated blocks."""

from __future__ import annotations

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph

BLOCK = """
w{i} = weight[2048, 8192]
v{i} = weight[8192, 2048]
h{i} = matmul(gelu(matmul(x{i}, w{i})), v{i})
x{n} = relu(add(h{i}, x{i}))
"""
BIASED = """
w{i} = weight[2048, 2048]
b{i} = weight[2048]
m{i} = matmul(x{i}, w{i})
x{n} = add(gelu(add(m{i}, expand_vector(m{i}, b{i}, axis=1))), multiply(x{i}, mask))
"""

PAIRED = """
w{i} = weight[2048, 8192]
u{i} = weight[2048, 8192]
v{i} = weight[8192, 2048]
p{i} = add(relu(matmul(x{i}, w{i})), matmul(x{i}, u{i}))
x{n} = relu(add(matmul(p{i}, v{i}), x{i}))
"""


def _deep(block: str, count: int, before: str = "", after: str = "") -> Graph:
    inside = "".join(block.format(i=i, n=i + 1) for i in range(count))
    end = after or f"return mean_loss(x{count})"
    return parse_graph(f"x0 = input[4096, 2048]\n{before}{inside}{end}")


def blocks(count: int) -> Graph:
    """Blocks of two products each, with a residual connection."""
    return _deep(BLOCK, count)


def with_bias(count: int) -> Graph:
    """Blocks of a product and a bias, and a tensor that all blocks read."""
    return _deep(BIASED, count, "mask = relu(x0)\n")


def with_pairs(count: int) -> Graph:
    """Blocks with two products of one tensor, which a rule merges."""
    return _deep(PAIRED, count)


def with_look_back(count: int) -> Graph:
    """Blocks whose last one reads a tensor of a block in the middle."""
    return _deep(BLOCK, count, "", f"return mean_loss(add(x{count}, x{count // 2}))")
