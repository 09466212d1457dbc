"""Pipelines with a pass for weights (ZB-H1): their price and timeline, and when they are chosen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.pipelines import DEVICES, check_read_back, in_stages, layers

from pcg.machine import load_machine
from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.cost.cost import CostModel
from search.pipeline import tries
from search.pipeline.built.price import StageGroups, held_by_device, stage_seconds
from search.pipeline.planner import PipelinePlanner
from search.report.describe import pipeline_text
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library

FIVE_PRODUCTS = "\n".join(
    [
        "h0 = input[16, 4096]",
        *(f"w{i} = weight[4096, 4096]\nh{i + 1} = matmul(h{i}, w{i})" for i in range(5)),
        "return mean_loss(h5)",
    ]
)


@pytest.fixture(scope="module")
def library():
    return load_library()


@pytest.fixture(scope="module")
def machine():
    return load_machine("dgx-a100").with_devices(DEVICES)


@settings(max_examples=6, deadline=None)
@given(st.integers(4, 9), st.sampled_from([2, 4]), st.sampled_from([2, 4, 8]))
def test_pass_for_weights_takes_the_time_that_the_backward_pass_saves(count, stages, slices):
    """In total a stage works as long as before. The pass for weights is half the backward pass of
    products."""
    library = load_library()
    plan = in_stages(layers(count, 8, 512), library, slices, stages, "zb-h1", devices=stages)
    cost = CostModel(load_machine("dgx-a100").with_devices(stages))
    steps, groups = schedule(plan.graph, plan.views), StageGroups(stages, 1, slices)
    plain = stage_seconds(steps, cost, groups)
    parted = stage_seconds(steps, cost, groups, kind="zb-h1")
    assert sum(one.weights for one in parted) > 0
    for one, other in zip(plain, parted, strict=True):
        assert other.forward == pytest.approx(one.forward)
        assert other.backward + other.weights == pytest.approx(one.backward)
        # By 1F1B the last gradient of a weight is computed while that of its operand is sent.
        assert other.after >= one.after * (1 - 1e-9)
        # The gradient of the operand, which comes first, takes as long.
        assert other.backward >= other.weights


def test_a_transformer_takes_hardly_more_memory_than_by_1f1b(library, machine):
    """Later stages hold more. The first one holds only the gradients of its products' results."""
    gpt = Gpt(layers=4, hidden=64, heads=4, sequence=128, vocabulary=48, dropout=0.0)
    held = []
    for kind in ("1f1b", "zb-h1"):
        degrees = parse_degrees(f"pipeline=4,micro-batches=8,schedule={kind}")
        made = HandPlanner(machine, library, degrees).priced(graph_of(gpt, 8))
        groups = StageGroups(4, 1, 8)
        held.append(held_by_device(made.steps, CostModel(machine), groups, kind)[-1])
    plain, late = held
    assert all(plain < late)
    assert late[0] == max(late) <= 1.1 * plain[0]


def test_zero_bubble_is_chosen_if_it_is_faster(library, machine, tmp_path, monkeypatch):
    """Five products, which stages of several chunks would not share evenly."""
    graph = parse_graph(FIVE_PRODUCTS)
    plan = PipelinePlanner(machine, library).plan("layers", graph).plan
    assert plan.pipeline is not None
    assert plan.pipeline.schedule == "zb-h1"
    assert str(pipeline_text(plan)).endswith(", ZB-H1")
    check_read_back(plan, machine, tmp_path / "plan.json")
    monkeypatch.setattr(tries, "with_weights_pass", lambda one: one)
    other = PipelinePlanner(machine, library).plan("layers", graph).plan
    assert plan.estimates.step_seconds < other.estimates.step_seconds


@pytest.mark.parametrize("data", [1, 2])
def test_a_timeline_shows_every_pass_within_the_step(library, machine, data):
    """Groups of two devices, with the exchange of gradients."""
    plan = in_stages(layers(8, 16, 512), library, 4, DEVICES // data, "zb-h1")
    simulated = simulate_plan(plan, machine)
    run = simulated.pipeline
    assert run is not None
    assert simulated.step_seconds == pytest.approx(max(one.end for one in run.passes))
    for device in range(DEVICES):
        stage, events = device // data, list(run.events(device))
        own = [one for one in run.passes if one.stage == stage]
        kinds = [one.kind for one in own]
        assert kinds.count("weights") == kinds.count("backward") == 4
        for event in events:
            assert event.start >= -1e-12
            assert event.start + event.seconds <= simulated.step_seconds * (1 + 1e-9)
        by_stream = [[e for e in events if e.task.stream == s] for s in (0, 1)]
        for stream in by_stream:
            ordered = sorted(stream, key=lambda event: event.start)
            for one, then in pairwise(ordered):
                assert one.end <= then.start + 1e-9 * simulated.step_seconds
        used = run.usage(device)
        assert used.computing == pytest.approx(sum(e.seconds for e in by_stream[0]))
        assert used.communicating == pytest.approx(sum(e.seconds for e in by_stream[1]))
        assert sum(run.phases(stage).values()) == pytest.approx(simulated.step_seconds)
