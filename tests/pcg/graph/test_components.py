"""Components are the classes of members that edges connect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pcg.graph.components import components

EDGES = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=10)


@given(st.lists(st.integers(0, 7), unique=True).map(sorted), EDGES)
def test_components_are_the_members_joined_by_paths(
    members: list[int], edges: set[tuple[int, int]]
) -> None:
    both = edges | {(b, a) for a, b in edges}
    parts = components(members, lambda i: [b for a, b in both if a == i])
    joined = {(i, i) for i in members} | {e for e in both if {*e} <= {*members}}
    for middle in members:
        joined |= {
            (a, b)
            for a in members
            for b in members
            if (a, middle) in joined and (middle, b) in joined
        }
    expected = {tuple(sorted(b for b in members if (a, b) in joined)) for a in members}
    assert set(parts) == expected
    assert len(parts) == len(expected)
    assert parts == sorted(parts)
