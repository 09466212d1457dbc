"""Refinement of tiny graphs whose fastest plans do not fit in memory.

Problem: a refinement by time alone leads to plans that take too much memory. A price of a byte
leads to plans that fit, but not to operators on different devices for the sake of memory.

Method: simulated annealing over whole plans (``search.refine.annealing``), whose memory is counted.
The seconds of a plan that does not fit are raised in proportion to the bytes that it misses (a
penalty function; Courant, 1943). There is an annealing for each set of weights that are stored in
parts, with the other weights whole. The fastest plan of each graph that fits is also polished
(``search.refine.polish``), by changes to plans that fit.

Complexity: up to ``STATES_TO_FIT`` full simulations for each of ``MOST_SETS`` sets of each graph.
So only graphs of few operators are refined like this. Heuristic: another plan may fit and be
faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice

from pcg.graph.graph import Graph
from pcg.machine import Machine
from search.cost.progress import Teller
from search.map.choose.choosing import Choice
from search.map.space.allow import everything
from search.plan.incumbent import PricedPlan, PricedTrial, SearchState, fastest_by_graph
from search.plan.refining import MOST_GRAPHS, SMALL, in_spaces, on_all_devices
from search.refine.annealing import Price, Stage, Stages
from search.refine.delta import DeltaSimulator
from search.refine.mappings import PlanState
from search.refine.polish import Polisher

STATES_TO_FIT, MORE_STATES = 300, 3000
"""The states of each annealing; and if all weights are whole, so that most states are ruled out by
their time."""
MOST_SETS = 8
"""The most sets of weights in parts that are tried for a graph. The smallest sets come first."""
STAGES: Stages = (Stage(0.3, 0.1, "best"), Stage(0.3, 0.1, "alone"), Stage(0.4, 0.02, "best"))
PAIRS = 4096
"""The most pairs of strategies of two operators that are tried."""
PENALTY = 10.0
"""A plan that takes a tenth more memory than there is counts as if its step took twice as long."""


def refine_to_fit(model: Graph, search: SearchState, machine: Machine, teller: Teller) -> None:
    """Refine the fastest plans that do not fit, for a few tiny graphs, if they are faster than all
    that fit. The results are priced, and those that fit are candidates."""
    starts = _starts(model, search)
    for plan in _fitting(search) if starts else ():
        teller.works_on("polishing within memory", "refine")
        _polish_within_memory(search.priced[plan], plan)
    for plan in starts:
        trial = search.priced[plan]
        whole = on_all_devices(search, trial.graph, machine)
        if whole is None:
            continue
        first = search.firsts.get(trial, 0)
        mappings = in_spaces(trial.builder, whole.chooser.spaces, plan.choice, first)
        if mappings is None:
            continue
        teller.works_on("refining to fit in memory", "refine", lambda of=whole: of.busy_bound)
        choice = replace(plan.choice, mappings=mappings)
        for other in islice(_with_weights_in_parts(choice), MOST_SETS):
            states = STATES_TO_FIT if other.fully_sharded else MORE_STATES
            work = states * len(trial.graph.operators)
            whole.refined(other, work, STAGES, _price(whole, other))


def _with_weights_in_parts(choice: Choice) -> Iterator[Choice]:
    """The choice with each set of weights in parts. The first has none."""
    weights = {leaf.leaf.name for leaf in choice.graph.leaves if leaf.is_weight}
    for count in range(len(weights) + 1):
        for parts in combinations(sorted(weights), count):
            whole = weights.difference(parts)
            yield replace(choice, fully_sharded=bool(parts), kept_whole=frozenset(whole))


def _starts(model: Graph, search: SearchState) -> list[PricedPlan]:
    """The fastest plan of the model's graph, and that of the graph with the fastest plans, of those
    that do not fit and are faster than all that do. Only tiny graphs are looked at."""
    known = search.known
    by_graph = fastest_by_graph(
        plan for plan in _of_tiny_graphs(search) if not plan.fits and plan.seconds < known
    )
    of_model = [by_graph.pop(model)] if model in by_graph else []
    return [*of_model, *list(by_graph.values())[: MOST_GRAPHS - len(of_model)]]


def _fitting(search: SearchState) -> list[PricedPlan]:
    """The fastest plan of each tiny graph that fits, of those with strategies of a mesh."""
    by_graph = fastest_by_graph(
        plan
        for plan in _of_tiny_graphs(search)
        if plan.fits and not (plan.choice.mappings or plan.choice.fully_sharded)
    )
    return [*by_graph.values()][:MOST_GRAPHS]


def _of_tiny_graphs(search: SearchState) -> Iterator[PricedPlan]:
    return (plan for plan in search.priced if len(plan.choice.graph.operators) <= SMALL)


def _polish_within_memory(trial: PricedTrial, plan: PricedPlan) -> None:
    """Change strategies of an operator or two, as long as a plan that fits is faster."""

    def is_faster(choice: Choice, limit: float) -> bool:
        return trial.is_faster(choice, limit) and any(
            made.fits for made in trial.tried_choice(choice).judged
        )

    polisher = Polisher(trial.chooser, trial.graph, trial.tried_choice, is_faster, PAIRS)
    polisher.polished(trial.tried_choice(plan.choice), everything)


def _price(trial: PricedTrial, choice: Choice) -> Price:
    """The seconds of a step of a state, raised if it does not fit."""
    delta = DeltaSimulator.of(trial.graph, trial.builder, trial.chooser.pricing.cost)

    def price(state: PlanState, limit: float) -> float | None:
        chosen = state.chosen(choice)
        if not choice.fully_sharded and delta.seconds(chosen, limit) is None:
            return None
        plans = trial.tried_choice(chosen).judged
        seconds = min(
            plan.seconds * (1 + PENALTY * max(0.0, plan.memory / plan.limit - 1)) for plan in plans
        )
        return seconds if seconds < limit else None

    return price
