"""Orders of issue of plans on more devices than refinement is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pcg.machine import load_machine
from pcg.placement.order import has_orders, order_problem
from pcg.plan.text import parse_graph
from search.cost.progress import OutOfTime
from search.plan import planner
from search.plan.planner import MeshPlanner
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library

TABLES = """
x = input[4096, 1024]
i = input[4096] below 1000000
j = input[4096] below 1000000
s = weight[1000000, 64]
t = weight[1000000, 64]
a = weight[1024, 2048]
b = weight[2048, 64]
rows = add(embedding(i, s), embedding(j, t))
return mean_loss(multiply(rows, matmul(relu(matmul(x, a)), b)))
"""
"""Rows of tables that are communicated, and products that may hide that."""


def test_communication_is_issued_while_another_branch_computes():
    machine = load_machine("summit").with_nodes(8)
    plan = MeshPlanner(machine, load_library()).plan("tables", parse_graph(TABLES)).plan
    assert order_problem(plan.graph, plan.order) is None
    seconds = simulate_plan(plan, machine).step_seconds
    assert seconds == plan.estimates.step_seconds
    assert seconds < simulate_plan(replace(plan, order=()), machine).step_seconds


@pytest.mark.parametrize(
    ("last", "expected"), [("matmul(x, w)", False), ("add(relu(x), gelu(x))", True)]
)
def test_a_chain_has_one_order(last: str, expected: bool):
    graph = parse_graph(f"x = input[8, 8]\nw = weight[8, 8]\nreturn mean_loss({last})")
    assert has_orders(graph) is expected


def test_a_search_that_is_cut_short_orders_its_plan(monkeypatch):
    def time_is_up(*_: object) -> None:
        raise OutOfTime

    monkeypatch.setattr(planner, "move_once", time_is_up)
    machine = load_machine("summit").with_nodes(8)
    planned = MeshPlanner(machine, load_library()).plan("tables", parse_graph(TABLES))
    assert planned.report.stop == "time"
    assert planned.plan.order
