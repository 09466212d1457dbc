"""Normal forms: guarded sums of products that evaluate to the equation that they come from."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each, examples
from support.graphs.strategies import COMPUTE, applied, parts_of_leaves, seeds

from pcg.language.equation import Output
from pcg.language.expr import (
    Access,
    Add,
    Apply,
    Const,
    Expr,
    Guard,
    IndexValue,
    Max,
    Mul,
    Real,
    Sum,
)
from pcg.language.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Normalizer,
    Number,
    Symbol,
    Term,
    elements,
    free_symbols,
    substitute_form,
)
from pcg.language.poly import Poly
from pcg.readings.evaluate import Block, evaluate_output
from pcg.readings.ring import PrimeField
from pcg.types.infer import bind_sizes
from pcg.types.operator import Operator


def normal(body: Expr) -> NormalForm:
    def element(operand: int, index: tuple[Poly, ...]) -> NormalForm:
        return (Term(Fraction(1), factors=(Element(str(operand), index),)),)

    return Normalizer().normalize(body, element)


def expression(form: NormalForm) -> Expr:
    """The normal form as an expression."""
    return Add((Const(Fraction(0)), *(_term(term) for term in form)))


def _term(term: Term) -> Expr:
    guards = tuple(Guard(guard) for guard in term.guards)
    value: Expr = Mul((Const(term.coefficient), *guards, *(_factor(f) for f in term.factors)))
    for var, size in reversed(term.binders):
        value = Sum(var, size, value)
    return value


def _factor(factor: Factor) -> Expr:
    match factor:
        case Element(tensor, index):
            return Access(int(tensor), index)
        case Function(name, args):
            parts = [_argument(arg) for arg in args]
            if name != "max":
                return Apply(name, tuple(parts))
            greatest, *others = parts
            for other in others:
                greatest = Apply("max", (greatest, other))
            return greatest
        case Number(index):
            return IndexValue(index)
        case Symbol(name):
            return Real(name)


def _argument(argument: Argument) -> Expr:
    value, guards = expression(argument.form), argument.guards
    for var, size in reversed(argument.binders):
        value, guards = Max(var, size, guards, value), ()
    assert not guards
    return value


def binders(form: NormalForm) -> list[str]:
    """The summed indices that are in scope together. Checks that none hides another."""
    for term in form:
        names = [var for var, _ in term.binders]
        for factor in term.factors:
            if isinstance(factor, Function):
                names += [name for arg in factor.args for name in binders(arg.form)]
        assert len({var for var, _ in term.binders}) == len(term.binders)
    return [var for term in form for var, _ in term.binders]


@each("operator", COMPUTE, ids=[operator.name for operator in COMPUTE])
@examples(3)
@given(data=st.data(), seed=seeds)
def test_normal_form_of_operators_keeps_their_value(
    operator: Operator, data: st.DataObject, seed: int
):
    case = data.draw(applied((operator,), cut=False))
    ring = PrimeField()
    parts = parts_of_leaves(case.graph, seed, ring)
    inputs = [np.asarray(parts[name][0]) for name in operator.operand_names]
    equation = case.call.instance(tuple(x.ndim for x in inputs))
    sizes = bind_sizes(case.call, equation, [x.shape for x in inputs])
    blocks = [Block(x, (0,) * x.ndim) for x in inputs]
    for output in equation.outputs:
        form = normal(output.body)
        binders(form)
        again = Output(output.name, output.dims, expression(form))
        given = [
            evaluate_output(out, blocks, sizes, {}, case.call.attributes, ring)
            for out in (output, again)
        ]
        np.testing.assert_array_equal(*given)


EQUATIONS = [
    "out[] = (sum k: x[k]) * (sum k: y[k]) * (sum k: x[k])",
    "let s[] = sum k: x[k]; out[] = s[] * (sum k: x[k]) * (sum k: y[k])",
    "let s[] = sum k: x[k]; out[] = (sum k: y[k]) * s[] * s[] * (sum k: x[k])",
    "out[] = (sum k: x[k]) * ((sum k: y[k]) * exp(sum k: x[k] * x[k]))",
    "out[i] = (x[i] + 2) * (y[i] - 1) * (x[i] - y[i])",
    "x[i], y[i] -> out[i] = (x[i] if i < 1 else y[i]) * (y[i] if i < 2 else x[i] * i)",
    "out[i] = max(x[i], y[i]) * relu(y[i]) + max(x[i], max(y[i], 0))",
    "x[i], y[i] -> out[] = max j < 3, k < 2 where 1 <= j + k and j < 2: x[j] * y[k]",
    "x[i], y[j] -> out[i] = (max j where i <= j: y[j] + x[i]) * (max k < 2: x[k])",
    "x[i], y[i] -> out[] = sum j < 2: (x[j] + y[j]) / (sum j2 < 2: x[j2] + 3)",
]


@pytest.mark.parametrize("text", EQUATIONS)
@given(seed=seeds)
@settings(max_examples=3)
def test_normal_form_of_further_equations_keeps_their_value(text: str, seed: int):
    operator = Operator("other", text)
    ring = PrimeField()
    inputs = [np.random.default_rng([seed, i]).integers(0, ring.prime, 3) for i in range(2)]
    equation = operator._expand(())
    blocks = [Block(x, (0,)) for x in inputs]
    sizes = {f"|{name}|": 3 for name in "ijk"}
    (output,) = equation.outputs
    form = normal(output.body)
    binders(form)
    again = Output(output.name, output.dims, expression(form))
    given = [evaluate_output(out, blocks, sizes, {}, (), ring) for out in (output, again)]
    np.testing.assert_array_equal(*given)


def test_substitution_respects_summed_indices():
    k, i, size = Poly.of("k"), Poly.of("i"), Poly.of("|k|")
    inner = (Term(Fraction(1), (("k", size),), (), (Element("1", (k + i,)),)),)
    form = (Term(Fraction(1), (), (k,), (Element("0", (k,)), Function.of("exp", inner))),)
    (term,) = substitute_form(form, {"k": Poly.of("n"), "i": Poly.of("m")})
    assert term.guards == (Poly.of("n"),)
    assert [e.index for e in elements((term,))] == [(Poly.of("n"),), (k + Poly.of("m"),)]
    assert free_symbols((term,)) == {"n", "m", "|k|"}
