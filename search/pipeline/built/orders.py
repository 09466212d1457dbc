"""The order of issue within the stages of a pipeline, improved as long as its price falls.

Problem: a stage computes its operators in the order of the graph. In another order, a tensor moves
between its devices while another branch is computed.

Method: local search. An operator is issued right before or after another one of its stage, and the
operators that read it, or that it reads, move along. The order is kept if a step takes no longer
than before, so that several changes without a gain may lead to one that gains. The same pipeline
gives the same order.

Complexity: at most ``MOST`` prices of a built pipeline, some milliseconds each, and no more than
``PATIENCE`` in a row without a gain. A heuristic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random

from pcg.graph.graph import Node
from pcg.placement.order import has_orders, ordered
from search.cost.progress import check_time
from search.pipeline.built.pricer import BuiltPipeline

MOST, PATIENCE = 600, 200
MOST_OPERATORS = 64
"""The most operators of a graph. Of a larger one, too few orders would be tried."""

Reordered = Callable[[BuiltPipeline, tuple[Node, ...]], BuiltPipeline]
"""A function from a pipeline and an order to the pipeline in this order."""


def reorderings(given: BuiltPipeline, reordered: Reordered) -> Iterator[BuiltPipeline]:
    """Yield the pipeline in better orders, each faster than the one before. All of them fit."""
    graph = given.placed.graph
    if len(graph.computing) > MOST_OPERATORS or not has_orders(graph):
        return
    peers = _peers(given, graph.computing)
    movable = [*peers]
    if not movable:
        return
    random, best, waits = Random(0), given, 0
    order = given.placed.order or graph.computing
    for _ in range(MOST):
        check_time()
        node = random.choice(movable)
        places = {other: float(place) for place, other in enumerate(order)}
        places[node] = places[random.choice(peers[node])] + random.choice((-0.5, 0.5))
        other = ordered(graph, places)
        made = best if other == order else reordered(best, other)
        waits += 1
        if made.fits and made.seconds < best.seconds:
            waits = 0
            yield made
        if made.fits and made.seconds <= best.seconds:
            best, order = made, other
        if waits == PATIENCE:
            return


def _peers(given: BuiltPipeline, nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each operator that is not alone in its stage, the other ones there."""
    views, size = given.placed.views, given.outline.groups.size
    stages: defaultdict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        stages[views[node].start // size].append(node)
    return {
        node: [other for other in own if other is not node]
        for own in stages.values()
        for node in own
        if len(own) > 1
    }
