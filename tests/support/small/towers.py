"""Two towers of different depth, and strategies for some A100 devices."""

from __future__ import annotations

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from search.cost.cost import CostModel
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from substitutions.rules.store import Library

TOWERS = """
x = input[64, 1024]
a = weight[1024, 1024]
b = weight[1024, 1024]
c = weight[1024, 1024]
d = weight[1024, 512]
left = relu(matmul(relu(matmul(relu(matmul(x, a)), b)), c))
return mean_loss(concat(left, relu(matmul(x, d)), axis=1))
"""


def chooser_of(graph: Graph, library: Library, devices: int = 5) -> Chooser:
    cost = CostModel(load_machine("dgx-a100").with_devices(devices))
    return Chooser.on(cost, Cuts.of_rules(library.concrete(graph)))
