"""Parts of the proof method, each on the smallest pair of graphs that needs it."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest

from pcg.language.normal import Element, Function, NormalForm, Number, Term
from pcg.language.poly import Poly, Variable
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.plan.text import parse_values
from pcg.types.operator import Operator
from verifier.decide import Decision, Verdict, decide
from verifier.trusted import smt
from verifier.trusted.errors import Unproved
from verifier.trusted.proof.prove import Prover
from verifier.trusted.values import meaning
from verifier.trusted.values.templates import case_split

N, M = Poly.of("|n|"), Poly.of("|m|")
R, K = Poly.of("i"), Poly.of("k")


def check(left: str, right: str, *own: Operator, brief: bool = False, **inputs: int) -> Decision:
    operators = {**OPERATORS} | {operator.name: operator for operator in own}
    sides = [parse_values(side, inputs, side, operators) for side in (left, right)]
    return decide(sides[0], sides[1], brief=brief)


def is_proved(left: str, right: str, *own: Operator, **inputs: int) -> bool:
    """Whether a pair is proved. If not, no further counterexamples are searched or shrunk."""
    return check(left, right, *own, brief=True, **inputs).verdict is Verdict.PROVED


def prover() -> Prover:
    return Prover((N, M), {"i": N, "j": M})


def x(*index: Poly) -> Element:
    return Element("x", index)


def term(*factors: Element | Function | Number, over: dict[str, Poly] | None = None) -> Term:
    return Term(Fraction(1), tuple((over or {}).items()), (), factors)


def equal(left: NormalForm, right: NormalForm) -> bool:
    try:
        prover().equal(left, right, frozenset({"i", "j"}))
    except Unproved:
        return False
    return True


# Coordinates and multiplicities


def test_the_order_of_a_sum_does_not_matter():
    forward = (term(x(K), over={"k": N}),)
    backward = (term(x(N - 1 - K), over={"k": N}),)
    assert equal(forward, backward)
    assert not equal(forward, (term(x(N - K), over={"k": N}),))
    assert not equal(forward, (term(x(K), over={"k": M}),))


def test_sums_that_nothing_reads_count():
    twice = (term(x(R), over={"k": N}),)
    assert equal(twice, (term(x(R), over={"l": N}),))
    assert not equal(twice, (term(x(R)),))
    assert not equal(twice, (term(x(R), over={"l": M}),))
    squared = (term(x(R), over={"k": N, "l": N}),)
    assert not equal(twice, squared)
    assert equal(squared, (term(x(R), over={"a": N, "b": N}),))


def test_a_sum_over_a_negative_size_is_empty():
    over = (term(x(R), over={"k": N - M}),)
    assert not equal((*over, term(x(R), over={"k": M})), (term(x(R), over={"k": N}),))


def test_a_sum_may_be_split():
    whole = (term(x(K), over={"k": N + M}),)
    parts = (term(x(K), over={"k": N}), term(x(K + N), over={"k": M}))
    assert equal(whole, parts)
    assert not equal(whole, (parts[0], term(x(K), over={"k": M})))


def test_repeated_factors_may_have_to_be_permuted():
    left = (term(x(R, K), x(K, R), over={"k": N}),)
    right = (term(x(K, R), x(R, K), over={"k": N}),)
    assert equal(left, right)
    crossed = (term(x(R, K), x(R, K), over={"k": N}),)
    assert not equal(left, crossed)
    a, b = Poly.of("a"), Poly.of("b")
    pairs = {"a": N, "b": N}
    assert equal((term(x(a), x(b), x(b), over=pairs),), (term(x(b), x(a), x(a), over=pairs),))


def test_coefficients_add_up():
    third = Term(Fraction(1, 3), (), (), (x(R),))
    assert equal((third, third, third), (term(x(R)),))
    assert not equal((third, third), (term(x(R)),))
    assert equal((third, Term(Fraction(-1, 3), (), (), (x(R),))), ())


def test_an_index_that_is_not_determined_is_not_proved():
    nonlinear = (term(x(K * K), over={"k": N}),)
    assert equal(nonlinear, nonlinear)
    with pytest.raises(Unproved, match="not determined"):
        prover().equal(nonlinear, (term(x(K * K), over={"k": N + 1}),), frozenset({"i"}))


# Functions


def relu(*arg: Term) -> Function:
    return Function.of("relu", arg)


def test_templates_are_equal_up_to_the_order_of_their_holes():
    left = (term(relu(term(x(R)), term(Element("y", (K,)))), over={"k": N}),)
    right = (term(relu(term(Element("y", (K,))), term(x(R))), over={"k": N}),)
    assert equal(left, right)
    other = (term(relu(term(x(K)), term(Element("y", (R,)))), over={"k": N}),)
    assert not equal(left, other)


def test_functions_of_sums_are_compared_inside():
    forward = relu(term(x(R, K), over={"k": N}))
    backward = relu(term(x(R, N - 1 - K), over={"k": N}))
    assert equal((term(forward),), (term(backward),))
    assert not equal((term(forward),), (term(relu(term(x(K, R), over={"k": N}))),))


def test_cases_inside_a_function_are_split():
    guard = N - 1 - R
    inside = relu(
        Term(Fraction(1), (), (guard,), (x(R),)), Term(Fraction(1), (), (-guard - 1,), (x(-R),))
    )
    split = list(case_split((term(inside),), frozenset({"i"})))
    assert [t.guards for t in split] == [(guard,), (-guard - 1,)]
    assert [t.factors for t in split] == [(relu(term(x(R))),), (relu(term(x(-R))),)]


def test_cases_on_a_summed_index_stay_inside():
    """A guard on an index that a function sums over says nothing outside of the sum."""
    guard = R - K
    inner = Function.of("exp", (Term(Fraction(1), (), (guard,), (x(R, K),)),))
    outer = relu(Term(Fraction(1), (("k", N),), (), (inner,)))
    assert list(case_split((term(outer),), frozenset({"i"}))) == [term(outer)]


def test_sum_under_a_mixed_mask_is_refuted():
    """Summed over all of k, rows and reversed rows agree; a mixture of them does not."""
    mask = Operator("mask", "out[i, j] = exp(x[i, j]) if j <= i else exp(x[i, |j| - 1 - j])")
    plain = Operator("plain", "out[i, j] = exp(x[i, j])")
    total = Operator("total", "out[i] = relu(sum k: x[i, k])")
    verdict = check("total(mask(x))", "total(plain(x))", mask, plain, total, x=2)
    assert verdict.verdict is Verdict.REFUTED


def test_reading_outside_of_a_tensor_is_zero():
    """exp of an element outside is 0 if the tensor is exp(x), and exp(0) if it is x."""
    shift = Operator("shift", "x[i] -> out[i] = x[i + 1]")
    back = Operator("back", "x[i] -> out[i] = x[i - 1]")
    exp = Operator("exponential", "out[i] = exp(x[i])")
    assert check("shift(exponential(x))", "exponential(shift(x))", shift, exp, x=1).verdict is (
        Verdict.REFUTED
    )
    assert check("shift(add(x, y))", "add(shift(x), shift(y))", shift, x=1, y=1).verdict is (
        Verdict.PROVED
    )
    assert check("back(shift(x))", "x", shift, back, x=1).verdict is Verdict.REFUTED
    assert check("back(shift(x))", "shift(back(x))", shift, back, x=1).verdict is Verdict.REFUTED


def test_reciprocals_of_a_product_with_a_number():
    """1 / (m n / 2) is not 1 / (m / 2) * 1 / (n / 2)."""
    half = Operator("half", "out[] = (sum i, j: x[i, j]) / (|i| * |j| * (1 / 2))")
    one = Operator("one", "out[] = (sum i: x[i]) / (|i| * (1 / 2))")
    each = Operator("each", "out[i] = (sum j: x[i, j]) / (|j| * (1 / 2))")
    assert check("half(x)", "one(each(x))", half, one, each, x=2).verdict is Verdict.REFUTED
    assert check("mean_loss(x)", "scale(half(x), factor=0.5)", half, x=2).verdict is not (
        Verdict.REFUTED
    )


# Digits


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("flatten(flatten(x, axis=0), axis=0)", "flatten(flatten(x, axis=1), axis=0)"),
        ("unflatten(flatten(x, axis=1), axis=1, outer=|x.1|, inner=|x.2|)", "x"),
        (
            "flatten(transpose(x, dim0=1, dim1=2), axis=0)",
            "flatten(transpose(x, dim0=1, dim1=2), axis=0)",
        ),
        ("sum_loss(flatten(x, axis=0))", "sum_loss(x)"),
        ("mean_loss(flatten(x, axis=0))", "mean_loss(x)"),
    ],
)
def test_merged_dimensions(left, right):
    assert check(left, right, x=3).verdict is Verdict.PROVED


def test_two_orders_of_digits_are_never_confused():
    left = "flatten(x, axis=0)"
    right = "flatten(transpose(x, dim0=0, dim1=1), axis=0)"
    assert check(left, right, x=2).verdict is Verdict.REFUTED
    assert check(f"sum_loss({left})", f"sum_loss({right})", x=2).verdict in (
        Verdict.PROVED,
        Verdict.UNKNOWN,
    )


# Verdicts


def test_unproved_pair_is_unknown(monkeypatch):
    sides = "slice(concat(x, y, axis=0), axis=0, start=0, size=|x.0|)", "x"
    assert check(*sides, x=1, y=1).verdict is Verdict.PROVED
    monkeypatch.setattr(smt, "check", lambda text: "unknown")
    assert check(*sides, x=1, y=1).verdict is Verdict.UNKNOWN


def test_pair_with_too_many_terms_is_unknown(monkeypatch):
    monkeypatch.setattr(meaning, "MAX_TERMS", 3)
    left = "multiply(add(x, y), add(x, z))"
    right = "add(multiply(x, add(x, z)), multiply(y, add(x, z)))"
    verdict = check(left, right, x=1, y=1, z=1, brief=True)
    assert verdict.verdict is Verdict.UNKNOWN
    assert "more than 3 terms" in verdict.reason


def test_an_operator_whose_type_is_not_proved_is_in_no_proof(monkeypatch):
    monkeypatch.setattr("verifier.decide.problem_of", lambda node: "told so")
    assert check("relu(x)", "relu(scale(x, factor=1.0))", x=1).verdict is Verdict.UNKNOWN


def test_conditions_are_those_of_the_right_side_beyond_the_left():
    verdict = check("relu(x)", "combine(relu(partition(x, dim=0, degree=k)), dim=0, degree=k)", x=1)
    assert verdict.conditions == ()
    left = "matmul(x, w)"
    right = "reduce(matmul(partition(x, dim=1, degree=k), partition(w, dim=0, degree=k)), degree=k)"
    assert check(left, right, x=2, w=2).conditions == ()
    verdict = check(right, left, x=2, w=2)
    assert verdict.verdict is Verdict.PROVED
    verdict = check("x", "partition(combine(x, dim=0, degree=k), dim=0, degree=k)", x=1)
    assert verdict.conditions == ("x.d0 / k is whole",)


def test_a_proof_is_the_same_every_time():
    sides = "relu(concat(x, y, axis=0))", "concat(relu(x), relu(y), axis=0)"
    first, second = (check(*sides, x=2, y=2).proof for _ in range(2))
    assert first == second
    assert first is not None
    assert first.side_conditions >= 2


def test_script_declares_and_quotes_its_symbols():
    text = smt.script([smt.at_least(N - R, 1), smt.at_least(N - R, 1), smt.is_zero(Poly())])
    assert text.splitlines() == [
        "(declare-const |i| Int)",
        "(declare-const |size n| Int)",
        "(assert (>= (+ (* (- 1) |i|) |size n|) 1))",
        "(assert (= 0 0))",
    ]
    assert smt.check(text) == "sat"
    assert smt.check(smt.script([smt.negation(smt.Formula("true"))])) == "unsat"
    model = smt.model(smt.script([smt.is_zero(R * 2 - 6)]))
    assert model == {"i": 3}
    assert smt.model(smt.script([smt.is_zero(R * 2 - 5)])) is None


# Names of a rule's own, and undefined values


OWN_NAMES = ("o0", "u0", "u1", "h0", "sigma", "partials", "quotient", "rest", "k", "i", "x", "a0")


@pytest.mark.parametrize("name", OWN_NAMES)
def test_no_symbol_is_taken_for_one_that_a_proof_makes_up(name: str):
    """Different positions stay different, whatever the symbols are called."""

    def side(start: int) -> str:
        return f"relu(slice(x, axis=0, start={name} + {start}, size=h))"

    assert check(side(1000), side(1000), x=1).verdict is Verdict.PROVED
    assert not is_proved(side(1000), side(1001), x=1)
    scaled = f"scale({side(1)}, factor=7.0)"
    assert not is_proved(side(1), scaled, x=1)


def test_variables_are_no_strings():
    made = Variable("%o0")
    assert made != "%o0"
    assert "%o0" != made  # noqa: SIM300 - both orders of comparison are meant
    known: dict[str, int] = {made: 1}
    assert known.get("%o0") is None
    assert Poly.of(made) != Poly.of("%o0")
    assert pickle.loads(pickle.dumps(made)) is made
    assert made is Variable("%o0")


def test_names_of_indices_in_a_run_are_taken():
    with pytest.raises(EquationError, match="'a0' is bound twice"):
        Operator("captured", "x[a..., n] -> out[a..., n] = sum a0 < |n|: x[a..., a0]")


EMPTY = Operator("empty", "x[i, j] -> out[i] = max k < n: x[i, k]", ("n",))
RATIO = Operator(
    "ratio", "x[i, j] -> out[i] = exp(max k < n: x[i, k]) / exp(max k < n: x[i, k])", ("n",)
)
ROW = Operator("row", "x[i, j] -> out[i] = exp(max k < |j|: x[i, k]) / exp(max k < |j|: x[i, k])")
ONES = Operator("ones", "x[i, j] -> out[i] = 1")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("subtract(log(x), log(x))", "scale(x, factor=0.0)"),
        ("scale(log(x), factor=0.0)", "scale(x, factor=0.0)"),
        ("multiply(x, reciprocal(x))", "add(ones(y), scale(x, factor=0.0))"),
        ("exp(log(x))", "x"),
        ("subtract(sqrt(x), sqrt(x))", "scale(x, factor=0.0)"),
        ("subtract(pointwise(x), pointwise(x))", "scale(x, factor=0.0)"),
        ("subtract(to_float16(x), to_float16(x))", "scale(x, factor=0.0)"),
        ("ratio(y, n=n)", "ones(y)"),
        (  # 1/0 and log(0) are infinite to a machine, and an operator may only drop them here
            "maximum(x, log(z))",
            "multiply(maximum(x, log(z)), exp(subtract(log(z), log(z))))",
        ),
        ("scale(empty(y, n=n), factor=0.0)", "scale(ones(y), factor=0.0)"),
    ],
)
def test_pair_defined_on_one_side_only_is_not_proved(left: str, right: str):
    operators = (EMPTY, RATIO, ONES, *STAND_INS.values())
    inputs = {"x": 1, "y": 2, "z": 1}
    assert is_proved(left, left, *operators, **inputs)
    assert not is_proved(left, right, *operators, **inputs)
    assert not is_proved(right, left, *operators, **inputs)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("log(exp(x))", "x"),
        ("log(log(exp(exp(x))))", "x"),
        ("reciprocal(scale(x, factor=2.0))", "scale(reciprocal(x), factor=0.5)"),
        ("multiply(exp(x), reciprocal(exp(x)))", "exp(scale(x, factor=0.0))"),
        ("row(y)", "ones(y)"),
        ("slice(log(x), axis=0, start=s, size=h)", "slice(log(x), axis=0, start=s, size=h)"),
        ("log(concat(x, z, axis=0))", "concat(log(x), log(z), axis=0)"),
    ],
)
def test_pair_defined_on_both_sides_is_proved(left: str, right: str):
    assert check(left, right, ROW, ONES, x=1, y=2, z=1).verdict is Verdict.PROVED
