"""Compile the annealing of plans now, so that the first search need not.

    python -m search.refine.compile

It takes up to a minute, once for an installation.
"""

from __future__ import annotations

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.native.compiled import FOLDER
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.mapping import OperatorMapping
from search.refine.annealing import Annealer
from search.refine.delta import DeltaSimulator
from substitutions.rules.store import load_library

WORK_TO_COMPILE = 200
SMALL = """
x = input[8, 8]
w = weight[8, 8]
return mean_loss(matmul(x, w))
"""


def compile_annealing() -> float:
    """Anneal a small plan, which has a message at first. Returns seconds of its step."""
    graph, cost = parse_graph(SMALL), CostModel(load_machine("local"))
    chooser = Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), cost)
    mappings = dict(zip(graph.operators, (OperatorMapping(0), OperatorMapping(1)), strict=True))
    annealer = Annealer(chooser, delta, work=WORK_TO_COMPILE)
    annealer.annealed(Choice(graph, {}, 0.0, mappings=mappings))
    return annealer.least


def load_compiled() -> None:
    """Load the machine code, if it was compiled before."""
    if FOLDER.is_dir():
        compile_annealing()


if __name__ == "__main__":
    compile_annealing()
