"""Which plans are refined, and the results of refining."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count, islice
from math import inf
from typing import Any, NamedTuple

import pytest
from support.plans.branched import TWO_TOWERS, branched
from support.plans.tries import fastest_try

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from search.choices import Mode
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.cost.planned import Planned
from search.cost.progress import Teller, timed_by
from search.cost.simulate import simulate
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import everything
from search.plan import planner as plans
from search.plan import refining
from search.plan.planner import MeshPlanner
from search.plan.refining import Rewriting, is_branched
from search.refine.overlap import Trial
from substitutions.audit.replay import replay
from substitutions.rules.store import Library, load_library

MACHINE = load_machine("dgx-a100").with_devices(2)
BF16 = Training("adam", "bf16")
WORK = 30_000
"""The work of a refinement: less than by default."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def residual(blocks: int) -> str:
    """Residual blocks of two layers."""
    lines = ["x = input[8, 1024]", "y0 = relu(x)"]
    for at in range(blocks):
        lines += [f"a{at} = weight[1024, 512]", f"b{at} = weight[512, 1024]"]
        layers = f"matmul(relu(matmul(y{at}, a{at})), b{at})"
        lines.append(f"y{at + 1} = relu(add({layers}, y{at}))")
    return "\n".join([*lines, f"return mean_loss(y{blocks})"])


def planned(library: Library, graph: Graph, **options: object) -> Planned:
    return replace(MeshPlanner(MACHINE, library), **options).plan("m", graph)


@pytest.fixture(autouse=True)
def _little_work(monkeypatch):
    monkeypatch.setattr(plans, "refine", partial(refining.refine, work=WORK))


def test_refined_plan_of_branches_is_faster_derived_and_priced_as_run(library, monkeypatch):
    _, graph = branched(1)
    machine = load_machine("dgx-a100").with_devices(4)
    chosen = planned(library, graph, machine=machine, mode=Mode.PARALLEL)
    plan = chosen.plan
    assert not replay(plan, library.rules).findings
    seconds = simulate(schedule(plan.graph, plan.views), CostModel(machine)).step_seconds
    assert plan.estimates.step_seconds == seconds
    assert chosen.report.phases["refining"] > 0
    monkeypatch.setattr(plans, "refine", lambda *_: None)
    before = planned(library, graph, machine=machine, mode=Mode.PARALLEL).plan
    assert seconds < 0.9 * before.estimates.step_seconds


def test_a_short_annealing_makes_plans_faster_before_the_wide_ones(library, monkeypatch):
    _, graph = branched(1)
    wanted = replace(MeshPlanner(load_machine("dgx-a100"), library), mode=Mode.PARALLEL)
    monkeypatch.setattr(plans, "refine", lambda *_: None)
    before = wanted.plan("m", graph).plan.estimates.step_seconds
    monkeypatch.setattr(plans, "refine", refining.refine)
    monkeypatch.setattr(refining, "PHASES", ())
    assert wanted.plan("m", graph).plan.estimates.step_seconds < 0.8 * before


def test_chains_and_large_graphs_and_machines_are_not_refined(library, monkeypatch):
    chain, towers = build_model("mlp-tiny", 20, 1), parse_graph(TWO_TOWERS)
    assert not is_branched(chain)
    assert is_branched(towers)
    assert "refining" not in planned(library, chain, mode=Mode.PARALLEL).report.phases
    for limit in ("MOST_OPERATORS", "MOST_DEVICES"):
        with monkeypatch.context() as patch:
            patch.setattr(refining, limit, 1)
            assert "refining" not in planned(library, towers, mode=Mode.PARALLEL).report.phases


def test_two_graphs_are_rewritten_after_the_first_annealing(library, monkeypatch):
    """Rewrites do not lead from the faster graph to the other one, so both are rewritten."""
    graph = branched(1)[1]
    machine = load_machine("dgx-a100").with_devices(4)
    steps: list[Graph | None] = []  # graphs that are rewritten; None for annealings
    rewritten, annealed = refining._rewritten, refining._annealed

    def noted(refined: Any, *given: Any) -> Any:
        steps.append(refined.trial.graph)
        return rewritten(refined, *given)

    def begun(*given: Any) -> Any:
        steps.append(None)
        return annealed(*given)

    monkeypatch.setattr(refining, "_rewritten", noted)
    monkeypatch.setattr(refining, "_annealed", begun)
    monkeypatch.setattr(refining, "BEHIND", 2.0)
    planned(library, graph, machine=machine)
    short, before, first, second, after, *_ = steps
    assert short is before is after is None
    assert graph in (first, second)
    assert len({first, second, None}) == 3


