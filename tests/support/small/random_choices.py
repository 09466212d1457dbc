"""Random choices of strategies."""

from __future__ import annotations

from random import Random

from pcg.graph.graph import Graph
from search.map.choose.choosing import Choice, Chooser
from search.map.space.strategies import starts


def at_random(chooser: Chooser, graph: Graph, random: Random) -> Choice:
    """Random strategies, from any possible first devices."""
    strategies = {
        node: random.choice(chooser.spaces.of(node).strategies).tolist() for node in graph.operators
    }
    rows = {node: tuple(row) for node, row in strategies.items()}
    firsts = {node: random.choice(starts(row, chooser.mesh)) for node, row in rows.items()}
    return Choice(graph, rows, 0.0, starts={node: at for node, at in firsts.items() if at})
