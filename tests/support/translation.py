"""An unrolled translation model of LSTM layers, like the one on which FlexFlow was measured."""

from __future__ import annotations

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph

CELL = """
{o}g = add(matmul({x}, {k}x), matmul({h}, {k}h))
{o}i = sigmoid(slice({o}g, axis=1, start=0, size={w}))
{o}f = sigmoid(slice({o}g, axis=1, start={w}, size={w}))
{o}o = sigmoid(slice({o}g, axis=1, start={w2}, size={w}))
{o}n = tanh(slice({o}g, axis=1, start={w3}, size={w}))
{o}c = add(multiply({o}f, {c}), multiply({o}i, {o}n))
{o}h = multiply({o}o, tanh({o}c))
"""


def translation(
    batch: int = 64, length: int = 3, width: int = 1024, words: int = 32000, layers: int = 2
) -> Graph:
    """Two stacks of LSTM layers, which read and write a sentence of ``length`` words each. Each
    language has a table, and each word written has a product with all words."""
    lines = [f"source = weight[{words}, {width}]", f"target = weight[{words}, {width}]"]
    lines += [f"head = weight[{width}, {words}]", f"zero = input[{batch}, {width}]"]
    for kind in "ed":
        for layer in range(layers):
            lines += [f"{kind}{layer}{way} = weight[{width}, {4 * width}]" for way in "xh"]
    states: dict[int, tuple[str, str]] = dict.fromkeys(range(layers), ("zero", "zero"))
    losses: list[str] = []
    for kind, table in (("e", "source"), ("d", "target")):
        for step in range(length):
            name = f"{kind}s{step}"
            lines.append(f"{name} = input[{batch}] below {words}")
            lines.append(f"{name}x = embedding({name}, {table})")
            value = f"{name}x"
            for layer in range(layers):
                own, (h, c) = f"{name}l{layer}", states[layer]
                widths = {"w": width, "w2": 2 * width, "w3": 3 * width}
                lines += CELL.format(o=own, x=value, h=h, c=c, k=f"{kind}{layer}", **widths).split(
                    "\n"
                )
                states[layer] = f"{own}h", f"{own}c"
                value = f"{own}h"
            if kind == "d":
                lines.append(f"{name}y = input[{batch}] below {words}")
                losses.append(f"cross_entropy(matmul({value}, head), {name}y)")
    total = losses[0]
    for loss in losses[1:]:
        total = f"add({total}, {loss})"
    return parse_graph("\n".join([*filter(None, lines), f"return {total}"]))
