"""Small random graphs, for comparisons with an exhaustive search."""

from __future__ import annotations

from random import Random

from pcg.graph.graph import Graph, apply, leaf
from pcg.ops import OPERATORS


def small_graph(random: Random) -> Graph:
    """A random graph of two to five operators, with branches that meet again."""
    pool = [leaf("input", "x", (48, 64)), leaf("weight", "w0", (64, 64))]
    pool = [apply(OPERATORS["matmul"](), *pool)]
    for at in range(random.randrange(1, 4)):
        name = random.choice(("matmul", "add", "multiply", "relu", "softmax"))
        operands = [random.choice(pool)]
        if name == "matmul":
            operands.append(leaf("weight", f"w{at + 1}", (64, 64)))
        elif name in ("add", "multiply"):
            operands.append(random.choice(pool))
        attributes = {"axis": 1} if name == "softmax" else {}
        pool.append(apply(OPERATORS[name](**attributes), *operands))
    graph = Graph((apply(OPERATORS["mean_loss"](), pool[-1]),))
    graph.check()
    return graph
