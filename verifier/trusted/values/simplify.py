"""Applies the laws of scalar functions (``laws``), in one direction, to values in normal form.

Method: sums are split into terms, functions are rewritten from the inside out, and equal terms are
added up, until nothing cancels any more.
Complexity: linear in the terms, except for ``cancel``.
Exact: each rewrite is a law. Not complete: equal values may keep different forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.language.normal import (
    Argument,
    Factor,
    Function,
    NormalForm,
    Number,
    Term,
    factor_symbols,
    substitute_term,
)
from pcg.language.poly import Poly, product
from verifier.trusted.values import laws
from verifier.trusted.values.cancel import cancelled
from verifier.trusted.values.guards import are_possible
from verifier.trusted.values.keys import Key, key, key_of_argument, key_of_term
from verifier.trusted.values.laws import LAWS, Law
from verifier.trusted.values.spans import IsSize, single, single_argument, tightened, unrolled

UNIT = Term(Fraction(1))
ONE: NormalForm = (UNIT,)
IsBelow = Callable[[Poly, Poly], bool]
"""Whether an index is known to be at least 0 and less than a size."""


def one_factor(factor: Factor) -> NormalForm:
    """The value that is a single factor."""
    return (Term(Fraction(1), factors=(factor,)),)


@dataclass(frozen=True)
class Simplifier:
    """Applies ``laws`` to values. ``is_size`` says which values are known to be at least 1,
    ``is_digit`` which indices are known to lie in the range of a size."""

    is_size: IsSize
    is_digit: IsBelow
    laws: frozenset[Law] = LAWS

    def simplify(self, form: NormalForm) -> NormalForm:
        """The same value, with functions rewritten by the laws and equal terms added up."""
        merged: dict[Key, Term] = {}
        unrolls = laws.SUM_FEW in self.laws
        parts = (part for term in form for part in (unrolled(term) if unrolls else (term,)))
        for term in (result for part in parts for result in self._term(part)):
            unit = replace(term, coefficient=Fraction(1))
            known = merged.get(name := key_of_term(unit), replace(unit, coefficient=Fraction(0)))
            merged[name] = replace(known, coefficient=known.coefficient + term.coefficient)
        terms = tuple(term for term in merged.values() if term.coefficient)
        if laws.RECIP_CANCELS not in self.laws:
            return terms
        left = cancelled(terms, self.is_positive)
        return terms if left == terms else self.simplify(left)

    def _term(self, term: Term) -> NormalForm:
        term = self._pointed(term) if laws.SUM_POINT in self.laws else term
        term = tightened(term, self.is_size) if laws.SUM_RANGE in self.laws else term
        term = single(term) if laws.SUM_FEW in self.laws else term
        term = self._counted(term) if laws.SUM_EQUAL in self.laws else term
        products: NormalForm = (replace(term, factors=()),)
        for factor in term.factors:
            inner = self._function(factor) if isinstance(factor, Function) else one_factor(factor)
            products = tuple(times(left, right) for left in products for right in inner)
        return tuple(self._cancelled(product) for product in products if product.coefficient)

    def _pointed(self, term: Term) -> Term:
        """The term without each index that conditions fix at one value, which is substituted."""
        for guard in term.guards:
            if -guard not in term.guards:
                continue
            for var, size in term.binders:
                coefficient = guard.coefficient(var).constant
                if coefficient not in (1, -1) or guard.degree_in(var) != 1:
                    continue
                value = Poly.of(var) - guard * coefficient
                within = () if self.is_digit(value, size) else (value, size - 1 - value)
                binders = tuple(binder for binder in term.binders if binder[0] != var)
                rest = tuple(g for g in term.guards if g not in (guard, -guard))
                left = replace(term, binders=(), guards=rest)
                pointed = substitute_term(left, {var: value})
                guards = (*pointed.guards, *(g for g in within if g.constant is None))
                if not are_possible((*guards, *within)):
                    return replace(term, coefficient=Fraction(0), binders=(), factors=())
                sizes = tuple((v, s.substitute({var: value})) for v, s in binders)
                return self._pointed(replace(pointed, binders=sizes, guards=guards))
        return term

    def _counted(self, term: Term) -> Term:
        """The term with each index that nothing depends on replaced by a factor, its size."""
        used = {s for g in term.guards for s in g.symbols}
        used.update(s for _, size in term.binders for s in size.symbols)
        used.update(s for d in term.divisions for s in d.index.symbols | d.size.symbols)
        used.update(*(factor_symbols(factor) for factor in term.factors))
        idle = [(v, n) for v, n in term.binders if v not in used and self.is_size(n)]
        if not idle:
            return term
        number, sizes = _split_size(product(size for _, size in idle))
        return replace(
            term,
            coefficient=term.coefficient * number,
            binders=tuple(binder for binder in term.binders if binder not in idle),
            factors=(*term.factors, *map(Number, sizes)),
        )

    def _function(self, function: Function) -> NormalForm:
        args = tuple(replace(a, form=self.simplify(a.form)) for a in function.args)
        match function.name:
            case "exp" if laws.EXP_SUM in self.laws:
                products = ONE
                for term in args[0].form:
                    exps = self._exponential(term)
                    products = tuple(times(left, right) for left in products for right in exps)
                return products
            case "recip":
                return self._reciprocal(args[0].form)
            case "log":
                return self._logarithm(args[0].form)
            case "max":
                return self._greatest(args)
            case _:
                return one_factor(Function(function.name, args))

    def _exponential(self, term: Term) -> NormalForm:
        unit = replace(term, coefficient=abs(term.coefficient))
        inner = alone((unit,), "log") if laws.LOG_EXP in self.laws else None
        if inner is None or not self.is_positive(inner.args[0].form):
            return one_factor(Function.of("exp", (term,)))
        form = inner.args[0].form
        return form if term.coefficient > 0 else self._reciprocal(form)

    def _reciprocal(self, form: NormalForm) -> NormalForm:
        common, rest = self._common(form) if laws.RECIP_PRODUCT in self.laws else (UNIT, form)
        if laws.RECIP_PRODUCT in self.laws and rest == ONE:
            return self._inverse(common)
        inner = alone(rest, "recip") if laws.RECIP_RECIP in self.laws else None
        if inner is not None and self.is_positive(inner.args[0].form):
            left = inner.args[0].form
        else:
            left = one_factor(Function.of("recip", rest))
        return tuple(times(a, b) for a in self._inverse(common) for b in left)

    def _inverse(self, common: Term) -> NormalForm:
        """The reciprocal of a product of positive factors, as ``_common`` returns it."""
        factors: list[Factor] = []
        coefficient = 1 / common.coefficient
        for factor in common.factors:
            if isinstance(factor, Number):
                number, sizes = _split_size(factor.index)
                coefficient /= number
                factors += (Function.of("recip", one_factor(Number(s))) for s in sizes)
            else:
                assert isinstance(factor, Function)
                if laws.EXP_DIFFERENCE not in self.laws:
                    factors.append(Function.of("recip", one_factor(factor)))
                    continue
                (term,) = factor.args[0].form
                factors.append(Function.of("exp", (replace(term, coefficient=-term.coefficient),)))
        return (Term(coefficient, factors=tuple(factors)),)

    def _logarithm(self, form: NormalForm) -> NormalForm:
        if laws.LOG_PRODUCT not in self.laws or not self.is_positive(form):
            return one_factor(Function.of("log", form))
        common, rest = self._common(form)
        summands: list[Term] = []
        for factor in common.factors:
            if isinstance(factor, Function) and laws.LOG_EXP in self.laws:
                summands += factor.args[0].form
            else:
                summands.append(
                    Term(Fraction(1), factors=(Function.of("log", one_factor(factor)),))
                )
        if common.coefficient != 1:
            number: NormalForm = (Term(common.coefficient),)
            summands.append(Term(Fraction(1), factors=(Function.of("log", number),)))
        sign = Fraction(1)
        if inner := alone(rest, "recip"):
            rest, sign = inner.args[0].form, -sign
        if rest != ONE:
            summands.append(Term(sign, factors=(Function.of("log", rest),)))
        return tuple(summands)

    def _common(
        self, form: NormalForm, bound: frozenset[str] = frozenset()
    ) -> tuple[Term, NormalForm]:
        """A value as (common factors, rest). The common factors are a positive number, and sizes
        and exponentials that all terms share and that contain no bound index."""
        if not form:
            return Term(Fraction(1)), form
        content = abs(form[0].coefficient)
        shared = {
            key(f): f
            for f in form[0].factors
            if (_is_exp(f) or (isinstance(f, Number) and self.is_size(f.index)))
        }
        for term in form:
            inner_names = {*bound, *(name for name, _ in term.binders)}
            inner_names.update(n for d in term.divisions for n in (d.quotient, d.rest))
            if abs(term.coefficient) != content:
                content = Fraction(1)
            outside = {key(f) for f in term.factors if inner_names.isdisjoint(factor_symbols(f))}
            shared = {name: f for name, f in shared.items() if name in outside}
        rest = tuple(_without(term, shared, content) for term in form)
        return Term(content, factors=tuple(shared.values())), rest

    def _greatest(self, args: Iterable[Argument]) -> NormalForm:
        """The maximum of arguments. A maximum of maxima is one maximum, a maximum of one value is
        that value, and an argument 0 is dropped beside one that is at least 0."""
        flat: list[Argument] = []
        for argument in map(single_argument, args) if laws.MAX_ONE in self.laws else args:
            inner = alone(argument.form, "max") if laws.MAX_ASSOCIATIVE in self.laws else None
            flat += [argument] if inner is None else [_nested(argument, a) for a in inner.args]
        if laws.MAX_IDEMPOTENT in self.laws:
            flat = list({key_of_argument(argument): argument for argument in flat}.values())
        whole = [a for a in flat if not a.binders and not a.guards]
        least = any(a.form and self.is_nonnegative(a.form) for a in whole)
        if laws.MAX_NONNEGATIVE in self.laws and least:
            flat = [a for a in flat if a != Argument(())]
        if laws.MAX_IDEMPOTENT in self.laws and len(flat) == 1 and flat[0] in whole:
            return flat[0].form
        if laws.MAX_HOMOGENEOUS not in self.laws:
            return one_factor(Function("max", tuple(flat)))
        return self._scaled(tuple(flat))

    def _scaled(self, args: tuple[Argument, ...]) -> NormalForm:
        """A maximum times the positive factors that all of its arguments share."""
        parts = [self._common(a.form, frozenset(v for v, _ in a.binders)) for a in args if a.form]
        contents = {common.coefficient for common, _ in parts}
        content = contents.pop() if len(contents) == 1 else Fraction(1)
        keys = [{key(f) for f in common.factors} for common, _ in parts]
        every = keys[0].intersection(*keys) if keys else set[Key]()
        shared = {key(f): f for common, _ in parts[:1] for f in common.factors if key(f) in every}
        left = tuple(
            replace(a, form=tuple(_without(t, shared, content) for t in a.form)) for a in args
        )
        return (Term(content, factors=(*shared.values(), Function("max", left))),)

    def is_positive(self, form: NormalForm) -> bool:
        """Whether a value is known to be greater than 0: all terms are products of positive
        factors, and one term has no guards and no empty range."""
        if any(term.coefficient <= 0 for term in form):
            return False
        if not all(self._is_positive_factor(f) for term in form for f in term.factors):
            return False
        return any(
            not term.guards and all(self.is_size(size) for _, size in term.binders) for term in form
        )

    def is_nonnegative(self, form: NormalForm) -> bool:
        """Whether a value is known to be at least 0."""
        return all(
            term.coefficient > 0 and all(map(self._is_nonnegative_factor, term.factors))
            for term in form
        )

    def _is_nonnegative_factor(self, factor: Factor) -> bool:
        if isinstance(factor, Function) and factor.name == "max":
            whole = (a.form for a in factor.args if not a.binders and not a.guards)
            return any(self.is_nonnegative(form) for form in whole)
        return self._is_positive_factor(factor)

    def _is_positive_factor(self, factor: Factor) -> bool:
        if isinstance(factor, Number):
            return self.is_size(factor.index)
        if not isinstance(factor, Function):
            return False
        if factor.name in ("recip", "rsqrt"):
            return self.is_positive(factor.args[0].form)
        return factor.name == "exp"

    def _cancelled(self, term: Term) -> Term:
        """The term with exponentials of the same value combined and inverse factors cancelled."""
        if laws.EXP_SUM not in self.laws:
            return replace(term, factors=tuple(self._without_inverses(list(term.factors))))
        powers: dict[Key, tuple[Term, Fraction]] = {}
        others: list[Factor] = []
        for factor in term.factors:
            if isinstance(factor, Function) and _is_exp(factor):
                (exponent,) = factor.args[0].form
                unit = replace(exponent, coefficient=Fraction(1))
                _, known = powers.get(key_of_term(unit), (unit, Fraction(0)))
                powers[key_of_term(unit)] = unit, known + exponent.coefficient
            else:
                others.append(factor)
        others = self._without_inverses(others)
        others += [
            Function.of("exp", (replace(unit, coefficient=power),))
            for unit, power in powers.values()
            if power
        ]
        return replace(term, factors=tuple(others))

    def _without_inverses(self, factors: list[Factor]) -> list[Factor]:
        """The factors with ``n (1/n)`` dropped and ``rsqrt(a) rsqrt(a)`` replaced by ``1/a``."""
        left = list(factors)
        for factor in factors:
            if not isinstance(factor, Function):
                continue
            form = factor.args[0].form if factor.args else ()
            if factor.name == "recip" and (size := _number(form)) and self.is_size(size.index):
                if laws.RECIP_CANCELS in self.laws and factor in left and size in left:
                    left.remove(factor)
                    left.remove(size)
            elif (
                factor.name == "rsqrt"
                and laws.RSQRT_SQUARE in self.laws
                and left.count(factor) > 1
                and self.is_positive(form)
            ):
                left.remove(factor)
                left.remove(factor)
                left.append(Function.of("recip", form))
        return left


def times(left: Term, right: Term) -> Term:
    """The product of terms whose bound indices are all different."""
    return Term(
        left.coefficient * right.coefficient,
        left.binders + right.binders,
        left.guards + tuple(g for g in right.guards if g not in left.guards),
        left.factors + right.factors,
        left.divisions + tuple(d for d in right.divisions if d not in left.divisions),
    )


def _nested(outer: Argument, inner: Argument) -> Argument:
    binders, guards = outer.binders + inner.binders, outer.guards + inner.guards
    return Argument(inner.form, binders, guards)


def alone(form: NormalForm, name: str) -> Function | None:
    """The function ``name`` that a value consists of, or None if the value is anything else."""
    if len(form) != 1 or form != (Term(Fraction(1), factors=form[0].factors),):
        return None
    factors = form[0].factors
    if len(factors) != 1 or not isinstance(factors[0], Function) or factors[0].name != name:
        return None
    return factors[0]


def _is_exp(factor: Factor) -> bool:
    return isinstance(factor, Function) and factor.name == "exp" and len(factor.args[0].form) == 1


def _number(form: NormalForm) -> Number | None:
    """The number that a value consists of, or None if the value is anything else."""
    if len(form) != 1 or len(form[0].factors) != 1 or not isinstance(form[0].factors[0], Number):
        return None
    return form[0].factors[0] if form == one_factor(form[0].factors[0]) else None


def _split_size(size: Poly) -> tuple[int, list[Poly]]:
    """A size as a number times sizes, one for each symbol. A sum of products is one size."""
    if len(size.terms) != 1:
        return 1, [size]
    ((symbols, number),) = size.terms
    return number, [Poly.of(symbol) for symbol in symbols]


def _without(term: Term, shared: Mapping[Key, Factor], content: Fraction) -> Term:
    left = dict(shared)
    factors = [f for f in term.factors if left.pop(key(f), None) is None]
    return replace(term, coefficient=term.coefficient / content, factors=tuple(factors))
