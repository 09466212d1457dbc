"""What searches tell of themselves."""

from __future__ import annotations

from math import inf

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from search.cost.cost import SGD
from search.cost.progress import Phases, Status, Teller
from substitutions.rules.store import Library, load_library
from unity.support.planners import planner_of


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def check(told: list[Status], seconds: float) -> None:
    """Candidates and the best only get more and better, and the best is what is returned."""
    counts = [status.candidates for status in told]
    assert counts == sorted(counts)
    assert counts[-1] > 1
    best = [inf if status.best is None else status.best for status in told]
    assert best == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("planner", "works"),
    [
        ("joint", {"rules", "all strategies", "tensor parallelism", "1 stage x 2 micro-batches"}),
        ("pipeline", {"1 stage x 2 micro-batches", "2 stages x 2 micro-batches"}),
    ],
)
def test_planners_tell_how_far_they_are(planner, works, library):
    told: list[Status] = []
    machine = load_machine("local").with_devices(2)
    chosen = planner_of(planner, machine, library, 60.0, SGD, None, progress=told.append)
    plan = chosen.plan("mlp-mnist", build_model("mlp-mnist", None, 2)).plan
    assert works <= {status.work for status in told}
    check(told, plan.estimates.step_seconds)


def test_what_cannot_be_run_is_no_best():
    told: list[Status] = []
    teller = Teller(told.append)
    teller.works_on("all")
    teller.priced()
    assert told == [Status("all", 0, None), Status("all", 1, None)]


def test_phases_add_up():
    phases = Phases()
    assert [phases.timed("one", lambda: 1), phases.timed("one", lambda: 2)] == [1, 2]
    assert phases.seconds.keys() == {"one"}
    assert phases.seconds["one"] >= 0
