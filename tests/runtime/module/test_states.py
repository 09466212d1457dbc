"""Buffers that every step changes: moving averages, codebooks, spectral norm, counters."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import a_third, examples
from support.plans.by_hand import make_plan
from support.plans.random_plans import views_of
from support.runs.averages import WIDTH, averages, batch_of, expected
from support.runs.own_loop import (
    RANKS,
    Trained,
    assert_same,
    captured,
    cut_at_random,
    named,
    once,
    planned,
    trained,
)
from support.runs.simulated import on_ranks
from torch import Tensor, nn

from pcg.capture import Captured, capture
from pcg.errors import InputError
from pcg.machine import load_machine
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan, load_plan, save_plan
from pcg.plan.training import Training
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.support.planners import SearchOptions, planner_of

MODULES = tuple(averages() for _ in range(RANKS))


@once
def captured_averages() -> Captured:
    return captured(averages(), batch_of(0))


@once
def planned_averages(planner: str, ranks: int = RANKS) -> Plan:
    return planned(captured_averages(), planner, ranks)


def on_rank(plan: Plan, world: World, parts: int = 1) -> Trained:
    model = ParallelModule(MODULES[world.rank], Lowering(plan), world, 0)
    return trained(model, model.clip_grad_norm_, batch_of, parts)


@pytest.mark.parametrize("planner", a_third(["data-parallel", "zero", "joint"]))
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_buffers_are_those_of_torch_after_each_plan(planner: str, parts: int) -> None:
    plan = planned_averages(planner)
    for result in on_ranks(RANKS, lambda world: on_rank(plan, world, parts)):
        assert_same(result, expected(parts))


@examples(2)
@given(data=st.data())
def test_any_plan_changes_buffers_as_the_module_does(data: st.DataObject) -> None:
    made = captured_averages()
    graph = cut_at_random(data.draw, made.graph)
    plan = named(make_plan(made.graph, graph, RANKS, data.draw(views_of(graph))), made)
    for result in on_ranks(RANKS, lambda world: on_rank(plan, world)):
        assert_same(result, expected(1))


def test_a_plan_file_tells_the_buffers(tmp_path: Path) -> None:
    plan = planned_averages("zero")
    names = {name for state in plan.naming.states for name in state.names}
    assert {"codes", "sizes", "sums", "seen", "last", "steps"} < names
    save_plan(plan, path := tmp_path / "plan.json")
    assert load_plan(path).naming == plan.naming
    states = (replace_output(plan), *plan.naming.states[1:])
    wrong = replace(plan, naming=plan.naming.model_copy(update={"states": states}))
    save_plan(wrong, path)
    with pytest.raises(InputError, match=r"naming\.states\[0\]: the graph has no output 99"):
        load_plan(path)


def replace_output(plan: Plan):
    return plan.naming.states[0].model_copy(update={"output": 99})


def test_buffers_are_saved_and_loaded(tmp_path: Path) -> None:
    plan = planned_averages("joint", 1)
    first, second = (ParallelModule(averages(), Lowering(plan), World(), 0) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    first(**batch_of(0)).loss.backward()
    optimizers[0].step()
    first.save_checkpoint(tmp_path, optimizers[0], step=1)
    assert second.load_checkpoint(tmp_path, optimizers[1]) == 1
    third = ParallelModule(averages(), Lowering(plan), World(), 0)
    third.load_state_dict(first.state_dict())
    third(**batch_of(1))
    assert int(third.state_dict()["steps"]) == 2
    losses = [float(model(**batch_of(2)).loss.detach()) for model in (first, second)]
    assert losses[0] == losses[1]
    first.eval()
    before = deepcopy(first.state_dict())
    with torch.no_grad():
        first(**batch_of(3))
    torch.testing.assert_close(first.state_dict(), before, rtol=0, atol=0)


def test_pipelines_are_refused_and_left_out() -> None:
    given = load_machine("local").with_devices(RANKS), load_library(), 10.0, Training("adam"), None
    asked = SearchOptions(keeps_states=True)
    with pytest.raises(InputError, match="pipeline: every step changes a buffer"):
        planner_of("pipeline", *given, asked)
    assert asked.leaves_pipelines_out
    plan, made = planned_averages("zero"), captured_averages()
    pipelined = replace(plan, pipeline=PipelineFile(stages=2, micro_batches=2, schedule="1f1b"))
    with pytest.raises(InputError, match=r"every step changes buffer .* without a pipeline"):
        of_module(pipelined, made, ())


class Counted(nn.Linear):
    """A buffer of random counts, which no graph can repeat."""

    counts: Tensor

    def __init__(self, *, reads: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.reads = reads
        self.register_buffer("counts", torch.ones(WIDTH))

    def forward(self, input: Tensor) -> Tensor:
        h = super().forward(input)
        with torch.no_grad():
            self.counts.copy_(torch.poisson(self.counts))
        return (h * self.counts).sum() if self.reads else h.sum()


def test_what_no_graph_can_follow_is_refused_or_told() -> None:
    with pytest.raises(InputError, match="draws random numbers"):
        capture(Counted(reads=True), (torch.zeros(2, WIDTH),))
    captured = capture(Counted(reads=False), (torch.zeros(2, WIDTH),))
    assert captured.notes == ("buffer counts changes in forward, and a plan leaves it as it was",)
