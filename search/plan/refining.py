"""The refinement of the fastest plans: operators on any devices, judged by simulation.

The mesh of a plan may have had fewer devices than the machine. The plan is refined on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from typing import NamedTuple

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.readings.work import gradient_nodes
from search.cost.derivation import Derivation
from search.cost.progress import Teller
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.space.allow import Allowed, everything
from search.map.space.mapping import OperatorMapping
from search.plan.incumbent import (
    PricedPlan,
    PricedPlans,
    PricedTrial,
    SearchState,
    fastest_by_graph,
)
from search.plan.rewriting import RefinedRewriter, RewrittenPlan, by_names
from search.refine.annealing import NEARBY, WIDELY, WORK, Lane, Stage, Stages
from search.refine.moves import FINE
from search.refine.processes import run_side_by_side
from search.refine.tried import Tried
from search.substitute.rewrites import is_large
from substitutions.rules.concrete.rooted import RootedRules

MOST_OPERATORS = 64
"""The most operators of a graph that is refined. In a larger one, too few states of each operator
would be tried."""
MOST_DEVICES = 24
"""The most devices of a machine. On more, a state takes several times as long to simulate."""
MEAN_DEVICES = 10
"""On more devices than these fewer states are tried, as each takes longer to price."""
GAIN = 1.005
"""A plan has nothing to gain if it takes at most this many times as long as its work, spread over
all devices."""

FEW_DEVICES, FEW_OPERATORS = 8, 32
"""On up to so many devices, annealings of up to so many operators take less time."""
SOON: Stages = (Stage(0.02, 0.003, "best", FINE),)
"""The first annealing of each graph. It is short and cold, so that a search with little time has a
faster plan soon. Wide annealings begin without it: it may end in a state that they hardly leave."""
PHASES = ((WIDELY, 0.4), (WIDELY, 0.3), (NEARBY, 0.2))
"""Annealings in order, each with their part of the work."""
LANES = 4, 8
"""The number of annealings in a phase, for all graphs together: in general, and where they take
less time. Chance decides as much as the number of states."""
OTHERS = 1, 2
"""The most other graphs, nearly as fast as the fastest one, that are annealed widely as well: in
general, and where annealings take less time."""
BEHIND = 1.1
"""After the first annealing, the plans of all graphs are rewritten that take at most this many
times as long as the fastest. Rewrites seldom lead from one of these graphs to another."""
MOST_GRAPHS = 2
"""The most graphs that are refined. There are several since a change of mappings cannot undo a
rewrite."""
AGREEING = 3
"""The number of annealings that lead to plans as fast as the fastest, after which there is probably
none faster. All begin with other random numbers."""
SMALL = 6
"""The operators up to which a graph is refined even if it is a chain, as that takes little time."""
NEAR = 1.5
"""A plan of a rewritten graph is refined if it takes at most this many times as long as the fastest
one. The model's own graph may have been tried on fewer numbers of devices."""


class _Start(NamedTuple):
    """A choice to refine, in terms of a trial on all devices."""

    trial: PricedTrial
    choice: Choice

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.trial.tried_late(self.choice).seconds


class _Refined(NamedTuple):
    """A refined plan, and the trial of its graph on all devices. ``often``: the number of
    annealings that reached a plan as fast as this one."""

    trial: PricedTrial
    tried: Tried[PricedPlans]
    often: int

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.tried.seconds

    @property
    def start(self) -> _Start:
        """The plan as a choice to refine further."""
        return _Start(self.trial, self.tried.choice)


class Rewriting(NamedTuple):
    """How graphs are rewritten: the rules that match a graph, and the trial of one, with its
    derivation."""

    rules_of: Callable[[Graph], RootedRules]
    trial_of: Callable[[Graph, Derivation], PricedTrial]


def may_refine(machine: Machine) -> bool:
    """Whether plans on a machine may be refined."""
    return machine.devices <= MOST_DEVICES


