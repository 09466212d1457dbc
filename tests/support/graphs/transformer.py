"""A transformer with few weights and much attention, in a few lines."""

from __future__ import annotations

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph

LAYER = """
g{i} = weight[64]
b{i} = weight[64]
wq{i} = weight[64, 64]
wk{i} = weight[64, 64]
wo{i} = weight[64, 64]
wi{i} = weight[64, 256]
wu{i} = weight[256, 64]
n{i} = layer_norm(x{i}, g{i}, b{i}, eps=0.001)
q{i} = matmul(n{i}, wq{i})
k{i} = matmul(n{i}, wk{i})
s{i} = softmax(batch_matmul(q{i}, transpose(k{i}, dim0=1, dim1=2)), axis=2)
y{i} = add(x{i}, matmul(batch_matmul(s{i}, q{i}), wo{i}))
m{i} = layer_norm(y{i}, g{i}, b{i}, eps=0.001)
x{j} = add(y{i}, matmul(gelu(matmul(m{i}, wi{i})), wu{i}))
"""


def transformer(layers: int, batch: int = 16, length: int = 256) -> Graph:
    """A transformer with ``layers`` layers 64 wide, on texts of one length."""
    blocks = [LAYER.format(i=i, j=i + 1) for i in range(layers)]
    head = [f"x = input[{batch}, {length}, 64]", "w = weight[64, 64]", "x0 = matmul(x, w)"]
    graph = parse_graph("\n".join([*head, *blocks, f"return mean_loss(x{layers})"]))
    graph.check()
    return graph
