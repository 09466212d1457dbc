"""Disjoint sets, against the connected components of the same equalities."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from pcg.disjoint import DisjointSets

EQUALITIES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


@given(EQUALITIES)
def test_sets_are_connected_components(equalities: list[tuple[int, int]]):
    sets, graph = DisjointSets[int](), nx.Graph(equalities)
    for a, b in equalities:
        sets.join(a, b)
        assert sets.root(a) == sets.root(b)
    groups = sets.sets()
    assert sorted(map(sorted, groups.values())) == sorted(
        map(sorted, nx.connected_components(graph))
    )
    assert all(sets.root(thing) == root for root, things in groups.items() for thing in things)


@given(EQUALITIES)
def test_the_root_of_the_second_stands_for_both(equalities: list[tuple[int, int]]):
    sets = DisjointSets[int]()
    for a, b in equalities:
        root = sets.root(b)
        sets.join(a, b)
        assert sets.root(a) == root


def test_unknown_item_is_its_own_root():
    sets = DisjointSets[str]()
    assert sets.root("a") == "a"
    assert sets.sets() == {}
