"""Symbolic sizes: equations solved by substitution, and merged dimensions as digits."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph.graph import Graph, Value
from pcg.language.poly import Poly
from pcg.plan.text import parse_values
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.sizes import Sizes
from verifier.trusted.values.meaning import divide, free_indices

A, B, C = (Poly.of(f"|{name}.0|") for name in "abc")
SMALL = range(1, 5)


def sizes_of(text: str, **inputs: int) -> tuple[Sizes, Value]:
    (value,) = parse_values(text, inputs)
    sizes = Sizes()
    for node in Graph((value,)).nodes:
        sizes.visit(node)
    return sizes, value


def shape(text: str, **inputs: int) -> str:
    sizes, value = sizes_of(text, **inputs)
    return ", ".join(str(sizes.resolve(size)) for size in sizes.shape(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matmul(x, y)", "|x.0|, |y.1|"),
        ("concat(x, x, axis=1)", "|x.0|, 2*|x.1|"),
        ("split(x, axis=0, at=s).1", "-s + |x.0|, |x.1|"),
        ("flatten(x, axis=0)", "|x.0|*|x.1|"),
        ("unflatten(x, axis=1, outer=h, inner=d)", "|x.0|, h, d"),
        ("flatten(unflatten(x, axis=1, outer=h, inner=d), axis=1)", "|x.0|, d*h"),
        ("sum_loss(x)", ""),
        ("combine(x, dim=0, degree=k)", "|x.0|, |x.1|"),
    ],
)
def test_shape_of_a_value(text, expected):
    assert shape(text, x=2, y=2) == expected


def test_shared_indices_are_equated():
    sizes, _ = sizes_of("matmul(x, y)", x=2, y=2)
    assert sizes.resolve(Poly.of("|x.1|")) == sizes.resolve(Poly.of("|y.0|"))


@pytest.mark.parametrize("text", ["add(x, concat(x, x, axis=0))", "concat(x, y, axis=2)"])
def test_sizes_that_do_not_fit(text):
    with pytest.raises((Unsolvable, Exception), match=r"no solution|dimension|rank|axis"):
        sizes_of(text, x=2, y=2)


def test_equations_of_sizes_are_solved_or_refused():
    sizes = Sizes()
    sizes.equal(A * 2, B * 2)
    assert sizes.resolve(A - B) == Poly()
    sizes.equal(A * C, B * C)
    with pytest.raises(Unsolvable):
        sizes.equal(A, A + C)
    with pytest.raises(Undecided):
        Sizes().equal(A * B, C * C)
    with pytest.raises(Unsolvable):
        sizes.equal(Poly.of(2), Poly.of(3))


sums = st.lists(st.sampled_from((A, B, C, A * B, Poly.of(1), Poly.of(2))), min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(sums, sums), min_size=1, max_size=3))
def test_solving_neither_loses_nor_invents_solutions(equations):
    pairs = [(sum(left, Poly()), sum(right, Poly())) for left, right in equations]
    names = [f"|{name}.0|" for name in "abc"]
    every = [dict(zip(names, v, strict=True)) for v in product(SMALL, repeat=3)]
    true = [v for v in every if all(a.evaluate(v) == b.evaluate(v) for a, b in pairs)]
    sizes = Sizes()
    try:
        for left, right in pairs:
            sizes.equal(left, right)
    except Undecided:
        return
    except Unsolvable:
        assert not true
        return
    solved = {symbol: sizes.resolve(size) for symbol, size in sizes.solved.items()}
    assert all(size.symbols.isdisjoint(solved) for size in solved.values())
    held = [v for v in every if all(size.evaluate(v) == v[s] for s, size in solved.items())]
    assert held == true


def test_a_merged_size_is_digits():
    sizes, value = sizes_of("flatten(flatten(x, axis=0), axis=0)", x=3)
    (size,) = sizes.shape(value)
    assert [str(digit) for digit in sizes.digits(size)] == ["|x.0|", "|x.1|", "|x.2|"]
    (index,) = free_indices(sizes, value)
    assert [str(name) for name, _ in index.digits] == ["%o0_0", "%o0_1", "%o0_2"]
    assert str(index.value) == "%o0_0*|x.1|*|x.2| + %o0_1*|x.2| + %o0_2"


def test_a_plain_size_is_one_digit():
    sizes, value = sizes_of("relu(x)", x=1)
    assert sizes.digits(sizes.shape(value)[0]) == (Poly.of("|x.0|"),)


@settings(max_examples=33, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.data())
def test_digits_are_exact(outer, inner, more, data):
    """Division of an index in digit form gives the quotient and rest, of a sum of sizes too."""
    o, i = Poly.of("o"), Poly.of("i")
    for size in (A, A * B, A + B):
        values = {"|a.0|": inner, "|b.0|": more}
        whole = size.evaluate(values)
        values |= {"o": data.draw(st.integers(0, outer)), "i": data.draw(st.integers(0, whole - 1))}
        quotient, rest = divide(o * size + i, size)
        number = (o * size + i).evaluate(values)
        assert divmod(number, whole) == (quotient.evaluate(values), rest.evaluate(values))
