"""The whole search: plans mean what the model means, are priced as they run, and beat simple
ones; and all of it comes from the library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.models.mlp import mlp
from pcg.placement.schedule import schedule
from pcg.plan.check import check_graph
from pcg.plan.plan import Plan, load_plan, save_plan
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, evaluate_whole, meaning
from pcg.readings.ring import PrimeField
from search.backtracking import optimizer
from search.backtracking.optimizer import Optimizer, Settings
from search.cost.cost import CostModel
from search.cost.simulate import simulate
from substitutions.rules.store import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def same_meaning(plan: Plan) -> bool:
    """Whether the plan's shards add up to what the model computes, over a prime field."""
    ring = PrimeField()
    rng = np.random.default_rng(1)
    leaves = {n.leaf.name: rng.integers(0, ring.prime, n.types[0].shape) for n in plan.model.leaves}
    expected = evaluate_whole(plan.model, leaves, ring)
    shards = {name: values[None] for name, values in leaves.items()}
    found = evaluate_shards(plan.graph, shards, ring)
    pairs = zip(expected, found, strict=True)
    return all(np.array_equal(a, meaning(b, ring)) for a, b in pairs)


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    widths=st.lists(st.sampled_from([4, 6, 12]), min_size=2, max_size=4),
    batch=st.sampled_from([6, 12]),
    devices=st.sampled_from([2, 3, 4]),
    part=st.integers(1, 3),
    prediction=st.booleans(),
)
def test_plans_mean_what_the_model_means(
    library: Library, widths: list[int], batch: int, devices: int, part: int, prediction: bool
) -> None:
    # Small tensors are not worth a cut on a real machine: here communication is nearly free.
    machine = load_machine("tests/data/two-devices.toml").with_nodes(2).with_devices(devices)
    graph = mlp(batch, tuple(widths), prediction=prediction)
    tuned = Settings(part=part, budget=60, final_budget=20)
    plan = Optimizer(machine, library, tuned).optimize("mlp", graph).plan
    assert not check_graph(plan.graph, training=True)
    assert same_meaning(plan)


@pytest.mark.soak
def test_a_plan_is_priced_as_its_schedule_runs(library: Library) -> None:
    machine = load_machine("local")
    graph = build_model("mlp-mnist", 256, machine.devices)
    plan = Optimizer(machine, library).optimize("mlp-mnist", graph).plan
    steps = schedule(plan.graph, plan.views)
    simulated = simulate(steps, CostModel(machine)).step_seconds
    assert plan.estimates.step_seconds == pytest.approx(simulated)
    assert plan.estimates.step_seconds <= plan.estimates.one_device_seconds


@pytest.mark.soak
def test_blocks_that_are_alike_are_solved_once(library: Library) -> None:
    machine = load_machine("local").with_devices(2)
    tuned = Settings(budget=20, final_budget=1)
    short = Optimizer(machine, library, tuned).optimize("mlp", mlp(64, (256,) * 7)).report
    long = Optimizer(machine, library, tuned).optimize("mlp", mlp(64, (256,) * 15)).report
    assert long.parts > short.parts
    assert long.distinct_parts == short.distinct_parts


def test_without_rules_it_finds_nothing() -> None:
    graph = build_model("mlp-tiny", None, 4)
    found = Optimizer(load_machine("local"), Library((), "none")).optimize("mlp-tiny", graph)
    assert found.plan.graph.digest == graph.digest
    assert not found.plan.derivation


@pytest.mark.soak
def test_a_search_is_deterministic(library: Library) -> None:
    machine = load_machine("local").with_devices(2)
    graph = build_model("mlp-tiny", None, 2)
    runs = [Optimizer(machine, library).optimize("mlp-tiny", graph).plan for _ in range(2)]
    assert runs[0].graph.digest == runs[1].graph.digest
    assert runs[0].views == runs[1].views
    assert runs[0].derivation == runs[1].derivation


@pytest.mark.soak
def test_what_the_search_did_is_told(library: Library) -> None:
    search = Optimizer(load_machine("local"), library, Settings(budget=60, final_budget=20))
    first, again = (search.planned("mlp", mlp(64, (64, 64, 64))) for _ in range(2))
    assert first.report.strategies > 50
    assert first.report.known > 0
    assert first.report.phases.keys() == {"rules", "pricing", "rewriting"}
    assert sum(first.report.phases.values()) == pytest.approx(first.seconds)
    # The second time everything is known.
    assert again.report.strategies == 0
    assert again.plan == first.plan


