"""Each kind of plan for deep models: it agrees with one process, and survives a killed worker.

The model is a tiny transformer of four blocks. The plans are stated by hand, so that each kind
occurs whatever a search would choose.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from support.runs.commands import run_here
from support.runs.disturbed import survives_a_kill

from pcg.machine import load_machine
from pcg.plan.plan import save_plan
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from substitutions.rules.store import Library, load_library

pytestmark = [pytest.mark.distributed, pytest.mark.soak]

KINDS = (
    "sharded",
    "sharded,recompute=full",
    "micro-batches=4,sharded",
    "tensor=4",
    "tensor=4,sequence",
    "tensor=2,sharded",
    "tensor=2,recompute=selective",
    "tensor=2,sequence,recompute=alternate",
    "micro-batches=4,tensor=2",
    "pipeline=2,micro-batches=4",
    "pipeline=4,micro-batches=4,recompute=full",
    "pipeline=2,micro-batches=4,interleave=2",
    "pipeline=2,micro-batches=4,schedule=zb-h1,tensor=2",
    "pipeline=2,micro-batches=4,sharded",
    "pipeline=2,micro-batches=2,tensor=2,sequence,recompute=selective",
)
STEPS, EVERY, KILLED = 24, 6, 8


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.mark.parametrize("kind", KINDS)
def test_kind_agrees_and_survives_a_killed_worker(kind: str, library: Library, tmp_path: Path):
    graph = graph_of(Gpt(4, 16, 4, 8, 24, dropout=0.0), 16)
    planner = HandPlanner(load_machine("local"), library, parse_degrees(kind))
    plan = tmp_path / "plan.json"
    save_plan(planner.plan("gpt", graph).plan, plan)
    checked = run_here(plan, "--steps", "2", "--check")
    assert checked.status == 0, checked.err
    assert "agrees with one process to 1e-" in checked.err + checked.out
    adam = ("--optimizer", "adam", "--lr", "0.01", "--timeout", "60")
    given = ("--steps", str(STEPS), "--every", str(EVERY), *adam)
    assert survives_a_kill(plan, tmp_path, given, steps=STEPS, every=EVERY, at=KILLED)
