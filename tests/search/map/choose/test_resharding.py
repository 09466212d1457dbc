"""Transfers for all pairs of placements at once, against one pair at a time, mesh axis by mesh
axis."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from search.map.choose.resharding import (
    _MESSAGES,
    _NEVER,
    _NOTHING,
    _PASSES,
    _REDUCES,
    _alike,
    _keys,
)
from search.map.space.strategies import IDLE, PARTIAL, REPLICATE

MOST_DIGITS = 5
ENTRIES = (IDLE, PARTIAL, REPLICATE, 0, 1, 2)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Primes, outermost first, and two placements along their mesh axes."""
    count = draw(st.integers(0, MOST_DIGITS))
    way = st.tuples(*[st.sampled_from(ENTRIES)] * count)
    return draw(st.tuples(*[st.sampled_from((2, 3))] * count)), draw(way), draw(way)


def cells(a: tuple[int, ...], b: tuple[int, ...], primes: tuple[int, ...]):
    """For each dimension, the number of parts by the leading mesh axes along which both placements
    agree, and the number of further parts of each. Also the later mesh axes that cut it in both."""
    shifted: set[int] = set()
    parts: list[tuple[int, int, int]] = []
    for dim in range(3):
        cell = inner_a = inner_b = 1
        alike = True
        for d, prime in enumerate(primes):
            x, y = a[d] == dim, b[d] == dim
            alike = alike and x == y
            if alike:
                cell *= prime if x else 1
                continue
            inner_a *= prime if x else 1
            inner_b *= prime if y else 1
            if x and y:
                shifted.add(d)
        parts.append((cell, inner_a, inner_b))
    return parts, shifted


def key(a: tuple[int, ...], b: tuple[int, ...], primes: tuple[int, ...]):
    def times(wanted) -> int:
        return prod(p for p, x, y in zip(primes, a, b, strict=True) if wanted(x, y))

    parts, shifted = cells(a, b, primes)
    cell, inner_a, inner_b = (prod(column) for column in zip(*parts, strict=True))
    met = prod(max(x / y, 1) for _, x, y in parts)
    moved = {d for d in range(len(a)) if a[d] != b[d] and a[d] != REPLICATE}
    group = times(lambda x, y: x == PARTIAL != y)
    asking = times(lambda x, y: x == IDLE != y)
    served = max(asking / times(lambda x, y: x != IDLE == y), 1)
    own = 0 if asking > 1 else 1 / (cell * inner_a * inner_b)
    received = max(group / (cell * inner_b) - own, 0)
    ways = {(a[d], b[d]) for d in moved}
    gathered = all(x >= 0 and y == REPLICATE for x, y in ways)
    scattered = all(x == PARTIAL and y >= 0 for x, y in ways)
    mask = sum(1 << d for d in moved | shifted)
    if PARTIAL in b and any((x == PARTIAL) != (y == PARTIAL) for x, y in zip(a, b, strict=True)):
        return _NEVER, 0, 0, 0
    if received <= 0:
        return _NOTHING, 0, 0, 0
    volume = 1 / (cell * (inner_b if gathered else inner_a))
    if mask and not shifted and all(x == PARTIAL and y == REPLICATE for x, y in ways):
        return _REDUCES, mask, volume, 0
    if mask and not shifted and (scattered or gathered):
        return _PASSES, mask, volume, 0
    return _MESSAGES, mask, received * served, group * met * served


@given(pairs())
def test_keys_of_transfers_equal_those_computed_axis_by_axis(case):
    primes, a, b = case
    source, target = (np.array([way], np.int8).reshape(1, len(primes)) for way in (a, b))
    columns = _keys(source, target, np.array(primes, np.int64))
    own = [float(column[0]) for column in columns]
    np.testing.assert_allclose(own, key(a, b, primes), rtol=1e-12)


@given(st.lists(pairs(), min_size=1, max_size=8).filter(lambda own: len({p for p, *_ in own}) == 1))
def test_keys_of_several_pairs_equal_those_of_each_pair(cases):
    """Placements share what depends on their sets of mesh axes alone."""
    primes = np.array(cases[0][0], np.int64)
    a, b = (
        np.array([case[n] for case in cases], np.int8).reshape(len(cases), len(primes))
        for n in (1, 2)
    )
    together = np.stack([np.asarray(c, float) for c in _keys(a, b, primes)], axis=1)
    each = [_keys(a[i : i + 1], b[j : j + 1], primes) for i in range(len(a)) for j in range(len(b))]
    assert together.tolist() == [[float(column[0]) for column in one] for one in each]


def test_mesh_axes_further_out():
    a = np.array([[0b1000, 0b0110, 0b0001, 0b1011]], np.int32)
    b = np.array([[0b0000, 0b0000, 0b0000, 0b0001]], np.int32)
    assert _alike(a, b).tolist() == [[0b0111, 0b0001, 0, 0b0001]]
