"""The progress that searches report."""

from __future__ import annotations

from itertools import count
from math import inf

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from search.choices import Mode
from search.cost.cost import SGD
from search.cost.progress import (
    AFTER_INTERRUPT,
    GRACE,
    Improvement,
    OutOfTime,
    Phases,
    Status,
    Teller,
    check_time,
    found_after,
    now,
    time_left,
    timed_by,
)
from substitutions.rules.store import Library, load_library
from unity.support.planners import SearchOptions, planner_of


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def check(told: list[Status], seconds: float) -> None:
    """Check that candidates only get more and the best plan only better, and that the best is
    returned."""
    counts = [status.candidates for status in told]
    assert counts == sorted(counts)
    assert counts[-1] > 1
    best = [inf if status.best is None else status.best for status in told]
    assert best == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(seconds)


LEVELS = {"substitute", "map", "refine", "pipeline"}


@pytest.mark.parametrize(
    ("planner", "works"),
    [
        ("joint", {"rules", "all strategies", "tensor parallelism", "1 stage x 2 micro-batches"}),
        ("pipeline", {"1 stage x 2 micro-batches", "2 stages x 2 micro-batches"}),
    ],
)
def test_planners_report_their_progress(planner, works, library):
    told: list[Status] = []
    machine = load_machine("local").with_devices(2)
    chosen = planner_of(planner, machine, library, 60.0, SGD, None, teller=Teller(told.append))
    plan = chosen.plan("mlp-mnist", build_model("mlp-mnist", None, 2)).plan
    assert works <= {status.work for status in told}
    levels = {status.level for status in told}
    assert levels - {"split"} == ({"pipeline"} if planner == "pipeline" else LEVELS)
    check(told, plan.estimates.step_seconds)


def test_a_pipeline_that_is_improved_once_it_is_built_is_reported(library):
    """Here a better order of issue gains 0.6 %."""
    told: list[Status] = []
    machine = load_machine("local")
    given = machine, library, 60.0, SGD, None
    chosen = planner_of("pipeline-2bw", *given, teller=Teller(told.append))
    plan = chosen.plan("mlp-tiny", build_model("mlp-tiny", None, machine.devices)).plan
    check(told, plan.estimates.step_seconds)


def test_priced_plan_that_cannot_run_is_not_the_best():
    told: list[Status] = []
    teller = Teller(told.append)
    teller.works_on("all", "map")
    teller.priced()
    assert told == [Status("all", 0, None, "map"), Status("all", 1, None, "map")]


def test_faster_plans_are_noted_with_the_seconds_until_then():
    times = iter([10.0, 12.0, 13.0])
    with timed_by(lambda: next(times)):
        teller = Teller()
        for step in (0.4, 0.5, 0.1, 0.2):
            teller.priced(step)
    assert teller.improvements == [Improvement(2.0, 0.4), Improvement(3.0, 0.1)]


def test_plans_of_another_process_are_noted_in_the_order_of_time():
    with timed_by(lambda: 3.0):
        teller = Teller()
        teller.improvements[:] = [Improvement(1.0, 0.9), Improvement(2.0, 0.5)]
        other = Improvement(1.0, 0.9), Improvement(1.5, 0.6), Improvement(2.5, 0.55)
        teller.found_beside(other)
        assert teller.improvements == [*other[:2], Improvement(2.0, 0.5)]
        teller.found(0.5)
        assert len(teller.improvements) == 3, "no faster"
        teller.found_beside([Improvement(0.5, 0.4)])
    assert teller.improvements == [Improvement(0.5, 0.4)]


@pytest.mark.parametrize(("near", "after"), [(1.0, 3.0), (1.01, 2.0), (1.5, 1.0), (2.0, 1.0)])
def test_when_a_plan_was_nearly_the_fastest(near, after):
    steps = Improvement(1.0, 0.3), Improvement(2.0, 0.202), Improvement(3.0, 0.2)
    assert found_after(steps, near) == after
    assert found_after((), near) is None


def test_phases_add_up():
    phases = Phases()
    assert [phases.timed("one", lambda: 1), phases.timed("one", lambda: 2)] == [1, 2]
    assert phases.seconds.keys() == {"one"}
    assert phases.seconds["one"] >= 0