def refine(
    model: Graph,
    search: SearchState,
    machine: Machine,
    teller: Teller,
    rewriting: Rewriting | None,
    work: int | None = None,
) -> None:
    """Refine the fastest plans of a few graphs, with each operator on any devices, and price the
    results. Annealings are first short, then wide, then near the fastest plan. After each wide one,
    the graph of the fastest plan is rewritten, unless ``rewriting`` is None, or has led to this
    plan and to nothing faster from there; after the first one, those of other plans as well.
    Refinement ends when annealings agree on the fastest plan and rewriting finds nothing faster.
    All is left out where it cannot gain or is not known to be worth its time: for chains on devices
    of one kind unless they are tiny, for many operators or devices, and for plans that take hardly
    longer than their work."""
    if not may_refine(machine):
        return
    work = WORK if work is None else work
    work = int(work * min(1.0, MEAN_DEVICES / machine.devices))
    starts = _starts(model, search, machine, teller)
    _annealed(starts, work, SOON, len(starts))  # for its plans alone
    is_quick = machine.devices <= FEW_DEVICES and len(model.operators) <= FEW_OPERATORS
    settled = inf  # the seconds of a plan whose rewrites are no faster
    for phase, (stages, part) in enumerate(PHASES):
        refined = _annealed(starts, int(part * work), stages, LANES[is_quick])
        fastest = min(refined, key=lambda own: own.seconds, default=None)
        if fastest is None:
            return
        starts, is_faster = [fastest.start], False
        if rewriting is not None and stages is WIDELY and fastest.seconds < settled:
            teller.works_on("rewriting as refined", "refine")
            every = _near(refined, fastest) if phase == 0 else [fastest]
            starts, is_exhausted = _all_rewritten(every, rewriting, work, OTHERS[is_quick])
            least = min(start.seconds for start in starts)
            is_faster, settled = least < fastest.seconds, least if is_exhausted else inf
        often = sum(own.often for own in refined if own.seconds == fastest.seconds)
        if often >= AGREEING and not is_faster:
            return


def _near(refined: Sequence[_Refined], fastest: _Refined) -> list[_Refined]:
    """The fastest plan, and then others that are not far behind."""
    near = (own for own in refined if own.seconds <= BEHIND * fastest.seconds)
    return [*dict.fromkeys((fastest, *near))]


def _all_rewritten(
    refined: Sequence[_Refined], rewriting: Rewriting, work: int, others: int
) -> tuple[list[_Start], bool]:
    """The best plan after rewrites of each graph, and other plans near that of the first: one for
    each graph, and up to ``others`` besides the first. And whether the rewriter of the fastest one
    found nothing faster in the end."""
    given = rewriting.rules_of, work
    rewriters = [
        RefinedRewriter(own.trial, own.tried.choice, own.tried.seconds, *given) for own in refined
    ]
    try:
        refined[0].trial.phases.timed("refining", lambda: run_side_by_side(rewriters))
    finally:
        made = [_rewritten(one, rewriting, others) for one in rewriters]
    by_graph: dict[Graph, _Start] = {}
    for start in [*(starts[0] for starts in made), *made[0][1:]]:
        by_graph.setdefault(start.trial.graph, start)
    fastest = min(rewriters, key=lambda one: one.plan.seconds)
    return [*by_graph.values()][: 1 + others], fastest.is_exhausted


def _starts(model: Graph, search: SearchState, machine: Machine, teller: Teller) -> list[_Start]:
    """The choices to refine, with a mapping of each operator."""
    starts: list[_Start] = []
    for best in list(_plans_to_refine(model, search)):
        trial = search.priced[best]
        whole = on_all_devices(search, trial.graph, machine)
        if whole is None or _is_work(min(best.seconds, search.known), whole, machine):
            continue
        first = search.firsts.get(trial, 0)
        mappings = in_spaces(trial.builder, whole.chooser.spaces, best.choice, first)
        if mappings is not None:
            teller.works_on("refining", "refine", lambda of=whole: of.busy_bound)
            starts.append(_Start(whole, replace(best.choice, mappings=mappings)))
    return starts


def _rewritten(rewriter: RefinedRewriter, rewriting: Rewriting, others: int) -> list[_Start]:
    """The plan after rewrites of a graph that make it faster, which is priced even after an
    interrupt; then up to ``others`` plans that are nearly as fast."""
    whole = rewriter.trial
    with whole.phases.later():
        best = _start_of(whole, rewriter.plan, rewriting)
        best.trial.tried_choice(best.choice)
    return [best, *(_start_of(whole, plan, rewriting) for plan in rewriter.others[:others])]


def _start_of(whole: PricedTrial, plan: RewrittenPlan, rewriting: Rewriting) -> _Start:
    """A plan of a rewritten graph as a choice to refine. ``whole``: the trial of the graph
    before."""
    if plan.choice.graph != whole.graph:
        whole = rewriting.trial_of(plan.choice.graph, plan.derivation)
    made = plan.choice
    choice = replace(whole.counted(everything), mappings=made.mappings, order=made.order)
    return _Start(whole, choice)


