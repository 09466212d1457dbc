"""The last look at the fastest plan: its operators on any devices, as the simulation says.

A mesh of fewer devices than the machine has may have made the plan. It is refined on all of them.
"""

from __future__ import annotations

from dataclasses import replace

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.readings.work import gradient_nodes
from search.cost.progress import Teller
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.plan.incumbent import PricedTrial, SearchState
from search.refine.annealing import WORK

MOST_OPERATORS = 64
"""Of larger graphs too few states of each operator would be looked at."""
MOST_DEVICES = 24
"""On more devices a state takes several times as long to simulate."""
GAIN = 1.005
"""A plan that takes so many times what its work takes on all devices has nothing to gain."""


def refine(search: SearchState, machine: Machine, teller: Teller, work: int = WORK) -> None:
    """Price what the fastest plan becomes where each operator may run on any devices. Nothing is
    tried where that cannot gain, or is not known to be worth its time: of chains on devices of one
    kind, of many operators or devices, and of plans that take hardly longer than their work."""
    fitting = [plan for plan in search.priced if plan.fits]
    if not fitting:
        return
    best = min(fitting, key=lambda plan: plan.seconds)
    trial = search.priced[best]
    graph = trial.graph
    if len(graph.operators) > MOST_OPERATORS or machine.devices > MOST_DEVICES:
        return
    is_mixed = len(machine.kinds) > 1
    if best.choice.fully_sharded or not (is_mixed or is_branched(graph)):
        return
    whole = next((one for one in search.trials if _is_of(one, graph, machine)), None)
    if whole is None or _is_work(best.seconds, whole, machine):
        return
    first = search.firsts.get(trial, 0)
    mappings = _on_other(trial.builder, whole.chooser.spaces, best.choice, first)
    if mappings is not None:
        teller.works_on("refining", "refine", lambda: whole.busy_bound)
        whole.refined(replace(best.choice, mappings=mappings), work)


def is_branched(graph: Graph) -> bool:
    """Whether an operator reads what several others make that are trained; else what is trained
    forms chains."""
    trained = gradient_nodes(graph)
    return any(
        len({v.node for v in node.inputs if not v.node.is_leaf and v.node in trained}) > 1
        for node in graph.operators
    )


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