@pytest.mark.parametrize(
    ("model", "devices"), [("mlp-mnist", 2), pytest.param("dlrm-tiny", 2, marks=pytest.mark.soak)]
)
def test_no_plan_is_faster_than_the_reported_bound(model, devices, library):
    """For one graph on all devices: the bound is that of the model, without rewrites."""
    told: list[Status] = []
    machine = load_machine("dgx-a100").with_devices(devices)
    asked = SearchOptions(Mode.PARALLEL)
    planner_of("joint", machine, library, 60.0, SGD, None, asked, Teller(told.append)).plan(
        model, build_model(model, None, devices)
    )
    mapped = [status for status in told if status.level in ("map", "refine")]
    bounds = {status.bound for status in mapped}
    assert None not in bounds
    best = min(status.best for status in told if status.best is not None)
    assert 0 < min(bound for bound in bounds if bound is not None) <= best
    assert all(status.gap is None or 0 <= status.gap < 1 for status in told)


def test_gap_is_the_part_that_the_best_plan_may_still_lose():
    assert Status("all", 1, 4.0, "map", 3.0).gap == 0.25
    assert Status("all", 1, 4.0, "map", 5.0).gap == 0.0
    assert Status("all", 1, None, "map", 3.0).gap is None
    assert Status("all", 1, 4.0).gap is None


def test_deadline_is_checked_only_within_the_work_under_way():
    with timed_by(count(0.0, 0.25).__next__):
        phases = Phases(now() + 1.0, has_plan=True)
        with phases.under_way():
            check_time()
            while not phases.is_over:
                pass
            with pytest.raises(OutOfTime):
                check_time()
        check_time()


def test_without_a_plan_there_is_some_grace():
    clock = [0.0]
    with timed_by(lambda: clock[0]):
        phases = Phases.of(0.0, 10.0, 0, Teller())
        clock[0] = 10.0 + GRACE
        phases.check()
        phases.has_plan = True
        with pytest.raises(OutOfTime):
            phases.check()


def test_a_part_of_the_work_leaves_time_for_the_rest():
    clock = [0.0]
    with timed_by(lambda: clock[0]):
        phases = Phases(9.0)
        part = phases.part(2 / 3)
        assert part.seconds is phases.seconds
        clock[0] = 8.0
        part.check()  # the search has no plan yet
        part.has_plan = True
        with pytest.raises(OutOfTime):
            part.check()
        assert not phases.is_over


def test_search_ends_earlier_if_plans_are_long_to_build():
    clock = [8.0]
    with timed_by(lambda: clock[0]):
        few, many = (Phases.of(0.0, 10.0, count, Teller()) for count in (100, 10_000))
        assert (few.is_over, many.is_over) == (False, True)
        clock[0] = 4.9
        assert not many.is_over  # half of the time is for the search in any case


def test_a_plan_is_written_down_beyond_all_deadlines():
    """Its search may be a part of another one, whose time is up as well."""
    clock = [0.0]
    with timed_by(lambda: clock[0]):
        outer, inner = Phases(5.0, has_plan=True), Phases(5.0, has_plan=True)
        clock[0] = 6.0
        with outer.under_way():
            inner.completed(check_time)
            with pytest.raises(OutOfTime):
                check_time()
    assert inner.seconds.keys() == {"completing"}


def test_an_interrupt_brings_the_deadline_forward():
    clock = [0.0]
    with timed_by(lambda: clock[0]):
        phases = Phases(50.0)
        assert phases.left == 50.0 + GRACE
        phases.end_soon()
        assert phases.left == AFTER_INTERRUPT
        with phases.under_way():
            assert time_left() == AFTER_INTERRUPT
    assert time_left() == inf


def test_a_deadline_that_was_put_off_comes_back():
    with timed_by(lambda: 0.0):
        phases = Phases(0.1, has_plan=True)
        with phases.later(2.0):
            assert phases.left == pytest.approx(2.1)
        assert phases.left == pytest.approx(0.1)


@pytest.mark.parametrize(("deadline", "reserved"), [(8.0, 2.0), (inf, 0.0)])
def test_time_is_reserved_within_a_context(deadline, reserved):
    with timed_by(lambda: 0.0):
        phases = Phases(deadline)
        with phases.earlier(0.25):
            assert phases.left == deadline + GRACE  # without a plan, the search may use it too
            phases.has_plan = True
            assert phases.left == deadline - reserved
        assert phases.left == deadline
