"""The linear algebra of relations, on small systems that can be searched exhaustively."""

from __future__ import annotations

from itertools import product

import pytest

from substitutions.generate.cuts.derive import (
    EdgeEntry,
    Edges,
    Relation,
    RelationSteps,
    normal,
    relations,
)

FREE = Edges((1, 1))
"""Two edges with one dimension each: entries are degree, slices, copies, partials."""


def column(**rows: int) -> dict[int, int]:
    return {int(name[1:]): value for name, value in rows.items()}


SYSTEMS = {
    "what comes in goes out": {(0, 0): column(r0=1), (1, 0): column(r0=1)},
    "a cut sum": {(0, 0): column(r0=1), (1, 3): column(r0=1), (0, 3): column(r0=1)},
    "copies are used up": {
        (0, 0): column(r0=1),
        (1, 0): column(r0=1, r1=1),
        (0, 2): column(r1=1),
        (1, 2): column(r1=1),
    },
    "twice": {(0, 0): column(r0=1), (1, 0): column(r0=2)},
    "apart": {(0, 0): column(r0=1), (1, 0): column(r1=1)},
}


def exhaustive(columns: dict[EdgeEntry, dict[int, int]], edges: Edges) -> set[Relation]:
    """All relations between graphs with up to one parallel operator on each edge."""
    sums: set[Relation] = set()
    for powers in product(range(-2, 3), repeat=len(columns)):
        chosen = {place: n for place, n in zip(columns, powers, strict=True) if n}
        rows = [row for column in columns.values() for row in column]
        balanced = all(
            sum(columns[p].get(row, 0) * n for p, n in chosen.items()) == 0 for row in rows
        )
        if chosen and balanced and all(edges.fit(chosen, edge) for edge in range(len(edges.ranks))):
            sums.add(normal(chosen))
    return sums


def is_sum(relation: Relation, known: set[Relation]) -> bool:
    """Whether a relation is a sum of known ones of the same signs."""
    powers = dict(relation)
    for other in known:
        for sign in (1, -1):
            part = {place: sign * n for place, n in other}
            if all(0 < n <= powers.get(p, 0) or 0 > n >= powers.get(p, 0) for p, n in part.items()):
                rest = {p: n - part.get(p, 0) for p, n in powers.items() if n != part.get(p, 0)}
                if not rest or is_sum(normal(rest), known):
                    return True
    return False


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_relations_are_sums_of_the_derived_relations(name):
    columns = SYSTEMS[name]
    derived = set(relations(columns, FREE))
    every = exhaustive(columns, FREE)
    assert derived <= every
    assert all(is_sum(relation, derived) for relation in every)
    assert not any(is_sum(relation, derived - {relation}) for relation in derived)


def test_relations_of_small_systems_are_found():
    assert relations(SYSTEMS["apart"], FREE) == []
    assert relations(SYSTEMS["what comes in goes out"], FREE) == [(((0, 0), 1), ((1, 0), -1))]
    assert relations(SYSTEMS["twice"], FREE) == [(((0, 0), 2), ((1, 0), -1))]


def test_edge_holds_one_parallel_operator_on_each_side():
    dims, slices, copies, partials = ((0, entry) for entry in range(4))
    assert FREE.fit({dims: 1, slices: -1}, 0)
    assert FREE.fit({dims: 2}, 0)
    assert not FREE.fit({dims: 3}, 0)
    assert not FREE.fit({dims: 1, slices: 1, copies: 1}, 0)
    assert FREE.fit({copies: 1, partials: 1}, 0)  # replicate on the left, reduce on the right
    assert not FREE.fit({copies: 1, partials: -1}, 0)  # both on the left
    assert not FREE.fit({copies: 2}, 0)
    haloed = Edges((1, 1), frozenset([dims]))
    assert not haloed.fit({dims: 2}, 0)
    assert [haloed.side(dims, n) for n in (1, -1)] == [1, -1]


def test_steps_are_counted():
    """Cutting and joining undo each other, so powers of dimensions go either way."""
    steps = RelationSteps(FREE)
    one: Relation = (((0, 0), 1), ((1, 0), -1))
    two: Relation = (((0, 1), 1), ((1, 0), -1))
    assert steps.distance(one, [one]) == 1
    assert steps.distance((((0, 0), 1), ((0, 1), -1)), [one, two]) == 2
    assert steps.distance((((0, 0), 1), ((0, 1), -1)), [one]) is None
    assert steps.distance((((0, 0), 1), ((0, 1), -1)), [one, two], most=1) is None


def test_copies_cannot_be_undone():
    """No operator gives copies back, so an equality that needs missing copies does not follow."""
    steps = RelationSteps(FREE)
    takes: Relation = (((0, 0), 1), ((0, 2), 1), ((1, 0), -1))
    gives: Relation = (((0, 1), 1), ((0, 2), 1), ((1, 0), -1))
    follows: Relation = (((0, 0), 1), ((0, 1), -1))
    assert steps.distance(follows, [takes, gives]) is not None  # through the second edge
    left: Relation = (((0, 0), 1), ((0, 2), 1), ((1, 2), -1))
    right: Relation = (((0, 1), 1), ((0, 2), 1), ((1, 2), -1))
    assert steps.distance(follows, [left, right]) is None  # no copies on either edge
