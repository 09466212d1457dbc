"""Branches on devices of their own: when they are faster, and that they compute the same."""

from __future__ import annotations

import pytest
from support.graphs.behaviour import assert_same

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import by_equation
from search.cost.cost import CostModel
from search.map.choose.choosing import ALL, Chooser, Exposed
from search.map.rules.cuts import Cuts
from search.map.space.allow import everything
from search.plan import planner as plans
from search.plan.planner import MeshPlanner
from search.refine import overlap
from search.refine.spread import Spread, branch_loads
from substitutions.audit.replay import replay
from substitutions.rules.store import Library, load_library

TOWERS = """
x = input[257, 263]
w = weight[263, 269]
v = weight[263, 269]
return mean_loss(add(gelu(matmul(x, w)), relu(matmul(x, v))))
"""
"""These sizes cannot be cut."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def plan_of(library: Library, graph: Graph, machine: Machine) -> Plan:
    return MeshPlanner(machine, library).plan("branches", graph).plan


def test_branches_that_cannot_be_cut_run_side_by_side(library):
    graph = parse_graph(TOWERS)
    plan = plan_of(library, graph, load_machine("summit").with_devices(2))
    products = [view for node, view in plan.views.items() if node.name.startswith("matmul")]
    assert sorted(view.devices for view in products) == [(0,), (1,)]
    assert_same(graph, plan.graph, by_equation)
    assert not replay(plan, library.rules).findings


def test_resharding_around_branches_reduces_their_expected_gain(library):
    graph, machine = build_model("xdl-tiny", 24, 1), load_machine("summit").with_devices(6)
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(library.concrete(graph)))

    def promised(exposed: Exposed, *, around: bool) -> float:
        spread = Spread(chooser.choose(graph, exposed=exposed), {})
        return sum(
            s.saved for s in branch_loads(chooser, spread, everything, exposed, around=around)
        )

    assert promised(ALL, around=True) < promised(ALL, around=False)
    hidden = Exposed(resharding=0.0)
    assert promised(hidden, around=True) == pytest.approx(promised(hidden, around=False))


@pytest.mark.soak
def test_branches_of_a_larger_model_share_the_devices(library, monkeypatch):
    """Towers run on devices of their own. Fewer devices exchange the gradients of each, before any
    refinement."""
    monkeypatch.setattr(plans, "refine", lambda *_: None)
    graph = build_model("candle-uno-tiny", 24, 1)
    machine = load_machine("summit").with_devices(2)
    plan = plan_of(library, graph, machine)
    assert any(view.start for view in plan.views.values())
    assert_same(graph, plan.graph)
    assert not replay(plan, library.rules).findings
    monkeypatch.setattr(overlap, "SIDES", 0)
    without = plan_of(library, graph, machine)
    assert plan.estimates.step_seconds < 0.95 * without.estimates.step_seconds
