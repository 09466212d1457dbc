"""Operators on any arrays of devices, such as 3 of 4, against training on one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.by_hand import plan_with
from support.runs.commands import run_here
from support.small.states import chosen, on_device

from pcg.machine import load_machine
from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.mapping import OperatorMapping
from search.refine.mappings import NumberedMappings
from search.refine.moves import Moves
from substitutions.rules.store import load_library

pytestmark = pytest.mark.distributed

MODEL = """
x = input[12, 12]
y = input[12, 6]
a = weight[12, 12]
b = weight[12, 12]
c = weight[6, 9]
left = relu(matmul(relu(matmul(x, a)), b))
joined = concat(left, relu(matmul(y, c)), axis=1)
return mean_loss(multiply(joined, joined)), joined
"""


@pytest.mark.parametrize("kind", ["unequal groups", "seed 1", "seed 2"])
def test_training_on_any_devices_agrees_with_one_process(kind, tmp_path):
    graph, library = parse_graph(MODEL), load_library()
    machine = load_machine("local").with_devices(4)
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(library.concrete(graph)))
    if kind == "unequal groups":
        mappings = dict.fromkeys(graph.operators, OperatorMapping(3))
        for node in graph.operators[:4]:
            mappings[node] = OperatorMapping.packed(0, [(0, 3)])
        choice = Choice(graph, {}, 0.0, mappings=mappings)
    else:
        seed = int(kind.removeprefix("seed "))
        moves = Moves(graph, chooser.spaces, 4, NumberedMappings(), seed)
        state = on_device(graph)
        for _ in range(20):
            state = moves.moved(state)
        while not (choice := chosen(graph, state)).order:
            state = moves.moved(state)
    cut = Builder(chooser.spaces).cut(choice)
    assert any(len(view.devices) == 3 for view in cut.views.values()) or kind != "unequal groups"
    path = tmp_path / "plan.json"
    plan = plan_with(graph, cut.graph, cut.views, 4)
    save_plan(replace(plan, order=cut.order), path)
    done = run_here(path, "--steps", "2", "--check")
    assert done.status == 0, done.err
    assert "check: agrees with one process" in done.out
