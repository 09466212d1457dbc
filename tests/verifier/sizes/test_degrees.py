"""Equations between products of degrees, against brute force over small numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph.graph import Graph
from pcg.language.poly import Poly
from pcg.plan.text import parse_values
from verifier.trusted.errors import Undecided
from verifier.trusted.sizes.degrees import (
    ONE,
    Basis,
    Powers,
    PowersArithmetic,
    entries,
    input_degrees,
    typings,
)
from verifier.witness import solve

SYMBOLS: tuple[str, ...] = ("x.d0", "x.c", "y.c", "k", "j")
SMALL: tuple[int, ...] = (1, 2, 3, 4, 6)

powers = st.integers(-2, 2).map(Fraction)
monomials = st.builds(
    lambda exponents, number: Powers(
        tuple(sorted((s, e) for s, e in exponents.items() if e))
    ).times(Powers.number(number)),
    st.dictionaries(st.sampled_from(SYMBOLS), powers, max_size=3),
    st.sampled_from((1, 1, 1, 2, 3, 4)),
)
systems = st.lists(monomials, max_size=3)


def value(monomial: Powers, values: Mapping[str, int]) -> Fraction:
    total = Fraction(1)
    for symbol, exponent in monomial.powers:
        assert exponent.denominator == 1
        base = int(symbol) if symbol.isdigit() else values[symbol]
        total *= Fraction(base) ** int(exponent)
    return total


def solutions(
    equations: Sequence[Powers], whole: Sequence[Powers] = ()
) -> Iterator[dict[str, int]]:
    """All small solutions in which the degrees of operators are at least 2."""
    for choice in product(SMALL, repeat=len(SYMBOLS)):
        values: dict[str, int] = dict(zip(SYMBOLS, choice, strict=True))
        if min(values["k"], values["j"]) < 2:
            continue
        divides = all(value(w, values).denominator == 1 for w in whole)
        if divides and all(value(e, values) == 1 for e in equations):
            yield values


@settings(max_examples=30, deadline=None)
@given(systems, monomials)
def test_implied_equation_holds_in_every_solution(equations, claim):
    basis = Basis.of(equations)
    if basis.contradicts:
        assert not any(True for _ in solutions(equations))
    elif basis.implies(claim):
        assert all(value(claim, values) == 1 for values in solutions(equations))


@settings(max_examples=30, deadline=None)
@given(systems, monomials)
def test_reducing_keeps_the_number(equations, monomial):
    basis = Basis.of(equations)
    if basis.contradicts:
        return
    reduced = basis.reduce(monomial)
    assert not {s for s, _ in reduced.powers} & {s for s, _ in basis.rows}
    if all(e.denominator == 1 for _, e in reduced.powers):
        assert all(value(monomial, v) == value(reduced, v) for v in solutions(equations))


@settings(max_examples=30, deadline=None)
@given(systems)
def test_rows_follow_from_the_equations(equations):
    basis = Basis.of(equations)
    assert all(basis.implies(equation) for equation in equations) or basis.contradicts
    assert Basis.of(reversed(equations)).contradicts == basis.contradicts


@settings(max_examples=40, deadline=None)
@given(systems, st.lists(monomials, max_size=2))
def test_witness_is_found_exactly_if_a_solution_exists(equations, whole):
    solution = solve(equations, whole, SYMBOLS)
    if solution is None:
        assert not any(True for _ in solutions(equations, whole))
        return
    assert set(solution) >= set(SYMBOLS)
    assert min(solution.values()) >= 1
    assert min(solution["k"], solution["j"]) >= 2
    assert all(value(equation, solution) == 1 for equation in equations)
    assert all(value(quotient, solution).denominator == 1 for quotient in whole)


def test_a_witness_may_be_large():
    large = Powers.of("x.d0").over(Powers.number(2**9 * 5**3))
    assert solve([], [large], ["x.d0"]) is not None
    solution = solve([large], [], ["x.d0"])
    assert solution == {"x.d0": 2**9 * 5**3}


def test_fraction_or_root_has_no_witness():
    k, x = Powers.of("k"), Powers.of("x.c")
    assert solve([k.over(Powers.number(1))], [], ["k"]) is None
    assert solve([x.times(x).over(Powers.number(2))], [], ["x.c"]) is None
    assert solve([], [ONE.over(k)], ["k"]) is None
    assert solve([Powers.number(6)], [], []) is None


def test_monomials_multiply_divide_and_print():
    k, j = Powers.of("k"), Powers.of("j")
    assert k.times(j) == j.times(k)
    assert k.over(k) == ONE
    assert Powers.number(12) == Powers((("2", Fraction(2)), ("3", Fraction(1))))
    assert str(ONE) == "1"
    assert str(k.times(j, 2)) == "j^2 * k"
    assert str(k.over(j)) == "k / j"


def test_degrees_of_operators():
    collecting = PowersArithmetic()
    assert collecting.of(Poly.of("j") * Poly.of("k") * 2) == collecting.of(2).times(
        Powers.of("j").times(Powers.of("k"))
    )
    assert collecting.symbols == {"j", "k"}
    with pytest.raises(Undecided):
        collecting.of(Poly.of("j") + 1)
    for wrong in (0, -2, 1.5, Poly()):
        with pytest.raises(ValueError, match="degree"):
            collecting.of(wrong)


def typing_of(text: str, **inputs: int):
    outputs = parse_values(text, inputs)
    return list(typings(Graph(outputs).nodes, outputs))


def test_typing_of_parallel_operators():
    (typing,) = typing_of(
        "reduce(replicate(partition(x, dim=1, degree=k), degree=j), degree=k)", x=2
    )
    x = input_degrees("x", 2)
    k, j = Powers.of("k"), Powers.of("j")
    expected = (*x.dims[:1], x.dims[1].times(k), *x.slices, x.copies.times(j), x.partials.over(k))
    assert entries(typing.types[0]) == expected
    assert typing.whole == (x.partials.over(k),)
    assert not typing.equations


def test_a_symbol_that_cancels_is_remembered():
    (typing,) = typing_of("combine(partition(x, dim=0, degree=k), dim=0, degree=k)", x=1)
    assert typing.types == (input_degrees("x", 1),)
    assert "k" in typing.symbols


def test_one_typing_for_each_choice_of_carriers():
    carried = typing_of("matmul(x, y)", x=2, y=2)
    assert len(carried) == 2
    assert len(typing_of("relu(x)", x=2)) == 1
    assert len(typing_of("matmul(matmul(x, y), y)", x=2, y=2)) == 4


def test_a_matmul_has_partials_of_its_reduction():
    for typing in typing_of("matmul(x, w)", x=2, w=2):
        basis = Basis.of(typing.equations)
        (out,) = typing.types
        cut = Powers.of("x.d1")
        assert basis.reduce(out.partials) in (
            basis.reduce(cut.times(Powers.of("x.p"))),
            basis.reduce(cut.times(Powers.of("w.p"))),
        )
        assert basis.implies(Powers.of("w.d0").over(cut))
