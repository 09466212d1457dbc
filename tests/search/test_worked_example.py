"""The worked example of the Unity paper (section 1): batch 64, 784-512-10, two devices.

The paper compares data parallelism after fusion, which exchanges both weights' gradients, with
reduction parallelism on the first layer, which exchanges that layer's output and its gradient.
Both are found by the search from generated rules alone when it is held to that family of plans;
left free, it finds a plan, reduction-parallel on the second layer, that exchanges far less.
Elements are counted in both directions, forward and backward, without the loss, a number.
"""

from __future__ import annotations

import pytest
from support.paths import ROOT

from pcg.graph.graph import Node
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.placement.layout import grid
from search.backtracking.optimizer import Allow, Optimized, Optimizer, Settings, anything
from search.report.describe import rows
from substitutions.rules.store import load_library

BATCH, INPUTS, HIDDEN, OUTPUTS = 64, 784, 512, 10
MACHINE = ROOT / "tests" / "data" / "two-devices.toml"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine(MACHINE)


def search(machine: Machine, allow: Allow, part: int = 100) -> Optimized:
    graph = build_model("mlp-mnist", BATCH, machine.devices)
    settings = Settings(part=part, budget=400, final_budget=50)
    return Optimizer(machine, load_library(), settings, allow=allow).optimize("mlp-mnist", graph)


def cut_axes(node: Node) -> set[str]:
    """The indices of an operator that are cut, by name."""
    typing = node.operator_call.typing(tuple(value.type.rank for value in node.inputs))
    degrees = zip(typing.axes, grid(node), strict=False)
    return {axis.name for axis, degree in degrees if degree > 1}


def data_parallel(node: Node) -> bool:
    return node.name != "join" and cut_axes(node) <= {"a0", "i0"}


def paper_family(node: Node) -> bool:
    """The first layer cut along the sum, what follows it copied, the second along its outputs."""
    if node.name == "matmul":
        first = node.inputs[0].type.shape == (BATCH, INPUTS)
        return cut_axes(node) <= ({"k"} if first else {"n"})
    if node.name == "relu":
        return not cut_axes(node)
    return cut_axes(node) <= {"i1"}


@pytest.mark.soak
def test_data_parallelism_exchanges_the_gradients_of_both_weights(machine: Machine) -> None:
    found = search(machine, data_parallel)
    exchanged = found.plan.estimates.communication_elements
    assert exchanged == 2 * (INPUTS * HIDDEN + HIDDEN * OUTPUTS) == 813_056
    assert all(step.rule for step in found.plan.derivation)


@pytest.fixture(scope="module")
def papers(machine: Machine) -> Optimized:
    """The best plan of the paper's family."""
    return search(machine, paper_family)


def test_reduction_parallelism_exchanges_the_papers_4bh(papers: Optimized) -> None:
    found = papers
    assert found.plan.estimates.communication_elements == 4 * BATCH * HIDDEN == 131_072
    cuts = {row.call: row.cut for row in rows(found.plan) if row.call.startswith("matmul")}
    assert list(cuts.values()) == ["reduction 2", "model 2"]


def test_the_free_search_finds_a_reduction_parallel_plan_that_exchanges_less(
    machine: Machine, papers: Optimized
) -> None:
    found = search(machine, anything, part=2)
    cuts = [row.cut for row in rows(found.plan) if row.call.startswith("matmul")]
    assert any("reduction 2" in cut for cut in cuts)
    assert found.plan.estimates.communication_elements <= 4 * BATCH * HIDDEN
    assert found.plan.estimates.step_seconds <= papers.plan.estimates.step_seconds
