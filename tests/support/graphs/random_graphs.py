"""Random graphs of parallel operators, for tests of schedules, views and memory."""

from __future__ import annotations

from math import prod
from random import Random

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, apply, leaf
from pcg.ops import OPERATORS
from pcg.placement.layout import grid
from pcg.types.operator import Call


def operators(graph: Graph) -> list[Node]:
    """The operators of a graph that compute."""
    return [node for node in graph.nodes if not (node.is_leaf or node.is_parallel)]


def call(name: str, **attributes) -> Call:
    return OPERATORS[name](**attributes)


def recut(value: Value, random: Random) -> Value:
    """A few random parallel operators after a value."""
    for _ in range(random.randrange(4)):
        degrees = value.type.degrees
        options = [call("replicate", degree=2)]
        sizes = enumerate(zip(value.type.shape, degrees.dims, strict=True))
        options += [call("partition", dim=d, degree=2) for d, (n, k) in sizes if n % (2 * k) == 0]
        options += [
            call("combine", dim=d, degree=2) for d, k in enumerate(degrees.dims) if k % 2 == 0
        ]
        if degrees.partials % 2 == 0:
            options += [call("reduce", degree=2)] * 3
        value = apply(random.choice(options), value)
    return value


def random_graph(random: Random, devices: int, size: int) -> Graph:
    """A graph of random operators on tensors of 16 x 16 with random degrees, with a loss."""
    pool = [leaf("input", "x", (16, 16)), leaf("weight", "w0", (16, 16))]
    names = ("matmul", "matmul", "add", "multiply", "relu", "gelu", "scale", "join", "split")
    while size:
        name = random.choice(names)
        operands = [recut(random.choice(pool), random)]
        if name in ("matmul", "add", "multiply", "join"):
            fresh = leaf("weight", f"w{len(pool)}", (16, 16))
            operands.append(recut(random.choice([fresh, *pool]), random))
        attributes = {"scale": {"factor": 2.0}, "split": {"axis": 0, "at": 8}}.get(name, {})
        made = apply(call(name, **attributes), *operands)
        try:
            if max(prod(grid(made.node)), made.type.pieces) > devices:
                continue
        except OperatorError:
            continue
        if name == "split":
            made = apply(call("concat", axis=0), made, Value(made.node, 1))
        pool.append(made)
        size -= 1
    value = next(v for v in reversed(pool))
    if value.type.degrees.partials > 1:
        value = apply(call("reduce", degree=value.type.degrees.partials), value)
    loss = apply(call("mean_loss"), value)
    partials = loss.type.degrees.partials
    loss = apply(call("reduce", degree=partials), loss) if partials > 1 else loss
    others = tuple(v for v in pool[1:] if random.random() < 0.2)
    graph = Graph((loss, *others) if random.random() < 0.8 else (value, *others))
    graph.check()
    return graph
