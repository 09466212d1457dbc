"""Each law is proved or cited, each is used, and nothing else is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import z3
from support.cases import each

from pcg.language.normal import Argument, Element, Factor, Function, NormalForm, Number, Term
from pcg.language.poly import Poly
from pcg.types.operator import Operator
from verifier.trusted.values import laws, simplify
from verifier.trusted.values.equations import local_form
from verifier.trusted.values.keys import key_of_term
from verifier.trusted.values.laws import LAWS, Law
from verifier.trusted.values.simplify import Simplifier

SIZE = Poly.of("|n|")
M = Poly.of("|m|")
"""Less than ``SIZE``."""
AT, K = Poly.of("i"), Poly.of("k")


def value(*factors: Factor, times: Fraction | int = 1) -> NormalForm:
    return (Term(Fraction(times), factors=factors),)


def exp(form: NormalForm) -> Function:
    return Function.of("exp", form)


def log(form: NormalForm) -> Function:
    return Function.of("log", form)


def recip(form: NormalForm) -> Function:
    return Function.of("recip", form)


X, Y, Z = (Element(name, (AT,)) for name in "xyz")
X_ALONE, Y_ALONE = value(X), value(Y)
SUM = (*value(exp(X_ALONE)), *value(exp(Y_ALONE)))
"""Positive, and no product."""
RSQRT = Function.of("rsqrt", SUM)
RELU = Function.of("max", X_ALONE, ())
ZERO = Argument(())


def summed(form: NormalForm, *guards: Poly) -> NormalForm:
    return tuple(replace(t, binders=(("k", SIZE), *t.binders), guards=guards) for t in form)


EXAMPLES: dict[Law, tuple[NormalForm, NormalForm]] = {
    laws.MAX_ASSOCIATIVE: (
        value(Function.of("max", value(Function.of("max", X_ALONE, Y_ALONE)), ())),
        value(Function.of("max", X_ALONE, Y_ALONE, ())),
    ),
    laws.MAX_NONNEGATIVE: (value(Function.of("max", value(exp(X_ALONE)), ())), value(exp(X_ALONE))),
    laws.MAX_HOMOGENEOUS: (
        value(Function.of("max", value(X, times=2), ())),
        value(RELU, times=2),
    ),
    laws.MAX_IDEMPOTENT: (value(Function.of("max", X_ALONE, X_ALONE)), X_ALONE),
    laws.MAX_ONE: (
        value(Function("max", (Argument(value(Element("x", (K,))), (("k", Poly.of(1)),)), ZERO))),
        value(Function("max", (Argument(value(Element("x", (Poly(),)))), ZERO))),
    ),
    laws.EXP_SUM: (value(exp((*X_ALONE, *Y_ALONE))), value(exp(X_ALONE), exp(Y_ALONE))),
    laws.EXP_DIFFERENCE: (value(recip(value(exp(X_ALONE)))), value(exp(value(X, times=-1)))),
    laws.LOG_EXP: (value(log(value(exp(X_ALONE)))), X_ALONE),
    laws.LOG_PRODUCT: (
        value(log(tuple(replace(t, factors=(*t.factors, exp(value(Z)))) for t in SUM))),
        (*value(Z), *value(log(SUM))),
    ),
    laws.RECIP_PRODUCT: (
        value(recip(value(X, times=2))),
        value(recip(X_ALONE), times=Fraction(1, 2)),
    ),
    laws.RECIP_CANCELS: (value(recip(value(Number(SIZE))), Number(SIZE)), value()),
    laws.RECIP_RECIP: (value(recip(value(recip(SUM)))), SUM),
    laws.RSQRT_SQUARE: (value(RSQRT, RSQRT), value(recip(SUM))),
    laws.SUM_POINT: (summed(value(Element("x", (K,))), K - AT, AT - K), X_ALONE),
    laws.SUM_EQUAL: (summed(X_ALONE), value(X, Number(SIZE))),
    laws.SUM_RANGE: (
        summed(value(Element("x", (K,))), M - 1 - K),
        tuple(replace(t, binders=(("k", M),)) for t in value(Element("x", (K,)))),
    ),
    laws.SUM_FEW: (
        tuple(
            replace(t, binders=(("k", Poly.of(2)),)) for t in value(Element("x", (K * SIZE + AT,)))
        ),
        (*X_ALONE, *value(Element("x", (SIZE + AT,)))),
    ),
}
"""For each law, two values that it makes equal. The second is the simplified form."""


def simplified(form: NormalForm, using: frozenset[Law]) -> list[object]:
    sizes = (SIZE, M, SIZE - M)
    form_of = Simplifier(lambda size: size in sizes, lambda *_: True, using).simplify(form)
    return sorted((key_of_term(term) for term in form_of), key=str)


def test_each_law_is_proved_or_cited():
    for law in LAWS:
        assert bool(law.formula) != bool(law.source), law.name
        if not law.formula:
            continue
        solver = z3.Solver()
        solver.from_string(
            "(declare-const a Real)(declare-const b Real)(declare-const c Real)"
            f"(assert (not {law.formula}))"
        )
        assert solver.check() == z3.unsat, law.name


def test_a_wrong_law_is_not_proved():
    solver = z3.Solver()
    solver.from_string("(declare-const a Real)(assert (not (= (ite (>= a 0.0) a 0.0) a)))")
    assert solver.check() == z3.sat


def test_every_law_is_listed():
    stated = {law for law in vars(laws).values() if isinstance(law, Law)}
    assert stated == LAWS
    assert len({law.name for law in LAWS}) == len(LAWS)


def test_relu_is_a_maximum_from_the_start():
    (term,) = local_form(Operator("r", "out[i] = relu(x[i])"), (1,), (), 0)
    assert term.factors == (Function.of("max", value(Element("0", (AT,))), ()),)


def test_every_law_except_relu_has_an_example():
    assert EXAMPLES.keys() | {laws.RELU} == LAWS


@each("law", EXAMPLES, ids=lambda law: law.name)
def test_a_law_is_used_and_is_needed(law: Law):
    left, right = EXAMPLES[law]
    assert simplified(left, LAWS) == simplified(right, LAWS)
    assert simplified(left, LAWS - {law}) != simplified(right, LAWS - {law})


def parts(form: Sequence[Term]) -> list[NormalForm]:
    """A value, and the arguments of all functions in it."""
    functions = [f for term in form for f in term.factors if isinstance(f, Function)]
    return [tuple(form), *(p for f in functions for a in f.args for p in parts(a.form))]


def test_only_laws_change_a_value():
    """Without laws, values are unchanged: only the listed laws are applied."""
    for pair in EXAMPLES.values():
        for form in (part for side in pair for part in parts(side)):
            whole = value(Function("max", (Argument(form),)), exp(form), recip(form), log(form))
            for given in (form, whole):
                as_given = sorted((key_of_term(term) for term in given), key=str)
                assert simplified(given, frozenset()) == as_given


def test_laws_that_rewrites_ask_for_are_all_laws():
    """Each rewrite asks for its law, except relu, which is read as a maximum."""
    asked = set(re.findall(r"laws\.(\w+) (?:not )?in self\.laws", inspect.getsource(simplify)))
    assert {vars(laws)[name] for name in asked} | {laws.RELU} == LAWS
