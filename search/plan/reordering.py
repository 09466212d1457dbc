"""The order of issue of the fastest plans, improved under simulation.

Problem: plans are chosen as if operators were issued in the order of the graph. In another order, a
device may compute one branch while another branch waits for communication.

Method: simulated annealing over orders alone (``search.refine.annealing``), for the fastest plan
and a few that are nearly as fast. Cuts and devices stay, so devices that are busy alike in one
order are so in any other (``search.refine.device_classes``).

Complexity: up to ``WORK`` operators in all states of a plan. A heuristic. It is left out for large
graphs, for deep models, of which one block stands for many, and for fully sharded weights.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

from pcg.graph.graph import Graph
from pcg.placement.order import has_orders
from search.cost.progress import OutOfTime, Phases, Teller
from search.plan.incumbent import PricedPlan, SearchState
from search.refine.annealing import Stage, Stages
from search.refine.moves import ORDERS

WORK = 100_000
"""The most operators of all states of a plan, added up."""
STAGES: Stages = (Stage(0.7, 0.01, "best", ORDERS), Stage(0.3, 0.002, "best", ORDERS))
MOST_OPERATORS = 128
"""The most operators of a graph. Of a larger one, too few orders would be tried: pricing the first
state of `inception-v3` on 192 devices takes seconds, and its best order saves 0.03 %."""
FEW_DEVICES = 24
"""The devices up to which each is simulated. Of more, one stands for all that are busy alike."""
SHARE = 0.1
"""The share of a search's time that is reserved."""
MOST_PLANS, NEAR = 4, 1.2
"""The most plans, and how slow they may be: so many times as slow as the fastest."""


@contextmanager
def reordered(
    search: SearchState, teller: Teller, phases: Phases, *, reserves: bool
) -> Generator[None]:
    """Price the fastest plans in better orders of issue after the context, also if its time is up.
    ``reserves``: whether to reserve time for that."""
    try:
        with phases.earlier(SHARE if reserves else 0.0):
            yield
    except OutOfTime:
        reorder(search, teller)
        raise
    reorder(search, teller)


def reorder(search: SearchState, teller: Teller) -> None:
    """Price the fastest plans in better orders of issue."""
    for plan in list(islice(_plans(search), MOST_PLANS)):
        trial = search.priced[plan]
        teller.works_on("ordering", "refine", lambda of=trial: of.busy_bound)
        by_class = trial.chooser.mesh.machine.devices > FEW_DEVICES
        refined = partial(trial.refined, plan.choice, WORK, STAGES, by_class=by_class)
        trial.phases.timed("ordering", refined)


def _plans(search: SearchState) -> Iterator[PricedPlan]:
    """The fastest plans that fit, one for each graph, as far as they can be ordered otherwise."""
    graphs: set[Graph] = set()
    most = NEAR * search.known
    for plan in sorted(search.priced, key=lambda plan: plan.seconds):
        graph = plan.choice.graph
        if not plan.fits or plan.seconds > most or graph in graphs:
            continue
        graphs.add(graph)
        is_small = len(graph.operators) <= MOST_OPERATORS
        if is_small and not plan.choice.fully_sharded and has_orders(graph):
            yield plan
