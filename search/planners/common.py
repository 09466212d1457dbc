"""What planners of other systems share: a choice of strategies, made into a plan and priced as ours
are, with what the backward pass recomputes where it would not fit otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.placement.schedule import schedule
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation
from search.cost.efficiency import Speed
from search.cost.planned import Planned, SearchReport
from search.cost.progress import Phases, Teller, now
from search.cost.simulate import recomputing
from search.map.building import Builder, Cut
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.rules.fully_sharded import PlacedGraph
from search.plan.finish import does_not_fit, finished
from search.plan.incumbent import PricedPlan
from search.plan.judging import Judge
from search.refine.overlap import SimulatedChoice
from substitutions.rules.store import Library

TRIED = 16
"""So many of the fastest choices that a planner met are counted to find one that fits."""


@dataclass(frozen=True)
class PlannerSetting:
    """What every planner is given beside a graph and its own options."""

    machine: Machine
    library: Library
    training: Training = SGD
    speed: Speed | None = None
    """How fast devices are; by default as the curves that come with Unity say."""
    recompute: Recompute = Recompute.AUTO
    """What may be recomputed in the backward pass."""
    teller: Teller = field(default_factory=Teller)

    def cost(self, devices: int | None = None) -> CostModel:
        """Prices on all devices, or on the first so many."""
        machine = self.machine if devices is None else self.machine.with_devices(devices)
        return CostModel(machine, self.training, self.speed)

    def chooser(self, graph: Graph, *, windows: bool = False) -> Chooser:
        """The strategies of a graph's operators on all devices, and their prices. ``windows``:
        whether images may be cut in rows, with halos."""
        return Chooser.on(self.cost(), Cuts(self.library.concrete(graph), windows=windows))


@dataclass(frozen=True)
class PricedChoice:
    """A choice of strategies as a plan: ``cut`` with its derivation, and what it takes."""

    cut: Cut
    judged: PricedPlan

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.judged.seconds

    @property
    def over(self) -> int:
        """Bytes that the fullest device has too few; 0 or less where it fits."""
        return self.judged.memory - self.judged.limit


def priced_choice(
    setting: PlannerSetting,
    chooser: Chooser,
    choice: Choice,
    before: Derivation | None = None,
    builder: Builder | None = None,
) -> PricedChoice:
    """A choice, built, simulated and counted: the fastest that fits of it as it is and of it with
    results recomputed, else what takes least memory. ``before``: what led to the graph of the
    choice, if that is no model's; ``builder``: cuts the operators, by default without any weight in
    parts."""
    cost = chooser.pricing.cost
    cut = (builder or Builder(chooser.spaces)).cut(choice, before)
    steps = schedule(cut.graph, cut.views)
    done = recomputing(steps, cost, ())
    made = SimulatedChoice(choice, PlacedGraph(cut.graph, cut.views), steps, (), done)
    judge = Judge(Phases(), 0, False, setting.recompute)
    plans = list(judge.judged(chooser, made, inf))
    fitting = [one for one in plans if one.fits]
    best = (
        min(fitting, key=lambda one: one.seconds)
        if fitting
        else min(plans, key=lambda one: one.memory - one.limit)
    )
    setting.teller.priced(best.seconds if best.fits else inf)
    return PricedChoice(cut, best)


def until_fitting(
    setting: PlannerSetting, chooser: Chooser, choices: Iterable[Choice]
) -> list[PricedChoice]:
    """The choices in their order, made into plans and priced, up to the first that fits."""
    priced: list[PricedChoice] = []
    for choice in choices:
        priced.append(priced_choice(setting, chooser, choice))
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
    """The answer of a planner. ``graph``: the model's; ``start``: when the search began, by
    ``now``. Raises NegativeAnswer where the plan does not fit the machine."""
    if priced.over > 0:
        raise does_not_fit(name, setting.machine, priced.over, report.stop)
    cut = priced.cut
    plan = finished(
        name,
        graph,
        cut,
        schedule(cut.graph, cut.views),
        setting.cost(),
        setting.library.hash,
        seconds=priced.seconds,
        memory=priced.judged.memory,
        recompute=priced.judged.recompute,
    )
    return Planned(plan, report, now() - start)
