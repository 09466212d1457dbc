"""FlexFlow's walk: delta simulation is exact, walks are seeded, and the result is a valid plan."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.strategies import training_graphs
from support.translation import translation

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.simulate import price
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import data_parallel
from search.map.space.strategies import REPLICATE, passes
from search.planners.common import PlannerSetting
from search.planners.flexflow.configurations import configurations
from search.planners.flexflow.planner import FlexFlowPlanner
from search.planners.flexflow.walk import Walk, by_delta, in_full
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

LAYERS = """
x = input[16, 64]
w1 = weight[64, 512]
w2 = weight[512, 4096]
y = input[16] below 4096
return cross_entropy(matmul(relu(matmul(x, w1)), w2), y)
"""
"""A large last layer, whose gradient takes longer to exchange than its results take to move."""


def setting(devices: int = 4, machine: str = "dgx-a100") -> PlannerSetting:
    return PlannerSetting(load_machine(machine).with_devices(devices), load_library())


def start_of(graph: Graph, own: PlannerSetting) -> tuple[Chooser, Choice]:
    chooser = own.chooser(graph)
    return chooser, chooser.choose(graph, allowed=data_parallel(graph))


def drawn(graph: Graph, chooser: Chooser, first: Choice, random: Random) -> Choice:
    """Several operators configured at random, one after the other."""
    own = configurations(graph, chooser)
    for node in random.choices(list(own), k=8) if own else ():
        strategy, start = own[node].drawn(random, chooser.mesh)
        strategies, starts = {**first.strategies, node: strategy}, {**first.starts, node: start}
        first = replace(first, strategies=strategies, starts=starts)
    return first


@settings(max_examples=15, deadline=None)
@given(training_graphs(cut=False), st.integers(0, 1 << 20))
def test_delta_simulation_is_full_simulation_to_the_last_bit(graph: Graph, seed: int):
    own = setting()
    chooser, first = start_of(graph, own)
    delta, full = by_delta(chooser, first), in_full(chooser)
    for number in range(3):
        choice = drawn(graph, chooser, first, Random(seed + number))
        assert price(delta(choice), 4) == price(full(choice), 4)


def test_delta_and_full_simulation_give_the_same_walk():
    graph, own = parse_graph(LAYERS), setting()
    chooser, first = start_of(graph, own)
    planner = FlexFlowPlanner(own, proposals=120, seed=3)
    walks = [
        planner.walked(chooser, first, programs)
        for programs in (by_delta(chooser, first), in_full(chooser))
    ]
    assert walks[0] == walks[1]
    assert len(walks[0].bests) > 1


def test_a_walk_is_that_of_its_seed():
    graph, own = parse_graph(LAYERS), setting()
    chooser, first = start_of(graph, own)
    programs = by_delta(chooser, first)
    ways = [
        FlexFlowPlanner(own, proposals=60, seed=seed).walked(chooser, first, programs)
        for seed in (0, 0, 1)
    ]
    assert ways[0] == ways[1] != ways[2]


def test_a_large_last_layer_is_not_left_to_data_parallelism():
    planned = FlexFlowPlanner(setting(), proposals=200).plan("layers", parse_graph(LAYERS))
    assert planned.data_parallel_seconds is not None
    assert planned.plan.estimates.step_seconds < 0.9 * planned.data_parallel_seconds
    assert not replay(planned.plan, load_library().rules).findings


def test_translation_is_faster_than_data_parallelism():
    """As in the paper (figure 7), the walk is faster: 1.3 times and more."""
    graph = translation(length=2, layers=1)
    planned = FlexFlowPlanner(setting(), proposals=250).plan("translation", graph)
    assert planned.data_parallel_seconds is not None
    assert planned.plan.estimates.step_seconds < planned.data_parallel_seconds / 1.2


def test_a_walk_ends_without_gain_or_when_its_seconds_are_spent():
    graph, own = parse_graph(LAYERS), setting()
    chooser, first = start_of(graph, own)
    programs, some = by_delta(chooser, first), configurations(graph, chooser)
    best = Walk(chooser, some, programs, 1e12, 400).walked(first)
    while len(best.bests) > 1:
        best = Walk(chooser, some, programs, 1e12, 400).walked(best.bests[-1][1])
    assert (best.stop, best.proposals) == ("no gain", 201)
    late = Walk(chooser, some, programs, 1e12, 40, seconds=-1.0).walked(first)
    assert (late.stop, late.proposals) == ("time", 0)
    none = Walk(chooser, {}, programs, 1e12, 40).walked(first)
    assert (none.stop, none.proposals, len(none.bests)) == ("exhausted", 0, 1)


def test_on_one_device_there_is_nothing_to_walk():
    planned = FlexFlowPlanner(setting(1)).plan("layers", parse_graph(LAYERS))
    assert planned.report.simulated == 0


def test_configurations_cut_results_and_never_replicate_work():
    graph, own = translation(length=2, layers=1), setting()
    chooser, _ = start_of(graph, own)
    of_nodes = configurations(graph, chooser)
    products = [node for node in graph.operators if node.name == "matmul"]
    assert {len(of_nodes[node].sharing) for node in products} == {2}
    for node in products:
        space = of_nodes[node].space
        for place in of_nodes[node].places:
            entries = space.strategies[place]
            assert REPLICATE not in entries
            cut = [space.axes[entry] for entry in entries if entry >= 0]
            assert all(axis.outputs[0] is not None and not passes(axis) for axis in cut)


def test_model_that_does_not_fit_is_a_negative_answer():
    own = setting()
    device = own.machine.device.model_copy(update={"memory_bytes": 1 << 20})
    tight = replace(own, machine=own.machine.model_copy(update={"device": device}))
    with pytest.raises(NegativeAnswer, match="does not fit"):
        FlexFlowPlanner(tight, proposals=5).plan("layers", parse_graph(LAYERS))
