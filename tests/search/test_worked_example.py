"""The worked example of the Unity paper (section 1): batch 64, 784-512-10, two devices.

The paper compares data parallelism after fusion, which exchanges both weights' gradients, with
reduction parallelism on the first layer, which exchanges that layer's output and its gradient. The
search chooses both from generated rules alone when it is limited to that family of plans. Without
limits, it finds a plan that exchanges far less: reduction parallelism on the second layer. Elements
are counted in both directions, forward and backward, without the loss, which is one number.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.paths import ROOT

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.placement.schedule import schedule
from pcg.plan.plan import Plan
from search.choices import Mode
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.map.building import Builder
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import Mask
from search.map.space.strategies import Space
from search.plan.finish import finished
from search.plan.planner import MeshPlanner
from search.report.describe import rows
from substitutions.rules.store import Library, load_library

BATCH, INPUTS, HIDDEN, OUTPUTS = 64, 784, 512, 10
MACHINE = ROOT / "tests" / "data" / "two-devices.toml"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine(MACHINE)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def model(machine: Machine) -> Graph:
    return build_model("mlp-mnist", BATCH, machine.devices)


def paper_family(node: Node, space: Space) -> Mask:
    """The first layer cut along the sum, its readers copied, and the second layer cut along its
    outputs."""
    if node.name == "matmul":
        first = node.inputs[0].type.shape == (BATCH, INPUTS)
        wanted = "k" if first else "n"
    else:
        wanted = "none" if node.name == "relu" else "i1"
    at = [place for place, axis in enumerate(space.axes) if axis.name == wanted]
    cuts = space.strategies >= 0
    mask = (~cuts | np.isin(space.strategies, at)).all(axis=1)
    return np.asarray(mask & cuts.any(axis=1) if at else mask, np.bool_)


def test_data_parallelism_exchanges_the_gradients_of_both_weights(machine, library, model):
    planner = MeshPlanner(machine, library, mode=Mode.ALGEBRA)
    plan = planner.plan("mlp-mnist", model).plan
    exchanged = plan.estimates.communication_elements
    assert exchanged == 2 * (INPUTS * HIDDEN + HIDDEN * OUTPUTS) == 813_056
    assert all(step.rule for step in plan.derivation)


@pytest.fixture(scope="module")
def papers(machine: Machine, library: Library, model: Graph) -> Plan:
    """The best plan of the paper's family."""
    cost = CostModel(machine)
    chooser = Chooser.on(cost, Cuts.of_rules(library.concrete(model)))
    choice = chooser.choose(model, 0.0, paper_family)
    cut = Builder(chooser.spaces).cut(choice, Derivation.start(model))
    steps = schedule(cut.graph, cut.views)
    known = "mlp-mnist", model, cut, steps, cost, library.hash
    return finished(*known, seconds=choice.seconds, memory=0)


def test_reduction_parallelism_exchanges_the_papers_4bh(papers: Plan):
    assert papers.estimates.communication_elements == 4 * BATCH * HIDDEN == 131_072
    cuts = {row.call: row.cut for row in rows(papers) if row.call.startswith("matmul")}
    assert list(cuts.values()) == ["reduction 2", "model 2"]


def test_the_free_search_finds_a_reduction_parallel_plan_that_exchanges_less(
    machine, library, model, papers
):
    plan = MeshPlanner(machine, library).plan("mlp-mnist", model).plan
    cuts = [row.cut for row in rows(plan) if row.call.startswith("matmul")]
    assert any("reduction 2" in cut for cut in cuts)
    assert plan.estimates.communication_elements <= 4 * BATCH * HIDDEN
    assert plan.estimates.step_seconds <= papers.estimates.step_seconds