def _annealed(starts: Sequence[_Start], work: int, stages: Stages, count: int) -> list[_Refined]:
    """The best plan that fits for each graph, by annealings side by side. ``count``: their number
    for all graphs together. Each graph has at least one."""
    lanes: list[tuple[PricedTrial, Lane]] = []
    for trial, choice in starts:
        for seed in range(max(1, count // len(starts))):
            lanes.append((trial, Lane(trial.annealer(work, seed), choice, stages)))
    if not lanes:
        return []
    try:
        lanes[0][1].annealer.load()  # machine code is loaded once, before processes part
        searches = [lane for _, lane in lanes]
        starts[0].trial.phases.timed("refining", lambda: run_side_by_side(searches))
    finally:
        lanes.sort(key=lambda pair: pair[1].annealer.least)
        refined: list[_Refined] = []
        for trial, _ in starts:
            own = [lane for other, lane in lanes if other is trial]
            every = (trial.tried_late(lane.best) for lane in own)
            fitting = (tried for tried in every if any(plan.fits for plan in tried.judged))
            for tried in islice(fitting, 1):
                often = sum(lane.annealer.least <= tried.seconds for lane in own)
                refined.append(_Refined(trial, tried, often))
    return refined


def move_once(search: SearchState, allowed: Callable[[Graph], Allowed]) -> None:
    """Price plans near the fastest that move a tensor once for several readers. ``allowed``: a
    function from a graph to the strategies that may be used."""
    plans = (plan for plan in search.priced if plan.fits and not plan.choice.fully_sharded)
    best = min(plans, key=lambda plan: plan.seconds, default=None)
    if best is not None:
        trial = search.priced[best]
        brief = is_large(trial.graph)
        trial.moved_once(best.choice, allowed(trial.graph), brief=brief)


def _plans_to_refine(model: Graph, search: SearchState) -> Iterator[PricedPlan]:
    """The plans to refine: the fastest that fit and don't have fully sharded weights, one for each
    graph that may gain. The model's own graph comes first, then the fastest others."""
    candidates = (plan for plan in search.priced if plan.fits and not plan.choice.fully_sharded)
    near = NEAR * search.known
    plans = (
        plan
        for graph, plan in sorted(
            fastest_by_graph(candidates).items(), key=lambda pair: pair[0] != model
        )
        if (plan.seconds <= near or graph == model) and _may_gain(graph, search)
    )
    yield from islice(plans, MOST_GRAPHS)


def _may_gain(graph: Graph, search: SearchState) -> bool:
    """Whether a graph is not too large, and is tiny, branched, or on devices of several kinds."""
    count, kinds = len(graph.operators), search.base.chooser.mesh.machine.kinds
    return 0 < count <= MOST_OPERATORS and (count <= SMALL or len(kinds) > 1 or is_branched(graph))


def is_branched(graph: Graph) -> bool:
    """Whether, among the operators that are trained, one reads results of several others, or
    several read the result of one. Otherwise these operators form chains."""
    trained = gradient_nodes(graph)
    operators = [node for node in graph.operators if node in trained]
    read = {node: {v.node for v in node.inputs} for node in operators}
    makers = dict.fromkeys(operators, 0)
    for node in operators:
        for maker in read[node] & makers.keys():
            makers[maker] += 1
    joins = any(len(read[node] & makers.keys()) > 1 for node in operators)
    return joins or any(readers > 1 for readers in makers.values())


def on_all_devices(search: SearchState, graph: Graph, machine: Machine) -> PricedTrial | None:
    """The trial of a graph on all devices of the machine, if there was one."""
    trials = (trial for trial in search.trials if trial.graph is graph)
    return next((trial for trial in trials if trial.chooser.mesh.machine == machine), None)


def _is_work(seconds: float, trial: PricedTrial, machine: Machine) -> bool:
    """Whether a step takes hardly longer than its work, spread evenly over all devices. False for
    devices of several kinds, for which no such bound is known."""
    return len(machine.kinds) == 1 and seconds <= GAIN * trial.least_work() / machine.devices


def in_spaces(
    builder: Builder, spaces: Spaces, choice: Choice, first: int
) -> dict[Node, OperatorMapping] | None:
    """The mappings of a choice in terms of other spaces of the same operators, whose axes may have
    other places. None if an axis is missing there. ``first``: the first device of the choice."""
    mappings: dict[Node, OperatorMapping] = {}
    for node in choice.graph.operators:
        mapping = builder.mapping(choice, node)
        made = by_names(mapping, builder.spaces.of(node).axes, spaces.of(node).axes)
        if made is None:
            return None
        mappings[node] = made.moved(first + made.start)
    return mappings
