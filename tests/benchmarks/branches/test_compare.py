"""The machines and graphs on which plans of branches are compared."""

from __future__ import annotations

from random import Random

from benchmarks.branches.compare import machines, rewritten
from support.graphs.behaviour import assert_same

from pcg.plan.text import parse_graph
from substitutions.rules.store import load_library


def test_two_of_five_machines_are_mixed():
    every = machines()
    assert [machine.devices for machine in every] == [6, 8, 16, 8, 4]
    assert [len(machine.kinds) for machine in every] == [1, 1, 1, 2, 2]
    for machine in every[3:]:
        half = machine.devices // 2
        assert machine.device_at(half - 1) != machine.device_at(half)


def test_random_rewrites_leave_the_function_as_it_is():
    graph = parse_graph(
        "x = input[6, 8]\na = weight[8, 4]\nb = weight[8, 4]\n"
        "return mean_loss(add(relu(matmul(x, a)), relu(matmul(x, b))))"
    )
    library = load_library()
    made = [rewritten(graph, library, Random(seed)) for seed in range(3)]
    assert any(other != graph for other in made)
    for other in made:
        assert_same(graph, other)
        assert len(other.operators) <= len(graph.operators)
