"""A search that is ended early: its result, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from time import process_time
from typing import Any

import pytest
from support.cases import a_third
from support.graphs.behaviour import assert_same

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.choices import OTHER_SYSTEMS
from search.cost.cost import SGD
from search.cost.planned import NoPlanInTime, Planned, Planner, SearchReport
from search.cost.progress import GRACE, Progress, Status, Teller, timed_by
from search.cost.survey import RewriteSurvey
from search.pipeline.beside import WithPipelines
from search.pipeline.planner import PipelinePlanner
from search.plan.planner import MeshPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import Library, load_library
from unity.support.planners import planner_of

MACHINE = load_machine("summit").with_devices(6)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def model() -> Graph:
    return build_model("mlp-tiny", 24, 1)


@pytest.fixture(scope="module")
def whole(library: Library, model: Graph) -> Planned:
    """The result of a search that nothing ends early."""
    return mesh(library).plan("m", model)


def interrupting(*, after: int) -> Progress:
    """Interrupts a search once, when it has reported a plan that can run this many times."""
    told = 0

    def progress(status: Status) -> None:
        nonlocal told
        told += status.best is not None
        if told == after + 1 and status.best is not None:
            raise KeyboardInterrupt

    return progress


def mesh(library: Library, **options: object) -> MeshPlanner:
    return replace(MeshPlanner(MACHINE.with_devices(2), library), **options)


def check(plan: Plan, model: Graph, library: Library) -> None:
    assert_same(model, plan.graph)
    assert not replay(plan, library.rules).findings


@pytest.mark.parametrize("after", a_third([1, 0, 5]))
def test_an_interrupt_gives_the_best_plan_so_far(after, library, model):
    planned = mesh(library, teller=Teller(interrupting(after=after))).plan("m", model)
    assert planned.report.stop == "interrupted"
    check(planned.plan, model, library)


def test_without_a_plan_an_interrupt_ends_the_search(library, model):
    def at_once(status: Status) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mesh(library, teller=Teller(at_once)).plan("m", model)


def test_without_time_there_is_one_plan(library, model, whole):
    with timed_by(process_time):
        short = mesh(library, seconds=0.0).plan("m", model)
    assert short.report.stop == "time"
    assert whole.report.stop == "exhausted"
    assert short.report.simulated < whole.report.simulated
    assert short.report.phases["completing"] > 0
    check(short.plan, model, library)


def test_pipelines_without_time_are_few(library):
    graph = build_model("mlp-mnist", 64, 1)
    library.concrete(graph)  # known from before
    with timed_by(process_time):
        short, whole = (
            PipelinePlanner(MACHINE.with_devices(4), library, seconds=s).plan("m", graph)
            for s in (0.0, 600.0)
        )
    assert short.report.stop == "time"
    assert short.report.strategies < whole.report.strategies
    check(short.plan, graph, library)


def test_an_interrupt_among_pipelines_leaves_the_plan_that_is_known(model, whole):
    class Interrupted:
        def plan(self, name: str, graph: Graph) -> Planned:
            raise KeyboardInterrupt

    planned = WithPipelines(Known(whole), lambda *_: Interrupted()).plan("m", model)
    assert planned.plan is whole.plan
    assert planned.report.stop == "interrupted"


@pytest.mark.parametrize("is_slow", [False, True])
def test_an_interrupt_among_outlines_builds_what_is_quickly_built(is_slow, library, monkeypatch):
    """On a clock on which building takes long, there is no pipeline."""
    whole, clock = PipelinePlanner._outlines, count()
    slow = [False]

    def interrupted(self: PipelinePlanner, *given: Any) -> Iterator[object]:
        yield next(whole(self, *given))
        slow[0] = is_slow
        raise KeyboardInterrupt

    monkeypatch.setattr(PipelinePlanner, "_outlines", interrupted)
    planner = PipelinePlanner(MACHINE.with_devices(4), library)
    graph = build_model("mlp-mnist", 64, 1)
    with timed_by(lambda: next(clock) * (1.0 if slow[0] else 1e-6)):
        if is_slow:
            with pytest.raises(KeyboardInterrupt):
                planner.plan("m", graph)
        else:
            planned = planner.plan("m", graph)
            assert planned.report.stop == "interrupted"
            check(planned.plan, graph, library)


def test_pipelines_are_left_out_where_time_is_up(library, model):
    with timed_by(process_time):
        plain = mesh(library, seconds=0.0).plan("m", model)

    def none(than: float, used: float, brief: bool) -> Planner:
        raise AssertionError("asked for")

    assert WithPipelines(Known(plain), none).plan("m", model).plan is plain.plan


def test_report_adds_up_both_searches(model, whole):
    other = SearchReport(3, 2, "time", {"choosing": 1.0}, 5, RewriteSurvey(left=7))
    planned = WithPipelines(Known(whole), lambda *_: Known(replace(whole, report=other)))
    report = planned.plan("m", model).report
    assert report.simulated == whole.report.simulated + 2
    assert report.strategies == whole.report.strategies + 3
    assert report.known == whole.report.known + 5
    assert report.rewrites_left == whole.report.rewrites_left + 7
    assert report.phases["choosing"] == pytest.approx(whole.report.phases["choosing"] + 1.0)
    assert report.stop == "time"


class Known:
    """A planner that returns a given plan."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned

    def plan(self, name: str, graph: Graph) -> Planned:
        return self._planned


