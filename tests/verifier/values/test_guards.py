"""Conditions that are left out hold everywhere: at all indices, for all sizes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.language.normal import Term
from pcg.language.poly import Poly
from verifier.trusted.values.guards import SureGuards

RANGES = {"i": Poly.of("|n|"), "j": Poly.of("|m|"), "h": Poly.of("|n|") - Poly.of("at")}
SYMBOLS = (*RANGES, "|n|", "|m|", "at", "top")
SURE = SureGuards(RANGES.get, lambda name: name != "top", lambda value: value == RANGES["h"])
"""``at`` is known to be at least 0 and less than ``|n|``. ``top`` may be any number."""

monomials = st.lists(st.sampled_from(SYMBOLS), max_size=2).map(lambda names: tuple(sorted(names)))
guards = st.lists(st.tuples(monomials, st.integers(-2, 2)), min_size=1, max_size=4).map(
    Poly.collect
)


def left(guard: Poly) -> Term | None:
    """The rest of 1 under a guard. None if it is 0."""
    form = SURE.dropped((Term(Fraction(1), guards=(guard,)),))
    return form[0] if form else None


def is_dropped(guard: Poly) -> bool:
    term = left(guard)
    return term is not None and not term.guards


def points():
    """Every choice of small sizes, attributes, and indices in their ranges."""
    for n, m, at, top in product((1, 2, 3), (1, 2), (0, 1), (-2, 1)):
        if at >= n:
            continue
        known = {"|n|": n, "|m|": m, "at": at, "top": top}
        spans = (range(size.evaluate(known)) for size in RANGES.values())
        for indices in product(*spans):
            yield {**known, **dict(zip(RANGES, indices, strict=True))}


POINTS = list(points())


@settings(max_examples=133)
@given(guard=guards)
def test_dropped_conditions_hold_everywhere(guard: Poly):
    if is_dropped(guard):
        assert all(guard.evaluate(point) >= 0 for point in POINTS)


@settings(max_examples=133)
@given(guard=guards)
def test_conditions_of_terms_that_vanish_never_hold(guard: Poly):
    if left(guard) is None:
        assert all(guard.evaluate(point) < 0 for point in POINTS)


def test_a_number_below_0_never_holds():
    assert left(Poly.of(-1)) is None
    assert left(Poly.of(0)) == Term(Fraction(1))


def of(text: str) -> Poly:
    """A sum of signed products, as in ``+n*m -i*m -j -1``."""
    total = Poly()
    for word in text.split():
        part = Poly.of(1 if word[0] == "+" else -1)
        for name in word[1:].split("*"):
            part = part * Poly.of(int(name) if name.isdigit() else name)
        total = total + part
    return total


@pytest.mark.parametrize(
    "text", ["+|n|*|m| -i*|m| -j -1", "+i", "+|n| -i -1", "+|n| -h -1", "+i*j +at"]
)
def test_positions_within_a_merged_dimension_are_dropped(text: str):
    assert is_dropped(of(text))


@pytest.mark.parametrize(
    "text", ["+|n|*|m| -i*|m| -j -2", "+i -j", "+top", "+|m| -i -1", "+i -at", "+|n| -i -top"]
)
def test_conditions_that_may_fail_are_kept(text: str):
    assert not is_dropped(of(text))