@pytest.mark.soak
def test_exchanges_that_the_whole_hides_count_less(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data parallelism exchanges each part's gradients while the parts before it go back."""
    machine, graph = load_machine("local"), mlp(1024, (256, 256, 256))

    def seconds() -> float:
        found = Optimizer(machine, library, Settings(budget=60, final_budget=5)).optimize(
            "mlp", graph
        )
        return found.plan.estimates.step_seconds

    hidden = seconds()
    monkeypatch.setattr(optimizer, "SYNC_COUNTED", (1.0,))
    assert hidden < 0.95 * seconds()


def test_a_plan_survives_its_file(library: Library, tmp_path: object) -> None:
    machine = load_machine("local").with_devices(2)
    graph: Graph = build_model("mlp-tiny", None, 2)
    tuned = Settings(budget=60, final_budget=20)
    plan = Optimizer(machine, library, tuned).optimize("mlp-tiny", graph).plan
    path = f"{tmp_path}/plan.json"
    save_plan(plan, path)
    again = load_plan(path)
    assert again.graph.digest == plan.graph.digest
    assert again.views == plan.views
    assert again.derivation == plan.derivation


def test_one_optimizer_for_graphs_of_different_ranks(library: Library) -> None:
    """Each graph is searched with the rules at its own ranks, whatever came before."""
    machine = load_machine("local").with_devices(2)
    flat = parse_graph("x = input[64, 64]\nw = weight[64, 64]\nreturn sum_loss(relu(matmul(x, w)))")
    deep = parse_graph(
        "x = input[2, 64, 64]\nw = weight[64, 64]\nreturn sum_loss(gelu(matmul(x, w)))"
    )
    tuned = Settings(budget=60, final_budget=20)
    both = Optimizer(machine, library, tuned)
    flat_alone, deep_alone = (
        Optimizer(machine, library, tuned).optimize("graph", graph).plan for graph in (flat, deep)
    )
    for graph, alone in ((flat, flat_alone), (deep, deep_alone), (flat, flat_alone)):
        plan = both.optimize("graph", graph).plan
        assert plan.graph.digest == alone.graph.digest
        assert plan.derivation == alone.derivation


def with_memory(machine: Machine, memory: int) -> Machine:
    device = machine.device.model_copy(update={"memory_bytes": memory})
    return machine.model_copy(update={"device": device})


def test_a_plan_that_does_not_fit_is_refused_with_what_it_misses_by(library: Library) -> None:
    machine = with_memory(load_machine("local").with_devices(2), 1_000_000)
    graph = build_model("mlp-tiny", None, 2)
    with pytest.raises(NegativeAnswer, match=r"does not fit local: .* misses by 0\.0\d GB"):
        Optimizer(machine, library, Settings(budget=60, final_budget=20)).optimize("m", graph)


@pytest.mark.soak
def test_a_slower_plan_that_fits_is_preferred(library: Library) -> None:
    machine = load_machine("local").with_devices(2)
    graph = build_model("mlp-tiny", None, 2)
    free = Optimizer(machine, library).optimize("mlp-tiny", graph).plan.estimates
    tight = with_memory(machine, free.peak_memory_bytes - 1)
    found = Optimizer(tight, library).optimize("mlp-tiny", graph).plan.estimates
    assert found.peak_memory_bytes < free.peak_memory_bytes
    assert found.step_seconds >= free.step_seconds


def test_one_device_runs_branches_one_after_the_other() -> None:
    """Whatever the machine: a plan that uses more devices is no plan for one."""
    text = "x = input[512, 512]\nw = weight[512, 512]\nv = weight[512, 512]\n"
    branches = "sum_loss(relu(matmul(x, w))), sum_loss(gelu(matmul(x, v)))"
    graph, machine = parse_graph(f"{text}return {branches}"), load_machine("summit")
    plan = Optimizer(machine, Library((), "none")).optimize("branches", graph).plan
    alone = Optimizer(machine.with_devices(1), Library((), "none")).optimize("branches", graph).plan
    assert plan.estimates.step_seconds < alone.estimates.step_seconds
    assert plan.estimates.one_device_seconds == pytest.approx(alone.estimates.step_seconds)
