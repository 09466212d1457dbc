"""The share of a step that functions take which are never cut."""

from __future__ import annotations

import pytest
from support.plans.by_hand import make_plan

from pcg.graph.opaque import TensorType, opaque
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.kept_whole import kept_whole

ROWS = TensorType((512, 64), "float32")
TOP = opaque("aten.tril.default(x0)", [ROWS], [ROWS])
BOTTOM = opaque("aten.triu.default(x0)", [ROWS], [ROWS])
NEEDS = frozenset[int](), frozenset({0})
TEXT = f"""
{TOP.declaration}
{BOTTOM.declaration}
x = input[512, 64]
w = weight[512, 64]
y = {TOP.name}({TOP.name}(multiply(x, w)))
return mean_loss(add(y, {BOTTOM.name}(x)))
"""


def test_shares_are_of_the_step_and_by_function() -> None:
    graph = parse_graph(TEXT)
    plan, cost = make_plan(graph, graph, 1, {}), CostModel(load_machine("local").with_devices(1))
    by_function = {kept.function: kept for kept in kept_whole(plan, cost)}
    assert {name: kept.calls for name, kept in by_function.items()} == {
        "aten.tril.default": 2,
        "aten.triu.default": 1,
    }
    top = next(node for node in graph.operators if node.name == TOP.name)
    forward, backward = (cost.compute_seconds(top, needs) for needs in NEEDS)
    # One function reads trained values, the other does not. A step of this plan takes half a
    # second.
    assert by_function["aten.triu.default"].share == pytest.approx(sum(forward) / 0.5)
    assert by_function["aten.tril.default"].share == pytest.approx(2 * sum(backward) / 0.5)
    assert sum(backward) > sum(forward)
    assert str(by_function["aten.tril.default"]).startswith("aten.tril.default (2 calls, ")


def test_plan_without_opaque_functions_lists_none() -> None:
    graph = parse_graph("x = input[4, 4]\nw = weight[4, 4]\nreturn mean_loss(multiply(x, w))")
    plan, cost = make_plan(graph, graph, 1, {}), CostModel(load_machine("local").with_devices(1))
    assert kept_whole(plan, cost) == ()