def test_a_model_without_operators_has_a_plan(library):
    graph = parse_graph("w = weight[]\nreturn w")
    assert mesh(library).plan("w", graph).plan.graph == graph


def looks(each: float) -> Callable[[], float]:
    """A clock that advances by this many seconds at each look, whatever the computer does
    meanwhile."""
    return count(0.0, each).__next__


@pytest.mark.parametrize(
    "budget", [0.5, *(pytest.param(seconds, marks=pytest.mark.soak) for seconds in (2.0, 4.0))]
)
def test_a_budget_ends_a_search_at_the_next_look_at_the_clock(budget, library):
    """There is a plan only after a hundred looks and more, so the search has some grace."""
    graph = build_model("dlrm-tiny", 48, 1)
    clock = count()

    def ticking() -> float:
        return next(clock) * 1e-3

    with timed_by(ticking):
        planned = mesh(library, seconds=budget).plan("m", graph)
    assert planned.report.stop == "time"
    assert_same(graph, planned.plan.graph)
    # Building a plan looks at the clock, too.
    assert next(clock) * 1e-3 < budget + GRACE + 0.1


def planners(library: Library) -> list[Planner]:
    by_hand = parse_degrees("tensor=2")
    return [
        mesh(library, seconds=5.0),
        PipelinePlanner(MACHINE, library, seconds=5.0),
        HandPlanner(MACHINE, library, by_hand, seconds=5.0),
        *(of_other_system(library, name) for name in OTHER_SYSTEMS),
    ]


def of_other_system(library: Library, name: str) -> Planner:
    return planner_of(name, MACHINE, library, 5.0, SGD, None)


@pytest.mark.parametrize("number", range(3 + len(OTHER_SYSTEMS)))
def test_without_a_plan_in_time_one_line_says_what_would_help(number, library):
    graph = build_model("bert-large-tiny", 8, 1)
    with timed_by(looks(1.0)), pytest.raises(NoPlanInTime) as raised:
        planners(library)[number].plan("bert", graph)
    told = str(raised.value)
    assert told.startswith("bert: no plan was found within 5 s")
    assert "--budget" in told
    assert "\n" not in told


def test_pipelines_that_are_cut_short_leave_the_plan_that_is_known(library, model, whole):
    known = whole.plan.estimates.step_seconds

    def hurried(than: float, used: float, brief: bool) -> Planner:
        assert than == known
        return PipelinePlanner(MACHINE.with_devices(2), library, seconds=-1.0, faster_than=than)

    planned = WithPipelines(Known(whole), hurried).plan("m", model)
    assert planned.plan is whole.plan
    assert planned.report.stop == "time"
