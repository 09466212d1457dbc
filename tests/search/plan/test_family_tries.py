"""Families of strategies are tried on a graph, ruled out by a bound, or put off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from search.choices import IndexRole
from search.plan import planner as module
from search.plan.families import EVERY, Strategies
from search.plan.family_tries import FamilyTries
from search.plan.incumbent import PricedPlan, SearchState
from search.plan.planner import MeshPlanner
from search.refine.tried import Tried
from substitutions.rules.store import load_library

NOTHING: Any = None
MACHINE = load_machine("local")
CHOOSER = SimpleNamespace(pricing=SimpleNamespace(cost=SimpleNamespace(machine=MACHINE)))
Plans = list[Tried[tuple[PricedPlan, ...]]]
DATA = Strategies("data", NOTHING, data_parallel=True)
BRIEF = Strategies("brief", NOTHING)
SHARDED = Strategies("sharded", NOTHING, fully_sharded=True)


@dataclass(eq=False)
class Trials:
    """Finds a plan of 3 seconds at first, and one of 2 seconds further on. ``promise``: what each
    family promises; ``memory``: bytes of each plan, where there are 2."""

    promise: float = 0.0
    memory: int = 1
    found: list[str] = field(default_factory=list[str])
    graph: Any = None
    busy_bound: None = None
    chooser: Any = field(default_factory=lambda: CHOOSER)

    def first(self, price: float, _: object) -> Plans:
        self.found.append("first")
        return [self._plan(3.0)]

    def further(self, first: Plans, _: object) -> Plans:
        self.found.append("further")
        return [*first, self._plan(2.0)]

    def fully_sharded(self, tried: Any) -> Any:
        return tried

    def promised(self, _: object) -> float:
        self.found.append("promised")
        return self.promise

    def promised_by(self, _: object) -> float:
        return self.promise

    def _plan(self, seconds: float) -> Tried[tuple[PricedPlan, ...]]:
        plan = PricedPlan(NOTHING, seconds, self.memory, 2, 1, 0.0, 0.0)
        return Tried(NOTHING, seconds, {}, (plan,))


def tried(
    trial: Any, families: Iterable[Strategies], *, known: float, at_first: bool = False
) -> tuple[FamilyTries, SearchState]:
    """What is known after families were tried on one graph. ``known``: seconds of the best plan
    before."""
    teller: Any = SimpleNamespace(works_on=lambda *_: None)
    tries = FamilyTries(MACHINE, None, NOTHING, deep=True, teller=teller)
    search = SearchState(rival=known)
    tries.try_all(trial, families, search, at_first=at_first)
    return tries, search


def test_a_family_is_left_out_if_it_promises_no_faster_plan():
    slow, fast = Trials(promise=4.0), Trials(promise=2.0)
    assert not tried(slow, [BRIEF], known=3.5)[1].fastest
    assert slow.found == ["promised"]
    assert tried(fast, [BRIEF], known=3.5)[1].fastest == {fast: 3.0}


@pytest.mark.parametrize("family", [DATA, SHARDED, EVERY])
def test_no_promise_leaves_out_data_parallelism_sharded_weights_or_all_strategies(family):
    """Others are compared with the first, and a promise is no bound of the second. The bound of a
    graph stands for the third."""
    trial: Any = Trials(promise=9.0)
    _, search = tried(trial, [family], known=3.5)
    assert "promised" not in trial.found
    assert trial in search.fastest


def test_further_settings_are_put_off_and_tried_once():
    trial: Any = Trials()
    tries, search = tried(trial, [EVERY], known=9.0, at_first=True)
    assert trial.found == ["first"]
    assert search.fastest == {trial: 3.0}
    tries.look_further(trial, search)
    assert trial.found == ["first", "further"]
    assert search.fastest == {trial: 2.0}


def test_nothing_is_put_off_if_the_first_plans_do_not_fit():
    trial: Any = Trials(memory=3, promise=10.0)
    tries, search = tried(trial, [EVERY], known=9.0, at_first=True)
    assert trial.found[:2] == ["first", "further"]
    before = list(trial.found)
    tries.look_further(trial, search)
    assert trial.found == before


@pytest.mark.parametrize("name", ["xdl-tiny", pytest.param("mlp-tiny", marks=pytest.mark.soak)])
def test_a_large_graph_without_rewrites_gets_the_same_plan(name, monkeypatch):
    """Whether settings are put off makes no difference if the graph stays as it is."""
    machine = load_machine("summit").with_devices(4)
    graph = build_model(name, None, machine.devices)
    monkeypatch.setattr(MeshPlanner, "_rewritten", lambda *_: None)
    plans = []
    for is_large in (False, True):
        monkeypatch.setattr(module, "is_large", lambda _, large=is_large: large)
        made = MeshPlanner(machine, load_library()).plan(name, graph)
        plans.append(made.plan.estimates)
    assert plans[0] == plans[1]


def test_rewrites_are_judged_by_strategies_that_may_be_used(monkeypatch):
    """If only samples may be divided, no rewrite is judged with other cuts."""
    machine = load_machine("summit").with_devices(4)
    graph = build_model("mlp-tiny", None, machine.devices)
    seen = []

    def look(*given: Any) -> None:
        variant, _, chooser, _, allowed, choice = given
        best = chooser.choose(variant.graph, allowed=allowed(variant.graph))
        seen.append(choice.seconds == best.seconds)
        everywhere = chooser.choose(variant.graph)
        seen.append(everywhere.seconds < best.seconds)

    monkeypatch.setattr(module, "rewritten", look)
    MeshPlanner(machine, load_library(), dimensions=frozenset([IndexRole.DATA])).plan("m", graph)
    assert seen == [True, True]
