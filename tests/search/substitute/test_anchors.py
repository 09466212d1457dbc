"""Matches that are remembered are those that are found anew, in every graph of a search."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from support.graphs.random_graphs import random_graph

from pcg.graph.graph import Graph, apply
from pcg.models.mlp import mlp
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph
from search.substitute.anchors import Anchors, Root
from search.substitute.applications import Rewrites
from substitutions.rules.match import anchor, matches_at
from substitutions.rules.rule import Rule
from substitutions.rules.store import load_library


def rules_of(graph: Graph) -> dict[Root, list[Rule]]:
    """All rules that concern a graph, both ways, but those that are anchored at an input."""
    found: dict[Root, list[Rule]] = defaultdict(list)
    for both in load_library().concrete(graph):
        for rule in (both, both.reversed):
            first = rule.left[anchor(rule)].node
            if not first.is_leaf:
                found[first.name, first.ranks[0]].append(rule)
    return found


def anew(rules: dict[Root, list[Rule]], graph: Graph):
    for node in graph.nodes:
        for rule in rules.get((node.name, node.types[0].rank), ()):
            for match in matches_at(rule, node, graph):
                yield node, rule, match


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.soak if n > 2 else ()) for n in range(8)]
)
def test_what_is_remembered_is_what_is_there(seed):
    """Along a random way through the graphs that rules make of a random one."""
    random = Random(seed)
    graph = random_graph(random, devices=4, size=5)
    rules = rules_of(graph)
    anchors, rewrites = Anchors(rules), Rewrites(load_library().concrete(graph), 4)
    seen = 0
    for _ in range(6):
        wanted = list(anew(rules, graph))
        found = [(n, r, m) for n in graph.nodes for r, m in anchors.matches(n, graph)]
        assert found == wanted
        seen += len(found)
        graphs = [made for made, _ in rewrites.applications(graph)]
        if not graphs:
            break
        graph = random.choice(graphs)
    assert seen


def test_operands_that_become_the_same_are_told_from_others():
    """Two of the same calls and types differ for a rule in whether they read one value twice."""
    one = parse_graph("x = input[4, 4]\ny = input[4, 4]\nreturn add(relu(x), relu(y))")
    same = parse_graph("x = input[4, 4]\nreturn add(relu(x), relu(x))")
    rules = rules_of(one)
    anchors = Anchors(rules)
    for graph in (one, same, one):
        found = [(n, r, m) for n in graph.nodes for r, m in anchors.matches(n, graph)]
        assert found == list(anew(rules, graph))


def test_only_what_a_step_changes_is_matched_anew():
    """In a row of layers alike, all but those near the change look as they did."""
    graph = mlp(8, (8,) * 20)
    rules = rules_of(graph)
    anchors = Anchors(rules)

    def look(found: Graph) -> int:
        before = anchors.looked
        for node in found.nodes:
            list(anchors.matches(node, found))
        return anchors.looked - before

    # Of 20 layers, which are three operators each, those count whose surroundings, as deep as the
    # deepest rule, reach to an end of the row.
    few = 2 * (1 + anchors._depth)
    assert few < len(graph.nodes) / 3
    first = look(graph)
    assert first < few
    assert look(graph) == 0
    middle = [node for node in graph.nodes if node.name == "relu"][10]
    double = apply(OPERATORS["relu"](), middle.value())
    changed = graph.replace({middle.value(): double})
    assert len(changed.nodes) == len(graph.nodes) + 1
    assert 0 < look(changed) < few
