"""Polynomials: the laws of a ring, checked by evaluation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.language.poly import ONE, ZERO, Poly, product

SYMBOLS = ("i", "j", "|k|")

monomials = st.lists(st.sampled_from(SYMBOLS), max_size=3).map(lambda m: tuple(sorted(m)))
polys = st.lists(st.tuples(monomials, st.integers(-5, 5)), max_size=5).map(Poly.collect)
points = st.fixed_dictionaries({symbol: st.integers(-20, 20) for symbol in SYMBOLS})


@given(polys, polys, points)
def test_operations_evaluate_as_such(a: Poly, b: Poly, at: dict[str, int]):
    x, y = a.evaluate(at), b.evaluate(at)
    assert (a + b).evaluate(at) == x + y
    assert (a - b).evaluate(at) == x - y
    assert (a * b).evaluate(at) == x * y
    assert (-a).evaluate(at) == -x
    assert (a + 3).evaluate(at) == (3 + a).evaluate(at) == x + 3
    assert (a * 3).evaluate(at) == (3 * a).evaluate(at) == 3 * x
    assert (3 - a).evaluate(at) == 3 - x
    assert product([a, b, a]).evaluate(at) == x * y * x


@given(polys, polys, polys)
def test_equal_polynomials_are_one_value(a: Poly, b: Poly, c: Poly):
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - a == ZERO
    assert a * ONE == a == a + ZERO
    assert hash(a * (b + c)) == hash(a * b + a * c)


@given(polys, polys, polys, points)
def test_substitution_is_simultaneous(a: Poly, b: Poly, c: Poly, at: dict[str, int]):
    values = {"i": b, "j": c}
    inner = {symbol: values.get(symbol, Poly.of(symbol)).evaluate(at) for symbol in SYMBOLS}
    assert a.substitute(values).evaluate(at) == a.evaluate(inner)


@given(polys)
def test_symbols_coefficients_and_constant_of_a_polynomial(a: Poly):
    assert a.symbols == {symbol for monomial, _ in a.terms for symbol in monomial}
    if a.degree_in("i") <= 1:
        rest = Poly.collect((m, n) for m, n in a.terms if "i" not in m)
        assert a.coefficient("i") * Poly.of("i") + rest == a
    assert (a.constant is None) == bool(a.symbols)


@pytest.mark.parametrize(
    ("poly", "constant", "symbol", "text"),
    [
        (ZERO, 0, None, "0"),
        (Poly.of(-7), -7, None, "-7"),
        (Poly.of("i"), None, "i", "i"),
        (-Poly.of("i"), None, None, "-i"),
        (2 * Poly.of("i"), None, None, "2*i"),
        (Poly.of("i") * Poly.of("i"), None, None, "i*i"),
        (Poly.of("j") * 2 - Poly.of("i") + 1, None, None, "-i + 2*j + 1"),
    ],
)
def test_constant_symbol_and_text_of_a_polynomial(
    poly: Poly, constant: int | None, symbol: str | None, text: str
):
    assert poly.constant == constant
    assert poly.symbol == symbol
    assert str(poly) == text


def test_evaluation_names_what_is_missing():
    with pytest.raises(KeyError, match="k"):
        Poly.of("k").evaluate({"i": 1})