def test_plan_near_the_time_of_its_work_is_not_refined(library, monkeypatch):
    monkeypatch.setattr(refining, "GAIN", inf)
    assert (
        "refining"
        not in planned(library, parse_graph(TWO_TOWERS), mode=Mode.PARALLEL).report.phases
    )


def test_refining_is_skipped_if_the_time_of_the_search_is_up(library):
    looks = count()
    with timed_by(lambda: next(looks) * 1e-3):
        chosen = planned(library, parse_graph(TWO_TOWERS), seconds=0.0)
    assert chosen.report.stop == "time"
    assert "refining" not in chosen.report.phases


@pytest.mark.parametrize("brief", [False, True])
def test_resharding_for_several_readers_is_counted_once(library, brief: bool):
    """In a residual network, a block reads the output of the block before twice. Sums that count
    its resharding once lead to a faster plan."""
    graph = parse_graph(residual(blocks=4))
    machine = load_machine("summit").with_devices(6)
    chooser = Chooser.on(CostModel(machine, BF16), Cuts.of_rules(library.concrete(graph)))
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: made.seconds)
    before = fastest_try(trial)
    seconds: list[float] = []
    trial.judge = lambda made: seconds.append(made.seconds) or made.seconds
    trial.moved_once(before.choice, everything, brief=brief)
    assert min(seconds) < 0.99 * before.seconds


@pytest.mark.parametrize(
    ("annealed", "often", "rewritten", "expected"),
    [
        # Rewriting gains each time, and might gain more.
        ([3.0, 2.0, 1.5], [3], [(2.5, False), (1.8, False)], "ARARA"),
        ([3.0, 2.5, 1.5], [3], [(2.5, False), (1.8, False)], "ARARA"),
        # Rewriting gains, and then finds nothing more for the same plan.
        ([3.0, 2.5, 2.5], [2], [(2.5, True)], "ARAA"),
        # Rewriting finds nothing, and would do the same again for the same plan.
        ([3.0, 3.0, 3.0], [2], [(3.0, True)], "ARAA"),
        # The second annealing gains, so there is another plan to rewrite.
        ([3.0, 2.0, 2.0], [2], [(3.0, True), (2.0, True)], "ARARA"),
        ([3.0, 2.0, 2.0], [2], [(2.5, True), (2.0, True)], "ARARA"),
        # Annealings agree, and rewriting finds nothing faster.
        ([3.0], [3], [(3.0, True)], "AR"),
        ([3.0], [2, 1], [(3.0, True)], "AR"),
        ([3.0, 2.0], [3], [(2.0, False), (2.0, True)], "ARAR"),
        ([3.0, 2.0], [3], [(2.0, True)], "ARA"),
    ],
)
def test_refinement_goes_on_while_it_may_gain(annealed, often, rewritten, expected, monkeypatch):
    """``often``: for each of some graphs, how many annealings agree; ``rewritten``: the seconds
    after rewriting, and whether it found nothing faster in the end; ``expected``: the annealings
    and rewritings, in order."""
    done: list[str] = []
    seconds, made = iter(annealed), iter(rewritten)

    def anneal(*given: Any) -> list[Outcome]:
        if refining.SOON in given:
            return []
        done.append("A")
        return [Outcome(taken, own) for taken in islice(seconds, 1) for own in often]

    def rewrite(*given: Any) -> tuple[list[Outcome], bool]:
        done.append("R")
        taken, is_exhausted = next(made)
        return [Outcome(taken, 1)], is_exhausted

    monkeypatch.setattr(refining, "_starts", lambda *_: [])
    monkeypatch.setattr(refining, "_annealed", anneal)
    monkeypatch.setattr(refining, "_all_rewritten", rewrite)
    nothing: Any = None
    given = parse_graph(TWO_TOWERS), nothing, MACHINE, Teller(), Rewriting(nothing, nothing)
    refining.refine(*given, work=WORK)
    assert "".join(done) == expected


class Outcome(NamedTuple):
    """Stands for a refined plan, or for one to refine."""

    seconds: float
    often: int

    @property
    def start(self) -> Outcome:
        return self
