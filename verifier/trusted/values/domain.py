"""Where a value is defined: which of its parts may be no number, and where they are read.

Problem. Numbers are real. A function is *partial* where its declaration says so
(``pcg.language.functions``): a reciprocal of 0 and a logarithm of what is not positive are no
numbers, and a stand-in may be any function. A maximum over nothing is minus infinity, which is a
value inside of another maximum and no number anywhere else. A value is undefined where any part of
it is that is read, however it is weighed: ``0 * log(x)`` and ``log(x) - log(x)`` are undefined for
x <= 0. What stands under a condition that does not hold is not read. Overflow is rounding: no rule
is about it.

Method. Two values are equal only if they are undefined at the same places. As a law cancels what
it is a law of, that is decided before any: the parts of each side that are not known to be numbers
are listed, each with the sums and conditions around it, and both lists have to read the same. The
factors of which they are parts are listed too. Machines go on with an infinity where we stop, and
may come to a number, as in max(a, log(0)) = a; so both sides have to come to it in the same factor.
``Prover.equal`` compares the lists as it compares the arguments of two maxima: by what they read
alone or, where that leaves an index of a sum open, along with what they are multiplied by. Lists
that are the same in the second way are so in the first.

Cost. One walk over each side; where both list the same, nothing more. What is exact: parts are
known to be numbers by sign alone (``Simplifier``), so equal values may be left undecided.
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
"""Names of what wraps a value, so that it is compared as a whole: a value, or a factor in which
something may be no number."""


def as_value(form: NormalForm, name: str = VALUE) -> Function:
    """A value as one factor, which is compared as a whole."""
    return Function.of(name, form)


def has_partial(form: NormalForm) -> bool:
    """Whether any function in a value is partial, or a maximum that may be over nothing."""
    functions = (f for term in form for f in term.factors if isinstance(f, Function))
    return any(
        (FUNCTIONS[f.name].domain != "all" if f.name != "max" else _is_conditional(f))
        or any(has_partial(argument.form) for argument in f.args)
        for f in functions
    )


def _is_conditional(function: Function) -> bool:
    """Whether a maximum is over no value that is there in any case."""
    return all(a.binders or a.guards for a in function.args)


@dataclass(frozen=True)
class UndefinedPart:
    """Something that may be no number. ``scope``: the sums, conditions and divisions around it, and
    what it is multiplied by."""

    scope: Term
    form: NormalForm
    name: str = VALUE

    def term(self, *, along: bool) -> Term:
        """What is compared: the part alone, or along with what it is multiplied by."""
        own = as_value(self.form, self.name)
        return replace(self.scope, factors=(own, *self.scope.factors) if along else (own,))

    @property
    def maximum(self) -> Function | None:
        """The maximum that it is, if it is one, which may be over nothing."""
        return alone(self.form, "max") if self.name == VALUE else None


@dataclass(frozen=True)
class UndefinedFactor:
    """A factor of a value with the parts of it that may be no numbers."""

    scope: Term
    function: Function
    parts: tuple[UndefinedPart, ...]


@dataclass(frozen=True)
class Domain:
    """Lists the parts of values that may be no numbers."""

    simplifier: Simplifier

    def factors(self, form: NormalForm, scope: Term = UNIT) -> Iterator[UndefinedFactor]:
        """The factors of a value that may be no numbers; ``scope`` is around it."""
        for term in form:
            for at, factor in enumerate(term.factors):
                if isinstance(factor, Function):
                    others = (*term.factors[:at], *term.factors[at + 1 :])
                    around = times(scope, replace(term, coefficient=Fraction(1), factors=others))
                    if parts := tuple(self._of_function(factor, around)):
                        yield UndefinedFactor(around, factor, parts)

    def around(self, factor: UndefinedFactor) -> Iterator[UndefinedPart]:
        """What the laws leave of a factor, as far as parts are in it; all of it, if they have
        cancelled the parts."""
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
        # A maximum of a maximum: what the inner one is over, the outer one is over.
        for part in inner.args:
            yield from self._of_argument(inner, part, around)

    def _partial(self, function: Function) -> Iterator[UndefinedPart]:
        """What the laws leave of a function that may be no number."""
        if self.is_defined(function):
            return
        for term in self.simplifier.simplify(one_factor(function)):
            for factor in term.factors:
                if isinstance(factor, Function) and not self.is_defined(factor):
                    scope = replace(term, coefficient=Fraction(1), factors=())
                    yield UndefinedPart(scope, one_factor(factor))

    def is_defined(self, function: Function) -> bool:
        """Whether a function is a number wherever its arguments are."""
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
        """Whether a maximum is over at least one value of an argument."""
        sizes = (size for _, size in argument.binders)
        return not argument.guards and all(map(self.simplifier.is_size, sizes))
