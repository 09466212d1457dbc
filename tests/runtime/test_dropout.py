"""Dropout: different numbers in every step and for every call, and equal numbers in every plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from fidelity.models import Gpt
from fidelity.price import graph_of
from support.runs.simulated import on_ranks
from torch import Tensor, nn

from pcg.capture import capture
from pcg.graph.graph import DRAWN, Graph
from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from runtime.execute.executor import Executor
from runtime.inputs.seeded import input_batch
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.check import evaluate
from runtime.train.worker import run_plan
from runtime.world.collectives import World
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

SHARE = 0.3
"""The share of dropped elements."""


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(SHARE)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.relu(self.first(self.drop(x))))
        return self.second(hidden).square().mean()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(Dropped(), (torch.ones(16, 32),)).graph


library = cache(load_library)


def runs_as_on_one_process(plan: Plan) -> bool:
    lowering = Lowering(plan)
    options = TrainingOptions(steps=3, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    report = on_ranks(4, lambda world: run_plan(lowering, options, world, lambda _: None))[0]
    assert report is not None
    return all(comparison.passes for comparison in report.comparisons)


@pytest.mark.parametrize("planner", ["data-parallel", "megatron"])
@pytest.mark.parametrize("again", [False, True])
def test_every_plan_drops_the_same(graph, planner, again):
    """Also with recomputation."""
    machine = load_machine("local").with_devices(4)
    plan = MeshPlanner(machine, library(), planner).plan("dropped", graph).plan
    dropouts = frozenset(node for node in plan.graph.nodes if node.name == "dropout")
    assert dropouts
    assert runs_as_on_one_process(replace(plan, recompute=dropouts) if again else plan)


@pytest.mark.parametrize(
    "degrees",
    [
        "tensor=2,sequence,pipeline=2,micro-batches=4,recompute=selective",
        pytest.param("micro-batches=2,sharded,recompute=full", marks=pytest.mark.soak),
        pytest.param("pipeline=2,interleave=2,micro-batches=4", marks=pytest.mark.soak),
    ],
)
def test_every_plan_of_a_decoder_drops_the_same(degrees):
    """Attention and residuals, with tensors and sequences cut, in micro-batches of stages, and
    recomputed."""
    machine = load_machine("local").with_devices(4)
    parsed = parse_degrees(degrees)
    layers = 2 * parsed.interleave
    decoder = graph_of(Gpt(layers, 16, 2, 12, 32, dropout=0.2), 8)
    planner = HandPlanner(machine, library(), parsed, Training("sgd"))
    assert runs_as_on_one_process(planner.plan("decoder", decoder).plan)


def test_a_mask_that_is_moved_is_data_like_all_other():
    """The mask is also read by views and sums, and returned."""
    text = """
        x = input[8, 6]
        w = weight[6, 6]
        drawn__a = input[8, 6] share 0.5
        drawn__b = input[8, 6] share 0.25
        h = multiply(matmul(x, w), add(drawn__a, negate(drawn__b)))
        t = transpose(drawn__b, dim0=0, dim1=1)
        p = multiply(drawn__a, drawn__a)
        return mean_loss(multiply(multiply(h, transpose(t, dim0=0, dim1=1)), p)), drawn__a
        """
    graph = parse_graph(text)
    machine = load_machine("local").with_devices(4)
    plan = MeshPlanner(machine, library(), "data-parallel").plan("moved", graph).plan
    held = [{load.leaf.name for load in program.inputs} for program in Lowering(plan).programs()]
    assert {"x", "drawn__a"} in held
    assert not any("drawn__b" in names for names in held)
    assert runs_as_on_one_process(plan)


def test_plans_of_before_draw_as_they_did():
    """In such plans masks were made of normal numbers, which were held for the whole step."""
    text = """
        x = input[8, 6]
        w = weight[6, 6]
        drawn__a = input[8, 6]
        below = shift(negate(drawn__a), offset=0.5)
        mask = clamp(scale(below, factor=1e30), low=0.0, high=1.0)
        return mean_loss(dropout(matmul(x, w), mask, scale=1.4))
        """
    machine = load_machine("local").with_devices(4)
    plan = MeshPlanner(machine, library(), "data-parallel").plan("old", parse_graph(text)).plan
    assert runs_as_on_one_process(plan)


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(200, 500))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = nn.functional.dropout(x * self.weight, SHARE)
        return left.sum(), left


def test_share_of_dropped_elements_is_the_stated_one():
    """The other elements are larger for it, so the mean stays."""
    graph = capture(Alone(), (torch.ones(200, 500),)).graph
    (drawn,) = (n.leaf for n in graph.leaves if n.leaf.name.startswith(DRAWN))
    samples: list[Tensor] = []
    for step in range(2):
        leaves = {n.leaf.name: torch.ones(200, 500, dtype=torch.float64) for n in graph.leaves}
        samples.append(evaluate(graph, leaves | {drawn.name: input_batch(drawn, 0, step)})[1])
    for left in samples:
        assert left.unique().tolist() == pytest.approx([0.0, 1.0 / (1.0 - SHARE)])
        assert (left == 0).double().mean().item() == pytest.approx(SHARE, abs=0.01)
        assert left.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(*samples)


@pytest.mark.soak
def test_compiled_the_same_is_dropped(graph):
    """Integers wrap at 64 bits in compiled code, too."""
    machine = load_machine("local").with_devices(1)
    plan = MeshPlanner(machine, library(), "data-parallel").plan("dropped", graph).plan
    program = Lowering(plan).program(0)
    runs = [Executor(program, World(), "fp64", compiles=compiles) for compiles in (False, True)]
    losses = [[run.step(number, lambda _: None).loss for number in range(3)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert len(set(losses[0])) == 3
