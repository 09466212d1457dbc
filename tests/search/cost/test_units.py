"""The operators chosen for recomputation: the plan fits, and takes little longer."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.transformer import transformer
from support.plans.small_plans import CUT, small_plan

from pcg.machine import load_machine
from pcg.placement.layout import grid
from pcg.placement.schedule import Schedule, schedule
from pcg.placement.view import MachineView
from pcg.plan.timeline import COMMUNICATE, COMPUTE
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.simulate import recomputing, simulate
from search.cost.tasks import RECOMPUTE
from search.cost.units import RecomputedNodes, forward_seconds, recomputations_to_fit

LAYERS = 8
COST = CostModel(load_machine("dgx-a100").with_devices(1), Training("sgd"))


@cache
def steps() -> Schedule:
    """A transformer with few weights and much attention, on one device."""
    graph = transformer(LAYERS)
    return schedule(graph, {n: MachineView.packed(0, grid(n)) for n in graph.operators})


def counted(nodes: RecomputedNodes) -> int:
    return peak_memory(steps(), COST.training, nodes).total


def seconds(nodes: RecomputedNodes) -> float:
    return recomputing(steps(), COST, nodes).simulation.step_seconds


def ways(limit: int, choice: Recompute = Recompute.AUTO) -> list[RecomputedNodes]:
    return list(
        recomputations_to_fit(steps(), forward_seconds(steps(), COST), counted, limit, choice)
    )


def test_full_recomputation_is_one_more_forward_pass_in_less_memory():
    (full,) = ways(0, Recompute.FULL)
    assert counted(full) < 0.3 * counted(frozenset())
    plain = simulate(steps(), COST)
    assert plain.step_seconds < seconds(full) <= plain.step_seconds + plain.forward


def test_selective_recomputation_repeats_no_product_with_a_weight():
    (selective,) = ways(0, Recompute.SELECTIVE)
    assert {"softmax", "batch_matmul", "gelu"} <= {node.name for node in selective}
    for node in selective:
        assert not node.is_parallel
        assert not any(value.node.is_weight and value.rank > 1 for value in node.inputs)
    (full,) = ways(0, Recompute.FULL)
    assert seconds(selective) < seconds(full)
    assert counted(full) < counted(selective) < counted(frozenset())


@pytest.mark.parametrize("part", [0.95, 0.7, 0.4, 0.1, 0.0])
def test_chosen_recomputation_fits_and_is_no_slower_than_full(part: float):
    (full,) = ways(0)
    least, most = counted(full), counted(frozenset())
    limit = int(least + part * (most - least))
    chosen = ways(limit)
    assert chosen
    assert all(counted(nodes) <= limit for nodes in chosen)
    assert min(map(seconds, chosen)) <= seconds(full) * (1 + 1e-9)


def test_the_more_room_the_less_is_recomputed():
    (full,) = ways(0)
    least, most = counted(full), counted(frozenset())
    taken = [min(map(seconds, ways(least + (most - least) * n // 8))) for n in range(8)]
    assert taken == sorted(taken, reverse=True)


def test_recompute_none_allows_no_choice():
    assert not ways(0, Recompute.NONE)


def test_least_memory_is_chosen_if_nothing_fits():
    (nodes,) = ways(1)
    assert nodes == ways(0)[0]


@given(st.sampled_from(sorted(CUT)), st.randoms(use_true_random=False))
def test_recomputation_makes_no_step_shorter(name: str, random: Random):
    """The search leaves out the simulation of plans by this."""
    plan = small_plan(name)
    made = schedule(plan.graph, plan.views)
    cost = CostModel(load_machine("dgx-a100").with_devices(4), plan.training)
    share = random.random()
    some = frozenset(n for n in plan.graph.nodes if not n.is_leaf and random.random() < share)
    plain = simulate(made, cost).step_seconds
    assert recomputing(made, cost, some).simulation.step_seconds >= plain * (1 - 1e-12)


def test_communication_again_runs_beside_computation():
    plan = small_plan("fully sharded weights")
    made = schedule(plan.graph, plan.views)
    cost = CostModel(load_machine("dgx-a100").with_devices(4), plan.training)
    gathers = frozenset(node for node in plan.graph.nodes if node.name == "combine")
    run = recomputing(made, cost, gathers)
    again = [task for task in run.tasks if task.phase == RECOMPUTE]
    assert [task.stream for task in again] == [COMMUNICATE]
    every = recomputing(made, cost, frozenset(n for n in plan.graph.nodes if not n.is_leaf))
    streams = [task.stream for task in every.tasks if task.phase == RECOMPUTE]
    assert streams.count(COMMUNICATE) == 2
    assert streams.count(COMPUTE) == len(streams) - 2 > 0
    # The backward pass waits for tensors that are gathered again.
    (task,) = again
    at = run.tasks.index(task)
    readers = [other for other in run.tasks if at in other.after]
    assert readers
