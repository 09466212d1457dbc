"""Sums cancel against their reciprocals, and conditions become equal ranges. Every rewritten value
equals the old one, by adding it up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import exp, isclose, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.language.normal import Element, Factor, Function, NormalForm, Number, Term
from pcg.language.poly import Poly
from verifier.trusted.values.cancel import cancelled
from verifier.trusted.values.simplify import Simplifier
from verifier.trusted.values.spans import tightened, unrolled

N, M, AT, V, W = (Poly.of(s) for s in ("|n|", "|m|", "i", "v", "w"))
SIZES = [{"|n|": n, "|m|": m, "i": i} for n, m, i in product((1, 2, 3), (1, 2), (0, 1))]


def is_size(value: Poly) -> bool:
    return bool(value.terms) and all(
        c > 0 and all(s.startswith("|") for s in m) for m, c in value.terms
    )


SIMPLIFIER = Simplifier(is_size, lambda value, size: False)


def number(form: NormalForm, known: dict[str, int]) -> float:
    """A value whose elements depend on their place."""
    return sum(_term(term, known) for term in form)


def _term(term: Term, known: dict[str, int]) -> float:
    if term.binders:
        (var, size), *others = term.binders
        inner = Term(term.coefficient, tuple(others), term.guards, term.factors)
        return sum(_term(inner, {**known, var: i}) for i in range(size.evaluate(known)))
    if any(guard.evaluate(known) < 0 for guard in term.guards):
        return 0.0
    return float(term.coefficient) * prod(_factor(factor, known) for factor in term.factors)


def _factor(factor: Factor, known: dict[str, int]) -> float:
    match factor:
        case Element(tensor, index):
            places = [i.evaluate(known) for i in index]
            return (sum(7**k * p for k, p in enumerate(places)) + len(tensor)) % 11 / 5 - 1
        case Number(index):
            return index.evaluate(known)
        case Function("exp", (argument,)):
            return exp(number(argument.form, known))
        case Function("recip", (argument,)):
            return 1 / number(argument.form, known)
        case _:
            raise AssertionError(factor)


def term(*factors: Factor, over: str = "", where: tuple[Poly, ...] = (), times: int = 1) -> Term:
    sizes = {"v": N, "w": M, "a": N + M, "b": Poly.of(2)}
    binders = tuple((name, sizes[name]) for name in over)
    return Term(Fraction(times), binders, where, factors)


def e(*index: Poly) -> Function:
    return Function.of("exp", (Term(Fraction(1), factors=(Element("x", index),)),))


def same(left: NormalForm, right: NormalForm) -> bool:
    return all(isclose(number(left, k), number(right, k), abs_tol=1e-9) for k in SIZES)


ROW = (term(e(AT, W), over="w"),)
X = Element("y", (V,))
CANCELLED = [
    ((term(e(AT, V), Function.of("recip", ROW), over="v"),), 1),  # another range: no sum of it
    ((term(e(AT, W), Function.of("recip", ROW), over="w"),), 0),
    ((term(X, e(AT, W), Function.of("recip", ROW), over="vw"),), 0),
    ((term(e(AT, W), Function.of("recip", ROW), over="w", where=(W - 1,)),), 1),
    ((term(e(W, AT), Function.of("recip", ROW), over="w"),), 1),
    ((term(e(AT, W), Element("z", (W,)), Function.of("recip", ROW), over="w"),), 1),
    ((term(e(W, W), Function.of("recip", (term(e(W, W), over="w"),)), over="w", times=3),), 0),
    (
        (term(e(AT, W), Function.of("recip", (term(Element("x", (AT, W)), over="w"),)), over="w"),),
        1,
    ),
]
"""Values, and the number of reciprocals that are left of each."""


@pytest.mark.parametrize(("form", "left"), CANCELLED)
def test_a_sum_cancels_only_against_its_own_reciprocal(form, left):
    rest = cancelled(form, SIMPLIFIER.is_positive)
    factors = [factor for t in rest for factor in t.factors]
    assert sum(isinstance(f, Function) and f.name == "recip" for f in factors) == left
    assert rest == form if left else same(form, rest)


def test_every_summand_has_to_be_there():
    parts = (term(e(AT, W), over="w"), term(e(AT, V), over="v", times=2))
    inverse = Function.of("recip", parts)
    whole = tuple(Term(t.coefficient, t.binders, (), (*t.factors, inverse)) for t in parts)
    rest = cancelled(whole, SIMPLIFIER.is_positive)
    assert rest == (Term(Fraction(1)),)
    assert same(whole, rest)
    other = replace(whole[1], coefficient=Fraction(1))
    for missing in (whole[:1], whole[1:], (whole[0], other)):
        assert cancelled(missing, SIMPLIFIER.is_positive) == missing


polys = st.builds(
    lambda a, b, c, d, k: Poly.of("a") * a + N * b + M * c + AT * d + k,
    st.sampled_from((-1, 0, 1, 2)),
    *(st.integers(-1, 1),) * 3,
    st.integers(-2, 1),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(polys, min_size=1, max_size=3))
def test_conditions_become_ranges(guards):
    value = term(Element("x", (Poly.of("a"), AT)), over="a", where=tuple(dict.fromkeys(guards)))
    ranges = tightened(value, is_size)
    assert same((value,), (ranges,))
    for left in ranges.binders:
        assert all(left[1].evaluate(known) >= 1 for known in SIZES)


@settings(max_examples=33, deadline=None)
@given(st.integers(-2, 2), st.integers(-2, 2), st.integers(-1, 1))
def test_few_summands_are_written_one_by_one(a, b, c):
    guard = Poly.of("b") * N * a + M * b + Poly.of("b") * c
    value = term(Element("x", (Poly.of("b") * M + AT,)), over="b", where=(guard,))
    summands = unrolled(value)
    assert not any(t.binders for t in summands)
    assert same((value,), summands)


def test_the_halves_of_a_concat_are_two_ranges():
    lower, upper = (
        term(Element("x", (Poly.of("a"),)), over="a", where=(g,))
        for g in (N - 1 - Poly.of("a"), Poly.of("a") - N)
    )
    assert tightened(lower, is_size).binders == (("a", N),)
    assert tightened(upper, is_size).binders == (("a", M),)
    assert not tightened(lower, is_size).guards
    assert not tightened(upper, is_size).guards
