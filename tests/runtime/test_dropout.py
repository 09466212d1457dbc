"""Dropout: other numbers in every step and for every call, and the same in every plan."""

from __future__ import annotations

import pytest
import torch
from support.runs.simulated import on_ranks
from torch import Tensor, nn

from pcg.capture import capture
from pcg.graph.graph import DRAWN, Graph
from pcg.machine import load_machine
from runtime.inputs.seeded import input_batch
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.check import evaluate
from runtime.train.worker import run_plan
from search.mesh.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

SHARE = 0.3
"""What is dropped."""


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


@pytest.mark.parametrize("planner", ["data-parallel", "megatron"])
def test_every_plan_drops_the_same(graph, planner):
    machine = load_machine("local").with_devices(4)
    lowering = Lowering(MeshPlanner(machine, load_library(), planner).plan("dropped", graph).plan)
    options = TrainingOptions(steps=3, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    report = on_ranks(4, lambda world: run_plan(lowering, options, world, lambda _: None))[0]
    assert report is not None
    assert not [c for c in report.comparisons if not c.passes]


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(200, 500))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = nn.functional.dropout(x * self.weight, SHARE)
        return left.sum(), left


def test_as_many_are_dropped_as_should_be():
    """And the others are larger for it, so that the mean stays."""
    graph = capture(Alone(), (torch.ones(200, 500),)).graph
    (drawn,) = (n.leaf for n in graph.leaves if n.leaf.name.startswith(DRAWN))
    found: list[Tensor] = []
    for step in range(2):
        leaves = {n.leaf.name: torch.ones(200, 500, dtype=torch.float64) for n in graph.leaves}
        found.append(evaluate(graph, leaves | {drawn.name: input_batch(drawn, 0, step)})[1])
    for left in found:
        assert left.unique().tolist() == pytest.approx([0.0, 1.0 / (1.0 - SHARE)])
        assert (left == 0).double().mean().item() == pytest.approx(SHARE, abs=0.01)
        assert left.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(*found)
