"""Where a value is defined: the parts of it that may be no number, and where they are read.

Problem. Numbers are real. A function may be declared *partial* (``pcg.language.functions``). The
reciprocal of 0 and the logarithm of a number that is not positive are no numbers, and a stand-in
may be any function. A maximum over no values is minus infinity, which is a value inside another
maximum and no number anywhere else. A value is undefined if any part that is read is undefined,
whatever its coefficient: ``0 * log(x)`` and ``log(x) - log(x)`` are undefined for x <= 0. A part
under a condition that does not hold is not read. Overflow is rounding, and no rule is about it.

Method. Two values are equal only if they are undefined at the same places. The laws may cancel
parts that are undefined, so the places are compared before any law is applied. Each side lists its
parts that are not known to be numbers, each with the sums and conditions around it. Both lists have
to be the same. The factors that contain these parts are listed too: machines continue with an
infinity where a real number is undefined, and may still return a number, as in max(a, log(0)) = a.
So both sides have to return it in the same factor.
``Prover.equal`` compares the lists as it compares the arguments of two maxima: each part alone or,
if that leaves an index of a sum undetermined, along with the factors that it is multiplied by.
Lists that agree in the second way agree in the first.

Complexity. One walk over each side; nothing more if both sides list the same parts.
Exact: sound. A part is known to be a number by sign alone (``Simplifier``), so equal values may
stay undecided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.language.functions import FUNCTIONS
from pcg.language.normal import Argument, Function, NormalForm, Term
from verifier.trusted.values.cancel import is_positive_sum
from verifier.trusted.values.simplify import UNIT, Simplifier, alone, one_factor, times

VALUE, AROUND = "value", "around"
"""Names of functions that wrap a value, so that it is compared as a whole. VALUE wraps a value,
AROUND the factor around a part that may be no number."""


def as_value(form: NormalForm, name: str = VALUE) -> Function:
    """The value wrapped as one factor, which is compared as a whole."""
    return Function.of(name, form)


def has_partial(form: NormalForm) -> bool:
    """Whether a value contains a partial function, or a maximum that may be over no values."""
    functions = (f for term in form for f in term.factors if isinstance(f, Function))
    return any(
        (FUNCTIONS[f.name].domain != "all" if f.name != "max" else _is_conditional(f))
        or any(has_partial(argument.form) for argument in f.args)
        for f in functions
    )


def _is_conditional(function: Function) -> bool:
    """Whether every argument of a maximum has indices or conditions, so that it may be over no
    values."""
    return all(a.binders or a.guards for a in function.args)


@dataclass(frozen=True)
class UndefinedPart:
    """A part ``form`` that may be no number. ``scope``: the sums, conditions and divisions around
    it, and the factors that it is multiplied by."""

    scope: Term
    form: NormalForm
    name: str = VALUE

    def term(self, *, along: bool) -> Term:
        """The part as a term to compare: alone, or along with the other factors of its scope."""
        part = as_value(self.form, self.name)
        return replace(self.scope, factors=(part, *self.scope.factors) if along else (part,))

    @property
    def maximum(self) -> Function | None:
        """The maximum that the part is, which may be over no values; None if it is none."""
        return alone(self.form, "max") if self.name == VALUE else None


@dataclass(frozen=True)
class UndefinedFactor:
    """A factor of a value with its parts that may be no numbers."""

    scope: Term
    function: Function
    parts: tuple[UndefinedPart, ...]


@dataclass(frozen=True)
class Domain:
    """Lists the parts of values that may be no numbers."""

    simplifier: Simplifier

    def factors(self, form: NormalForm, scope: Term = UNIT) -> Iterator[UndefinedFactor]:
        """The factors of a value that have parts that may be no numbers; ``scope`` is around the
        value."""
        for term in form:
            for position, factor in enumerate(term.factors):
                if isinstance(factor, Function):
                    others = (*term.factors[:position], *term.factors[position + 1 :])
                    around = times(scope, replace(term, coefficient=Fraction(1), factors=others))
                    if parts := tuple(self._of_function(factor, around)):
                        yield UndefinedFactor(around, factor, parts)

    def around(self, factor: UndefinedFactor) -> Iterator[UndefinedPart]:
        """The functions of a simplified factor that still contain parts that may be no numbers; the
        whole simplified factor, if the laws have cancelled the parts."""
        left = self.simplifier.simplify(one_factor(factor.function))
        has_parts = False
        for term in left:
            scope = times(factor.scope, replace(term, coefficient=Fraction(1), factors=()))
            for inner in (f for f in term.factors if isinstance(f, Function)):
                if next(self._of_function(inner, UNIT), None) is not None:
                    has_parts = True
                    yield UndefinedPart(scope, one_factor(inner), AROUND)
        if not has_parts:
            yield UndefinedPart(factor.scope, left, AROUND)

    def _inside(self, form: NormalForm, scope: Term) -> Iterator[UndefinedPart]:
        return (part for factor in self.factors(form, scope) for part in factor.parts)

    def _of_function(self, function: Function, scope: Term) -> Iterator[UndefinedPart]:
        for argument in function.args:
            yield from self._of_argument(function, argument, scope)
        for part in self._partial(function):
            yield replace(part, scope=times(scope, part.scope))

    def _of_argument(
        self, function: Function, argument: Argument, scope: Term
    ) -> Iterator[UndefinedPart]:
        around = times(scope, Term(Fraction(1), argument.binders, argument.guards))
        inner = alone(argument.form, "max") if function.name == "max" else None
        if inner is None:
            yield from self._inside(argument.form, around)
            return
        # A maximum of a maximum is over the values of the inner one.
        for part in inner.args:
            yield from self._of_argument(inner, part, around)

    def _partial(self, function: Function) -> Iterator[UndefinedPart]:
        """The functions that may be no numbers in the function after simplification."""
        if self.is_defined(function):
            return
        for term in self.simplifier.simplify(one_factor(function)):
            for factor in term.factors:
                if isinstance(factor, Function) and not self.is_defined(factor):
                    scope = replace(term, coefficient=Fraction(1), factors=())
                    yield UndefinedPart(scope, one_factor(factor))

    def is_defined(self, function: Function) -> bool:
        """Whether a function is known to be a number wherever its arguments are."""
        if function.name == "max":
            return any(self._is_sure(argument) for argument in function.args)
        first = function.args[0].form
        match FUNCTIONS[function.name].domain:
            case "all":
                return True
            case "nonzero":
                return self._is_nonzero(first)
            case "positive":
                return self._is_positive(first)
            case "nonnegative":
                return self.simplifier.is_nonnegative(first)
            case "unknown":
                return False

    def _is_nonzero(self, form: NormalForm) -> bool:
        opposite = tuple(replace(term, coefficient=-term.coefficient) for term in form)
        return self._is_positive(form) or self._is_positive(opposite)

    def _is_positive(self, form: NormalForm) -> bool:
        return is_positive_sum(form, self.simplifier.is_positive)

    def _is_sure(self, argument: Argument) -> bool:
        """Whether an argument gives a maximum at least one value, for all sizes."""
        sizes = (size for _, size in argument.binders)
        return not argument.guards and all(map(self.simplifier.is_size, sizes))
