"""The last look at the fastest plan: its operators on any devices, as the simulation says.

A mesh of fewer devices than the machine has may have made the plan. It is refined on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.readings.work import gradient_nodes
from search.cost.progress import Teller
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.space.allow import Allowed
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.plan.incumbent import PricedPlan, PricedPlans, PricedTrial, SearchState
from search.refine.annealing import NEARBY, WIDELY, WORK
from search.refine.overlap import Tried

MOST_OPERATORS = 64
"""Of larger graphs too few states of each operator would be looked at."""
MOST_DEVICES = 24
"""On more devices a state takes several times as long to simulate."""
FEW_DEVICES = 16
"""On more devices than these less is looked at, as each state takes longer to simulate."""
GAIN = 1.005
"""A plan that takes so many times what its work takes on all devices has nothing to gain."""


MOST_GRAPHS = 2
"""So many graphs are refined: what a rewrite joined, no change of a mapping takes apart."""
SMALL = 6
"""Graphs of so many operators are refined even if they are chains: it takes a moment."""
NEAR = 1.5
"""A plan that takes so many times as long as the fastest may still become faster than that."""


def refine(
    model: Graph, search: SearchState, machine: Machine, teller: Teller, work: int | None = None
) -> None:
    """Price what the fastest plans of a few graphs become where each operator may run on any
    devices: plans are looked for widely for each graph, and then near the fastest. Nothing is tried
    where that cannot gain, or is not known to be worth its time: of chains on devices of one kind
    unless they are tiny, of many operators or devices, and of plans that take hardly longer than
    their work."""
    if machine.devices > MOST_DEVICES:
        return
    work = WORK if work is None else work
    work = min(work, work * FEW_DEVICES // machine.devices)
    refined: list[tuple[Tried[PricedPlans], PricedTrial]] = []
    for best in list(_starts(model, search)):
        trial = search.priced[best]
        whole = next((one for one in search.trials if _is_of(one, trial.graph, machine)), None)
        if whole is None or _is_work(min(best.seconds, search.known), whole, machine):
            continue
        first = search.firsts.get(trial, 0)
        mappings = _on_other(trial.builder, whole.chooser.spaces, best.choice, first)
        if mappings is not None:
            teller.works_on("refining", "refine", lambda of=whole: of.busy_bound)
            choice = replace(best.choice, mappings=mappings)
            refined.append((whole.refined(choice, work, WIDELY), whole))
    fitting = (one for one in refined if any(plan.fits for plan in one[0].judged))
    fastest = min(fitting, key=lambda one: one[0].seconds, default=None)
    if fastest is not None:
        tried, whole = fastest
        whole.refined(tried.choice, work, NEARBY)


def move_once(search: SearchState, allowed: Callable[[Graph], Allowed]) -> None:
    """Price plans near the fastest that move a tensor once for several readers. ``allowed``: the
    strategies that may be used in a graph."""
    plans = (plan for plan in search.priced if plan.fits and not plan.choice.fully_sharded)
    best = min(plans, key=lambda plan: plan.seconds, default=None)
    if best is not None:
        trial = search.priced[best]
        trial.moved_once(best.choice, allowed(trial.graph))


def _starts(model: Graph, search: SearchState) -> Iterator[PricedPlan]:
    """The fastest plans that fit and have their weights whole, one a graph that may gain: of the
    model's own graph, and of the fastest others."""
    near = NEAR * search.known
    mine = (plan for plan in search.priced if plan.fits and not plan.choice.fully_sharded)
    own: dict[Graph, PricedPlan] = {}
    for plan in sorted(mine, key=lambda plan: plan.seconds):
        if plan.seconds <= near and _may_gain(graph := search.priced[plan].graph, search):
            own.setdefault(graph, plan)
    of_model = [own.pop(model)] if model in own else []
    yield from (*of_model, *list(own.values())[: MOST_GRAPHS - len(of_model)])


def _may_gain(graph: Graph, search: SearchState) -> bool:
    """Whether a graph has operators, not too many, and is tiny, branched or on devices of several
    kinds."""
    count, kinds = len(graph.operators), search.base.chooser.mesh.machine.kinds
    return 0 < count <= MOST_OPERATORS and (count <= SMALL or len(kinds) > 1 or is_branched(graph))


def is_branched(graph: Graph) -> bool:
    """Whether an operator reads what several others make that are trained, or several of these read
    what it makes; else what is trained forms chains."""
    trained = gradient_nodes(graph)
    own = [node for node in graph.operators if node in trained]
    read = {node: {v.node for v in node.inputs} for node in own}
    makers = dict.fromkeys(own, 0)
    for node in own:
        for maker in read[node] & makers.keys():
            makers[maker] += 1
    joins = any(len(read[node] & makers.keys()) > 1 for node in own)
    return joins or any(readers > 1 for readers in makers.values())


def _is_of(trial: PricedTrial, graph: Graph, machine: Machine) -> bool:
    return trial.graph is graph and trial.chooser.mesh.machine == machine


def _is_work(seconds: float, trial: PricedTrial, machine: Machine) -> bool:
    """Whether a step takes hardly longer than the work that is to be done, spread over all devices;
    where these are of several kinds, nobody knows."""
    return len(machine.kinds) == 1 and seconds <= GAIN * trial.least_work() / machine.devices


def _on_other(
    builder: Builder, spaces: Spaces, choice: Choice, first: int
) -> dict[Node, OperatorMapping] | None:
    """The mappings of a choice for other strategies of the same operators, whose axes may have
    other places; None where one has no such axis. ``first``: the device that the choice has as its
    first."""
    mappings: dict[Node, OperatorMapping] = {}
    for node in choice.graph.operators:
        own, axes = builder.mapping(choice, node), builder.spaces.of(node).axes
        places = {axis.name: place for place, axis in enumerate(spaces.of(node).axes)}
        made: list[MappedAxis] = []
        for axis in own.axes:
            place = axis.place if axis.place < 0 else places.get(axes[axis.place].name)
            if place is None:
                return None
            made.append(axis._replace(place=place))
        mappings[node] = OperatorMapping(first + own.start, tuple(made))
    return mappings
