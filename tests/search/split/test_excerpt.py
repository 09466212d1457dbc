"""Operators in an excerpt behave as in the whole graph."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from pcg.graph.graph import Graph, Node
from pcg.models import build_model
from pcg.readings.work import gradient_nodes
from search.split.excerpt import Excerpt
from search.substitute.algebra import Algebra
from search.substitute.rewrites import _touched, around
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_model("bert-large-tiny", None, 2)


def some(graph: Graph, draw: random.Random) -> set[Node]:
    operators = [node for node in graph.nodes if not node.is_leaf]
    return around(graph, set(draw.sample(operators, 2)), 1)


@pytest.mark.parametrize("seed", range(5))
def test_window_keeps_types_gradients_and_readers(graph: Graph, seed: int) -> None:
    nodes = some(graph, random.Random(seed))
    excerpt = Excerpt.of(graph, nodes)
    whole, own = gradient_nodes(graph), gradient_nodes(excerpt.graph)
    assert set(excerpt.images) == nodes
    for node, image in excerpt.images.items():
        assert image.signature == node.signature
        assert (image in own) == (node in whole)
        readers = {excerpt.images[user] for user in graph.users[node] if user in nodes}
        assert set(excerpt.graph.users[image]) == readers
    assert {end.node for end in excerpt.ends} == {
        excerpt.images[value.node] for value in graph.outputs if value.node in nodes
    }


def test_rewrite_in_a_window_makes_the_same_nodes_as_in_the_graph(graph: Graph) -> None:
    algebra = Algebra.of(load_library().concrete(graph))
    operators = (node for node in graph.nodes if not node.is_leaf)
    first_steps = (next(algebra.applications(node, graph), None) for node in operators)
    steps = list(islice((step for step in first_steps if step is not None), 4))
    assert len(steps) == 4
    for step in steps:
        nodes = around(graph, _touched(graph, (step,)), 1)
        excerpt = Excerpt.of(graph, nodes)
        after = excerpt.graph.replace(excerpt.replaced(step))
        made = graph.replace(step.replaced)
        fresh = {n.signature for n in made.nodes if n not in set(graph.nodes) and not n.is_leaf}
        inside = {n.signature for n in after.nodes if n not in set(excerpt.graph.nodes)}
        assert inside <= fresh
        assert {v.node.signature for v in step.made if not v.node.is_leaf} <= {
            n.signature for n in after.nodes if not n.is_leaf
        }
