"""The known results of a graph's families decide which of them are tried on its rewrites."""

from __future__ import annotations

import pytest

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.cost.survey import NearestRewrite, RewriteSurvey
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.plan.incumbent import NEAR_BEST, PricedPlan, PricedTrial, SearchState
from search.refine.overlap import Trial
from search.substitute.rewrites import LARGE

ALL, NEAR, FAR = ("all", ()), ("near", (0,)), ("far", (0, 1))


def trial(operators: int, devices: int = 1) -> PricedTrial:
    """A trial of a chain of ``operators`` operators."""
    lines = ["x0 = input[4, 4]"]
    lines += [f"x{at + 1} = relu(x{at})" for at in range(operators - 1)]
    graph = parse_graph("\n".join([*lines, f"return sum_loss(x{operators - 1})"]))
    chooser = Chooser.on(CostModel(load_machine("local").with_devices(devices)), Cuts())
    return Trial(chooser, graph, Derivation.start(graph), lambda made: ())


def priced(of: PricedTrial, seconds: float, *, fits: bool) -> PricedPlan:
    choice = Choice(of.graph, {}, seconds)
    return PricedPlan(choice, seconds, 1 if fits else 3, 2, 1, 0.0, 0.0)


def searched(operators: int, *, fits: bool = True) -> tuple[SearchState, PricedTrial, PricedTrial]:
    """A search state with three families of a graph, the trial of the graph, and that of a
    rewrite."""
    base, made, search = trial(operators), trial(3), SearchState()
    for family, seconds in ((ALL, 1.0), (NEAR, 1 + NEAR_BEST / 2), (FAR, 1 + 2 * NEAR_BEST)):
        search.note_family(base, family, seconds)
        search.priced[priced(base, seconds, fits=fits)] = base
    search.rewritten_from[made] = base
    return search, base, made


def test_only_near_families_are_tried_on_rewrites_of_a_large_graph():
    search, base, made = searched(LARGE + 1)
    assert [search.is_near(made, one) for one in (ALL, NEAR, FAR)] == [True, True, False]
    assert not search.is_near(made, ("never tried", ()))
    assert all(search.is_near(base, one) for one in (ALL, NEAR, FAR))


@pytest.mark.parametrize(("operators", "fits"), [(LARGE, True), (LARGE + 1, False)])
def test_all_families_are_tried_on_small_graphs_and_where_the_best_does_not_fit(operators, fits):
    search, _, made = searched(operators, fits=fits)
    assert all(search.is_near(made, one) for one in (ALL, NEAR, FAR))


def test_only_near_families_are_tried_on_another_form_of_a_large_graph():
    search, base, _ = searched(LARGE + 1)
    other, small, elsewhere = trial(LARGE + 2), trial(3), trial(LARGE + 2, devices=2)
    assert [search.is_near(other, one) for one in (ALL, NEAR, FAR)] == [True, True, False]
    for alone in (base, small, elsewhere):
        assert all(search.is_near(alone, one) for one in (ALL, NEAR, FAR))


def test_a_large_graph_is_outdone_by_a_faster_rewrite_alone():
    search, base, made = searched(LARGE + 1)
    assert not search.is_outdone(base)
    search.note_family(made, ALL, 1.1)
    assert not search.is_outdone(base)
    search.note_family(made, NEAR, 0.9)
    assert search.is_outdone(base)
    assert not search.is_outdone(made)
    assert search.fastest[made] == 0.9


def test_a_small_graph_is_not_outdone():
    search, base, made = searched(LARGE)
    search.note_family(made, ALL, 0.5)
    assert not search.is_outdone(base)


def test_no_bound_rules_a_rewrite_out():
    search, base, made = searched(3)
    search.priced[priced(base, 1e-12, fits=True)] = base
    assert search.rules_out(base)
    assert not search.rules_out(made)


def test_surveys_of_rewrites_add_up():
    search = SearchState()
    less, more = (NearestRewrite((f"{gain}",), 1, gain) for gain in (-0.1, 0.1))
    search.surveyed(RewriteSurvey(2, 3, more))
    search.surveyed(RewriteSurvey(1, 4, less))
    assert search.survey == RewriteSurvey(3, 7, more)


@pytest.mark.parametrize(("rival", "expected"), [(float("inf"), False), (0.9, False), (0.5, True)])
def test_plans_far_behind_a_rival_are_not_rewritten(rival, expected):
    search, _, _ = searched(LARGE)
    search.rival = rival
    assert search.is_far_behind is expected


def test_plans_are_compared_with_a_data_parallel_plan_that_fits_if_there_is_one():
    search, of = SearchState(), trial(2)
    assert search.data_parallel_step is None
    search.data_parallel += [priced(of, 1.0, fits=False), priced(of, 1.5, fits=False)]
    assert search.data_parallel_step == (1.0, False)
    search.data_parallel += [priced(of, 3.0, fits=True), priced(of, 2.0, fits=True)]
    assert search.data_parallel_step == (2.0, True)
