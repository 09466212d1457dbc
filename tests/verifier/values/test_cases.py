"""Indices of a sum that are the digits of one number."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.language.normal import Term
from pcg.language.poly import Poly, Variable
from verifier.trusted.errors import Unproved
from verifier.trusted.values.cases import Case, solve

D, B = Poly.of("d"), Poly.of("b")
AT, LOW, U = (Variable(name) for name in ("%at", "%in", "%u0"))
BINDERS = ((AT, D), (LOW, B))
DIGITS = Poly.of(AT) * B + Poly.of(LOW)
SIZES = frozenset((D, B))

VALUES = {
    "digits": DIGITS,
    "moved": DIGITS + Poly.of(3),
    "moved by a size": DIGITS - D,
    "overlapping": Poly.of(AT) * (B - Poly.of(1)) + Poly.of(LOW),
    "with gaps": Poly.of(AT) * (B + Poly.of(1)) + Poly.of(LOW),
    "upper digit backwards": Poly.of(LOW) - Poly.of(AT) * B,
    "of another size": Poly.of(AT) * D + Poly.of(LOW),
    "side by side": Poly.of(AT) + Poly.of(LOW),
}
JOINED = {"digits", "moved", "moved by a size", "upper digit backwards"}


def solved(value: Poly, guards: tuple[Poly, ...] = ()) -> Case:
    return solve(Term(Fraction(1), BINDERS, guards), [value], lambda division: division)


def counted(value: Poly, guards: tuple[Poly, ...], known: dict[str, int]) -> int:
    """The number of times that a value is the coordinate."""
    points = (
        {**known, AT: at, LOW: low} for at, low in product(range(known["d"]), range(known["b"]))
    )
    return sum(
        value.evaluate(p) == known[U] and all(g.evaluate(p) >= 0 for g in guards) for p in points
    )


def said(case: Case, known: dict[str, int]) -> int:
    """The number of times, by a case."""
    names = [name for name, _ in case.free]
    spans = [range(size.evaluate(known)) for _, size in case.free]
    points = ({**known, **dict(zip(names, at, strict=True))} for at in product(*spans))
    return sum(
        all(z.evaluate(p) == 0 for z in case.zero)
        and all(c.evaluate(p) >= 0 for c in case.positive)
        for p in points
    )


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40)
@given(d=st.integers(0, 4), b=st.integers(0, 4), u=st.integers(-5, 20))
def test_a_case_says_how_often_a_value_is_taken(name: str, d: int, b: int, u: int):
    known = {"d": d, "b": b, U: u}
    assert said(solved(VALUES[name]), known) == counted(VALUES[name], (), known)


@pytest.mark.parametrize("name", VALUES)
def test_only_digits_of_one_number_are_joined(name: str):
    case = solved(VALUES[name])
    assert (not case.free) == (name in JOINED)
    if name not in JOINED:
        with pytest.raises(Unproved, match="not determined"):
            case.weight(1, SIZES)


@settings(max_examples=40)
@given(
    d=st.integers(0, 4),
    b=st.integers(0, 4),
    u=st.integers(0, 15),
    bound=st.sampled_from([Poly.of(AT) - Poly.of(1), Poly.of(LOW) - Poly.of(AT)]),
)
def test_condition_on_one_digit_prevents_joining_the_digits(d: int, b: int, u: int, bound: Poly):
    known = {"d": d, "b": b, U: u}
    case = solved(DIGITS, (bound,))
    assert case.free
    assert said(case, known) == counted(DIGITS, (bound,), known)
