"""A plan with another placement of one operator computes the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans.cut_by_hand import CUTS, LINEAR, LINEAR_MODEL, machine, plan_of, simulated

from pcg.graph.graph import Node, Value
from pcg.placement.schedule import trace
from pcg.plan.check import Placement, check_graph, check_placement
from pcg.plan.plan import Plan, load_plan, save_plan
from search.cost.cost import CostModel
from search.report.alternatives import Alternatives
from search.report.replaced import OperatorPlacement, replaced
from search.report.trace import price_plan

PLANS = {name: plan_of(text) for name, text in CUTS.items()}
PLANS["passing"] = plan_of(LINEAR, LINEAR_MODEL)
ALTERNATIVES = {name: Alternatives(simulated(plan)) for name, plan in PLANS.items()}


def operators(plan: Plan) -> list[Node]:
    return [node for node in plan.graph.nodes if node in plan.views]


def own(plan: Plan, node: Node) -> OperatorPlacement:
    return OperatorPlacement(tuple(value.type for value in node.inputs), plan.views[node])


def bare(value: Value) -> object:
    """A value without parallel operators."""
    source = trace(value)[0]
    if source.node.is_leaf:
        return source.node.leaf.uncut
    return source.node.call, source.port, tuple(map(bare, source.node.inputs))


@pytest.mark.parametrize("name", PLANS)
def test_replacing_a_placement_by_itself_changes_nothing(name):
    plan = PLANS[name]
    for node in operators(plan):
        made = replaced(plan, {node: own(plan, node)})
        assert made is not None
        assert made.graph == plan.graph
        assert made.views == plan.views


@given(st.data())
def test_plan_with_another_placement_computes_the_same_graph(tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(PLANS)))
    plan, alternatives = PLANS[name], ALTERNATIVES[name]
    nodes = operators(plan)
    place = data.draw(st.integers(0, len(nodes) - 1))
    wanted = data.draw(st.sampled_from(alternatives.placements(nodes[place])))
    made = replaced(plan, {nodes[place]: wanted})
    assert made is not None
    assert [bare(v) for v in made.graph.outputs] == [bare(v) for v in plan.graph.outputs]
    assert [v.type.shape for v in made.graph.outputs] == [v.type.shape for v in plan.graph.outputs]
    assert not check_graph(made.graph, training=True)
    assert not check_placement(Placement(made.graph, made.views, 4))
    changed = operators(made)[place]
    assert own(made, changed) == wanted
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    save_plan(made, path)
    assert load_plan(path).graph == made.graph


@given(st.data())
def test_replacing_a_placement_and_back_keeps_the_price(data):
    """Except partial sums that passed: they do not come back."""
    name = data.draw(st.sampled_from(sorted(CUTS)))
    plan = PLANS[name]
    nodes = operators(plan)
    place = data.draw(st.integers(0, len(nodes) - 1))
    wanted = data.draw(st.sampled_from(ALTERNATIVES[name].placements(nodes[place])))
    there = replaced(plan, {nodes[place]: wanted})
    assert there is not None
    back = replaced(there, {operators(there)[place]: own(plan, nodes[place])})
    assert back is not None
    cost = CostModel(machine())
    # A weight whose reader has moved is stored anew, no longer in parts.
    if name != "sharded":
        assert price_plan(back, cost) == price_plan(plan, cost)


def test_replaced_plan_needs_no_missing_partial_sums():
    plan = PLANS["passing"]
    first, second, _ = operators(plan)
    whole = next(
        placed for placed in ALTERNATIVES["passing"].placements(first) if placed.view.size == 1
    )
    made = replaced(plan, {first: whole})
    assert made is not None
    now = operators(made)[1]
    assert [value.type.degrees.partials for value in second.inputs] == [4, 1]
    assert [value.type.degrees.partials for value in now.inputs] == [1, 1]
    assert sorted(made.views[now].devices) == [0, 1, 2, 3]
