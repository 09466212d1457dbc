"""The part that planners of other systems share: a choice of strategies is made into a plan and
priced as our plans are, with recomputation if it would not fit otherwise."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation
from search.cost.efficiency import Speed
from search.cost.planned import NoPlanInTime, Planned, SearchReport
from search.cost.progress import OutOfTime, Phases, Teller, now, reserved
from search.cost.simulate import recomputing
from search.map.building import Builder, Cut
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.plan.finish import does_not_fit, finished
from search.plan.incumbent import PricedPlan
from search.plan.judging import Judge
from search.refine.tried import SimulatedChoice
from search.split.blocks import folded
from substitutions.rules.store import Library

MOST_PRICED = 16
"""The number of a planner's fastest choices that are priced to find one that fits."""
ENDING = 1.2e-3
"""Seconds, for each operator of the model, that it takes to price a plan and to write it down.
Measured with a model of 6,002 operators."""


@dataclass(frozen=True)
class PlannerSetting:
    """The input of every planner besides a graph and its own options."""

    machine: Machine
    library: Library
    training: Training = SGD
    speed: Speed | None = None
    """The speed of devices; by default by the efficiency curves that come with Unity."""
    recompute: Recompute = Recompute.AUTO
    """Which tensors may be recomputed in the backward pass."""
    teller: Teller = field(default_factory=Teller)

    def cost(self, devices: int | None = None) -> CostModel:
        """The cost model of all devices, or of the first ``devices``."""
        machine = self.machine if devices is None else self.machine.with_devices(devices)
        return CostModel(machine, self.training, self.speed)

    def chooser(self, graph: Graph, *, windows: bool = False) -> Chooser:
        """The chooser for a graph on all devices. ``windows``: whether images may be cut in rows,
        with halos."""
        return Chooser.on(self.cost(), Cuts.of_rules(self.library.concrete(graph), windows=windows))


@dataclass(frozen=True)
class PricedChoice:
    """A choice of strategies as a plan: its cut graph with the derivation, and its price."""

    cut: Cut
    judged: PricedPlan

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.judged.seconds

    @property
    def over(self) -> int:
        """The bytes that the fullest device is short of; 0 or less if the plan fits."""
        return self.judged.memory - self.judged.limit


def priced_choice(
    setting: PlannerSetting,
    chooser: Chooser,
    choice: Choice,
    before: Derivation | None = None,
    builder: Builder | None = None,
) -> PricedChoice:
    """Build and price a choice, with and without recomputation. Returns the fastest plan that fits,
    or else the one that takes least memory. ``before``: the derivation of the choice's graph, if
    that is not the model's own; ``builder``: cuts the operators, by default without weights in
    parts. If the time of the search under way is up, no further recomputation is tried. Raises
    OutOfTime if the choice is not priced by then."""
    cost = chooser.pricing.cost
    cut = (builder or Builder(chooser.spaces)).cut(choice, before)
    steps = cut.schedule()
    done = recomputing(steps, cost, ())
    made = SimulatedChoice(choice, cut, steps, (), done)
    judge = Judge(Phases(), 0, False, setting.recompute)
    plans: list[PricedPlan] = []
    try:
        for plan in judge.judged(chooser, made, inf):
            plans.append(plan)
    except OutOfTime:
        if not plans:
            raise
    fitting = [plan for plan in plans if plan.fits]
    best = (
        min(fitting, key=lambda plan: plan.seconds)
        if fitting
        else min(plans, key=lambda plan: plan.memory - plan.limit)
    )
    setting.teller.priced(best.seconds if best.fits else inf)
    return PricedChoice(cut, best)


def searching_until(start: float, seconds: float, graph: Graph) -> float:
    """The time, by ``now``, at which a search has to end that began at ``start`` and may take
    ``seconds``. Up to half of these are reserved to price its plan and to write it down."""
    return start + seconds - reserved(seconds, len(graph.operators), ENDING)


@contextmanager
def limited(name: str, graph: Graph, start: float, seconds: float) -> Generator[Phases]:
    """A context in which the search for a plan is under way, up to a plan with its price.
    ``start``: the time when the search began, by ``now``; ``seconds``: its limit. Raises
    NoPlanInTime if the time is up before."""
    phases = Phases.of(start, seconds, len(graph.operators), Teller())
    try:
        with phases.under_way():
            yield phases
    except OutOfTime:
        raise NoPlanInTime(name, seconds) from None


def until_fitting(
    setting: PlannerSetting, chooser: Chooser, choices: Iterable[Choice]
) -> list[PricedChoice]:
    """Price choices in their order, up to the first that fits, or until the time of the search
    under way is up. Raises OutOfTime if not even one is priced by then."""
    priced: list[PricedChoice] = []
    for choice in choices:
        try:
            priced.append(priced_choice(setting, chooser, choice))
        except OutOfTime:
            if not priced:
                raise
            break
        if priced[-1].over <= 0:
            break
    return priced


def planned_choice(
    setting: PlannerSetting,
    name: str,
    graph: Graph,
    priced: PricedChoice,
    report: SearchReport,
    start: float,
) -> Planned:
    """The answer of a planner. ``graph``: the model's; ``start``: the time when the search began,
    by ``now``. Raises NegativeAnswer if the plan does not fit the machine."""
    if priced.over > 0:
        raise does_not_fit(name, setting.machine, priced.over, report.stop)
    cut = priced.cut
    plan = finished(
        name,
        graph,
        cut,
        cut.schedule(),
        setting.cost(),
        setting.library.hash,
        seconds=priced.seconds,
        memory=priced.judged.memory,
        recompute=priced.judged.recompute,
        short=folded(graph),
    )
    return Planned(plan, report, now() - start)
