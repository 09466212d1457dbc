"""Fixtures for the tests of forged plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans.by_hand import make_plan
from support.plans.forged_plans import GRAPH, MODEL

from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from substitutions.rules.store import load_rules


@pytest.fixture
def plan_path(tmp_path, monkeypatch) -> Path:
    """A valid plan in the current folder."""
    load_rules(())  # kept from then on, also for the forks that audit
    monkeypatch.chdir(tmp_path)
    model, graph = parse_graph(MODEL), parse_graph(GRAPH)
    save_plan(make_plan(model, graph, 2, {}), tmp_path / "plan.json")
    return tmp_path / "plan.json"
