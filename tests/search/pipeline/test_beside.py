"""Pipelines that a planner asks for during its search: they are searched once, and the better plan
is returned."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from math import inf
from time import sleep

import pytest
from support.plans.pipelines import layers, planned
from support.small.forks import wait_for_forks
from support.small.rivals import FixedRival

from pcg.errors import NegativeAnswer
from pcg.fork import RUNNING
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.cost.planned import (
    DataParallelStep,
    InterruptedWithPlan,
    NoFasterPlan,
    NoPlanInTime,
    Planned,
    SearchReport,
    Stop,
)
from search.cost.progress import Status
from search.pipeline.beside import WithPipelines
from search.plan.planner import MeshPlanner
from search.refine.processes import Child
from search.split import blocks as module
from search.split.blocks import folded
from substitutions.rules.store import load_library

Outcome = float | BaseException
"""Seconds of a step of the plan that a planner makes, or the exception that it raises instead."""
NOTHING_FITS = NegativeAnswer("m: nothing fits")


@pytest.fixture(scope="module")
def any_plan() -> Plan:
    return planned("tied", load_library(), 4, 2)


def made(plan: Plan, outcome: Outcome, stop: Stop = "exhausted") -> Planned:
    """The plan of an outcome. Raises the outcome if it is an exception."""
    if isinstance(outcome, BaseException):
        raise outcome
    estimates = plan.estimates.model_copy(update={"step_seconds": outcome})
    report, data_parallel = SearchReport(1, 1, stop, {}), DataParallelStep(1.0)
    return Planned(replace(plan, estimates=estimates), report, 0.5, data_parallel)


@dataclass
class Pipelines:
    """A planner of pipelines with an outcome for each search, and the limits that it was given."""

    any_plan: Plan
    outcomes: list[Outcome]
    stop: Stop = "exhausted"
    limits: list[float] = field(default_factory=list[float])
    brief: list[bool] = field(default_factory=list[bool])

    def __call__(self, than: float, used: float, brief: bool) -> Pipelines:
        assert used >= 0
        self.limits.append(than)
        self.brief.append(brief)
        return self

    def plan(self, name: str, graph: Graph) -> Planned:
        return made(self.any_plan, self.outcomes[len(self.limits) - 1], self.stop)


@dataclass
class Asking:
    """A planner that asks for its rival when it has a plan of ``known`` seconds, and notes the
    answer."""

    any_plan: Plan
    outcome: Outcome
    known: float = 5.0
    stop: Stop = "exhausted"
    brief: bool = False
    rival: WithPipelines | None = None
    begins: float | None = None
    """The limit with which the rival begins, if it does."""
    heard: list[float | str] = field(default_factory=list[float | str])

    def plan(self, name: str, graph: Graph) -> Planned:
        assert self.rival is not None
        stop = self.stop
        if self.begins is not None:
            self.rival.begin(name, graph, self.begins)
        try:
            self.heard.append(self.rival.step(name, graph, self.known, self.brief))
        except KeyboardInterrupt:
            self.heard.append("interrupted")
            stop = "interrupted"
        return made(self.any_plan, self.outcome, stop)


@dataclass
class Hasty(Asking):
    """A planner that lets its rival begin, and ends without asking for it."""

    is_last: bool = False
    """Whether it ends after the process of its rival."""

    def plan(self, name: str, graph: Graph) -> Planned:
        assert self.rival is not None
        self.rival.begin(name, graph, inf)
        assert self.is_last or RUNNING
        if self.is_last:
            wait_for_forks()
        return made(self.any_plan, self.outcome, self.stop)


def of_both(asking: Asking, pipelines: Pipelines) -> WithPipelines:
    both = WithPipelines(asking, pipelines)
    asking.rival = both
    return both


@pytest.mark.parametrize(("plain", "pipelined"), [(3.0, 4.0), (4.0, 3.0), (3.0, 3.0)])
def test_rival_is_searched_once_for_the_planner_that_asks(any_plan, plain: float, pipelined: float):
    asking, pipelines = Asking(any_plan, plain), Pipelines(any_plan, [pipelined])
    answer = of_both(asking, pipelines).plan("m", any_plan.model)
    assert asking.heard == [pipelined]
    assert pipelines.limits == [asking.known]
    assert answer.plan.estimates.step_seconds == min(plain, pipelined)
    assert answer.report.simulated == 2
    assert answer.data_parallel_seconds == 1.0


@pytest.mark.parametrize("first", [4.0, 7.0])
def test_a_brief_search_that_finds_nothing_faster_is_made_again_in_the_end(any_plan, first: float):
    asking = Asking(any_plan, 3.0, brief=True)
    pipelines = Pipelines(any_plan, [first, 2.0])
    answer = of_both(asking, pipelines).plan("m", any_plan.model)
    assert asking.heard == [first]
    if first < asking.known:
        assert pipelines.brief == [True]
        assert answer.plan.estimates.step_seconds == 3.0
    else:
        assert pipelines.brief == [True, False]
        assert pipelines.limits == [asking.known, 3.0]
        assert answer.plan.estimates.step_seconds == 2.0


@pytest.mark.parametrize(
    ("outcome", "stop"), [(NOTHING_FITS, "exhausted"), (NoPlanInTime("m", 1.0), "time")]
)
def test_a_rival_without_a_plan_rules_nothing_out(any_plan, outcome: Outcome, stop: Stop):
    asking, pipelines = Asking(any_plan, 3.0), Pipelines(any_plan, [outcome])
    answer = of_both(asking, pipelines).plan("m", any_plan.model)
    assert asking.heard == [inf]
    assert pipelines.limits == [asking.known]
    assert answer.plan.estimates.step_seconds == 3.0
    assert answer.report.stop == stop


@pytest.mark.parametrize("has_plan", [False, True])
def test_interrupt_of_a_rival_ends_the_search_that_asked(any_plan, has_plan: bool):
    """Whether the pipelines had a plan by then or not. If it is faster, it is taken."""
    asking = Asking(any_plan, 3.0)
    pipelines = Pipelines(any_plan, [2.0 if has_plan else KeyboardInterrupt()], "interrupted")
    answer = of_both(asking, pipelines).plan("m", any_plan.model)
    assert asking.heard == ["interrupted"]
    assert len(pipelines.limits) == 1
    assert answer.plan.estimates.step_seconds == (2.0 if has_plan else 3.0)
    assert answer.report.stop == "interrupted"


def test_rival_is_the_plan_if_the_planner_that_asked_has_none(any_plan):
    pipelines = Pipelines(any_plan, [4.0])
    both = of_both(Asking(any_plan, NOTHING_FITS), pipelines)
    assert both.plan("m", any_plan.model).plan.estimates.step_seconds == 4.0
    assert pipelines.limits == [5.0]


def test_slower_pipelines_are_searched_if_no_other_plan_fits(any_plan):
    """The plan that was known when the planner asked for its rival came to nothing, so the limit is
    dropped."""
    pipelines = Pipelines(any_plan, [NOTHING_FITS, 7.0])
    both = of_both(Asking(any_plan, NOTHING_FITS), pipelines)
    assert both.plan("m", any_plan.model).plan.estimates.step_seconds == 7.0
    assert pipelines.limits == [5.0, inf]


def test_pipelines_are_searched_once_if_the_first_limit_is_infinite(any_plan):
    pipelines = Pipelines(any_plan, [NOTHING_FITS])
    both = of_both(Asking(any_plan, NOTHING_FITS, known=inf), pipelines)
    with pytest.raises(NegativeAnswer, match="nothing fits"):
        both.plan("m", any_plan.model)
    assert pipelines.limits == [inf]


def test_each_model_has_a_rival_of_its_own(any_plan):
    asking, pipelines = Asking(any_plan, 3.0), Pipelines(any_plan, [2.0, 6.0])
    both = of_both(asking, pipelines)
    seconds = [both.plan("m", any_plan.model).plan.estimates.step_seconds for _ in range(2)]
    assert seconds == [2.0, 3.0]
    assert asking.heard == [2.0, 6.0]


def test_report_of_an_outdone_search_is_added_to_the_rivals(any_plan):
    report = SearchReport(5, 3, "exhausted", {})
    none = NoFasterPlan("m", report, DataParallelStep(2.5))
    both = of_both(Asking(any_plan, none), Pipelines(any_plan, [4.0], "time"))
    answer = both.plan("m", any_plan.model)
    assert answer.plan.estimates.step_seconds == 4.0
    assert (answer.report.strategies, answer.report.simulated) == (6, 4)
    assert answer.report.stop == "time"
    assert answer.data_parallel_seconds == 2.5


def test_interrupt_before_any_other_plan_returns_the_rival(any_plan):
    for pipelined in (4.0, NOTHING_FITS):
        both = of_both(Asking(any_plan, KeyboardInterrupt()), Pipelines(any_plan, [pipelined]))
        if pipelined == 4.0:
            assert both.plan("m", any_plan.model).plan.estimates.step_seconds == 4.0
        else:
            with pytest.raises(KeyboardInterrupt):
                both.plan("m", any_plan.model)


def test_deep_model_asks_for_a_rival_once_and_drops_slower_plans(monkeypatch: pytest.MonkeyPatch):
    whole = layers(10, 64, 64)  # so little work that fewer devices may be faster
    monkeypatch.setattr(module, "MOST_FREE", 20)
    assert folded(whole) is not None

    def answer(rival: FixedRival | None) -> Planned:
        machine, training = load_machine("dgx-a100").with_devices(2), Training("adam", "bf16")
        return MeshPlanner(machine, load_library(), training=training, rival=rival).plan("d", whole)

    alone, slower, faster = answer(None), FixedRival(inf), FixedRival(0.0)
    beside = answer(slower)
    with pytest.raises(NoFasterPlan) as outdone:
        answer(faster)
    assert len(slower.known) == len(faster.known) == 1
    assert slower.known[0] == faster.known[0] < inf
    assert beside.plan == alone.plan
    assert beside.report.simulated == alone.report.simulated
    assert outdone.value.report.simulated < alone.report.simulated


def test_a_plan_is_not_completed_if_an_interrupted_rival_is_faster(monkeypatch: pytest.MonkeyPatch):
    """The user waits."""
    monkeypatch.setattr(module, "MOST_FREE", 20)

    planner = MeshPlanner(load_machine("dgx-a100").with_devices(2), load_library())
    planner.rival = FixedRival(InterruptedWithPlan(0.0))
    with pytest.raises(NoFasterPlan) as outdone:
        planner.plan("d", layers(14, 64, 64))
    assert outdone.value.report.stop == "interrupted"
    planner.rival = FixedRival(InterruptedWithPlan(inf))
    assert planner.plan("d", layers(14, 64, 64)).report.stop == "interrupted"


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_faster_rival_of_a_shallow_model_rules_out_plans_that_are_not_refined(nodes: int):
    machine, library = load_machine("dgx-a100").with_nodes(nodes), load_library()
    whole = layers(2, 64, 16)

    def answer(rival: FixedRival | None) -> Planned:
        return MeshPlanner(machine, library, rival=rival).plan("layers", whole)

    alone, faster = answer(None), FixedRival(0.0)
    if nodes == 1:
        assert answer(faster).plan == alone.plan
        assert not faster.begun, "a brief look depends on the plans until then"
    else:
        with pytest.raises(NoFasterPlan) as outdone:
            answer(faster)
        assert outdone.value.report.simulated < alone.report.simulated
    assert len(faster.known) == 1
    assert faster.brief == [nodes == 1]
    assert faster.known[0] >= alone.plan.estimates.step_seconds
    assert all(begun >= faster.known[0] for begun in faster.begun)
    assert len(faster.begun) == (nodes != 1)


@dataclass
class Slow(Pipelines):
    """A planner of pipelines that waits until it is interrupted or killed."""

    ends: tuple[int, int] = field(default_factory=os.pipe)
    """Those of a pipe, into which it writes when it begins to wait."""

    def plan(self, name: str, graph: Graph) -> Planned:
        try:
            os.write(self.ends[1], b"x")
            sleep(60)
        except KeyboardInterrupt:
            return made(self.any_plan, self.outcomes[0], "interrupted")
        raise AssertionError

    def close(self) -> None:
        for end in self.ends:
            os.close(end)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("outcome", [2.0, 4.0, NOTHING_FITS])
def test_a_rival_that_has_begun_answers_the_same_in_a_process_of_its_own(
    any_plan, processors: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(processors)})
    shown: list[Status] = []
    asking, pipelines = Asking(any_plan, 3.0, begins=7.0), Pipelines(any_plan, [outcome])
    both = of_both(asking, pipelines)
    both.teller.progress = shown.append
    answer = both.plan("m", any_plan.model)
    assert asking.heard == [inf if outcome is NOTHING_FITS else outcome]
    assert answer.plan.estimates.step_seconds == (2.0 if outcome == 2.0 else 3.0)
    assert answer.plan.graph == any_plan.graph
    assert pipelines.limits == ([7.0] if processors == 1 else []), "that of its beginning"
    assert both.teller.progress == shown.append
    assert not RUNNING


def test_a_rival_that_has_begun_ends_with_the_planner(any_plan, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    slow = Slow(any_plan, [2.0])
    answer = of_both(Hasty(any_plan, 3.0, stop="time"), slow).plan("m", any_plan.model)
    assert answer.plan.estimates.step_seconds == 3.0
    assert not RUNNING
    slow.close()


@pytest.mark.parametrize("stop", ["time", "interrupted"])
@pytest.mark.parametrize("has_plan", [False, True])
def test_a_rival_that_has_begun_may_win_though_it_was_not_asked(
    any_plan, stop: Stop, has_plan: bool, monkeypatch: pytest.MonkeyPatch
):
    """A search that ends early returns the best plan that is known in either process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    nothing = KeyboardInterrupt() if stop == "interrupted" else NoPlanInTime("m", 1.0)
    hasty = Hasty(any_plan, 3.0 if has_plan else nothing, stop=stop, is_last=True)
    answer = of_both(hasty, Pipelines(any_plan, [2.0])).plan("m", any_plan.model)
    assert answer.plan.estimates.step_seconds == 2.0
    assert answer.report.stop == stop
    assert not RUNNING


@pytest.mark.parametrize("nothing", [KeyboardInterrupt(), NoPlanInTime("m", 1.0)])
def test_a_rival_that_has_begun_and_found_nothing_changes_nothing(
    any_plan, nothing: BaseException, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    pipelines = Pipelines(any_plan, [NOTHING_FITS])
    with pytest.raises(type(nothing)):
        of_both(Hasty(any_plan, nothing, is_last=True), pipelines).plan("m", any_plan.model)
    both = of_both(Hasty(any_plan, 3.0, stop="time", is_last=True), pipelines)
    answer = both.plan("m", any_plan.model)
    assert answer.plan.estimates.step_seconds == 3.0
    assert answer.report.stop == "time"


def test_an_interrupt_keeps_the_plan_of_a_rival_that_has_begun(
    any_plan, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    asking, slow = Asking(any_plan, 3.0, begins=7.0), Slow(any_plan, [2.0])

    def interrupted(child: Child[object]) -> None:
        assert os.read(slow.ends[0], 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "receive", interrupted)
    answer = of_both(asking, slow).plan("m", any_plan.model)
    assert asking.heard == ["interrupted"]
    assert answer.plan.estimates.step_seconds == 2.0
    assert answer.report.stop == "interrupted"
    assert not RUNNING
    slow.close()
