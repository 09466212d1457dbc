"""Where a value is defined: which of its parts may be no number, and where they are read.

Problem. Numbers are real. A function is *partial* where its declaration says so
(``pcg.functions``): a reciprocal of 0 and a logarithm of what is not positive are no numbers, and
a stand-in may be any function. A maximum over nothing is minus infinity, which is a value inside
of another maximum and no number anywhere else. A value is undefined where any part of it is that
is read, however it is weighed: ``0 * log(x)`` and ``log(x) - log(x)`` are undefined for x <= 0.
What stands under a condition that does not hold is not read. Overflow is rounding: no rule is about
it.

Method. Two values are equal only if they are undefined at the same places. As a law cancels what
it is a law of, that is decided before any: the parts of each side that are not known to be numbers
are listed, each with the sums and conditions around it, and both lists have to read the same.
``Prover.equal`` compares them as it compares the arguments of two maxima: by what they read alone
or, where that leaves an index of a sum open, along with what they are multiplied by. Lists that are
the same in the second way are so in the first.

Cost. One walk over each side; where both list the same, nothing more. What is exact: parts are
known to be numbers by sign alone (``Simplifier``), so equal values may be left undecided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.functions import FUNCTIONS
from pcg.normal import Argument, Function, NormalForm, Term
from verifier.trusted.cancel import is_positive_sum
from verifier.trusted.simplify import Simplifier, alone, one_factor, times

EVERYWHERE = Term(Fraction(1))
VALUE = "value"
"""Wraps a value, so that it is compared as a whole."""


def as_value(form: NormalForm) -> Function:
    """A value as one factor, which is compared as a whole."""
    return Function.of(VALUE, form)


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
class Part:
    """A function that may be no number. ``scope``: the sums, conditions and divisions around it,
    and what it is multiplied by."""

    scope: Term
    function: Function

    def term(self, *, along: bool) -> Term:
        """What is compared: the part alone, or along with what it is multiplied by."""
        own = as_value(one_factor(self.function))
        return replace(self.scope, factors=(own, *self.scope.factors) if along else (own,))


@dataclass(frozen=True)
class Domain:
    """Lists the parts of values that may be no numbers."""

    simplifier: Simplifier

    def parts(self, form: NormalForm, scope: Term = EVERYWHERE) -> Iterator[Part]:
        """The parts of a value; ``scope`` is around it."""
        for term in form:
            for at, factor in enumerate(term.factors):
                if isinstance(factor, Function):
                    others = (*term.factors[:at], *term.factors[at + 1 :])
                    around = replace(term, coefficient=Fraction(1), factors=others)
                    yield from self._of_function(factor, times(scope, around))

    def _of_function(self, function: Function, scope: Term) -> Iterator[Part]:
        for argument in function.args:
            yield from self._of_argument(function, argument, scope)
        for part in self._partial(function):
            yield Part(times(scope, part.scope), part.function)

    def _of_argument(self, function: Function, argument: Argument, scope: Term) -> Iterator[Part]:
        around = times(scope, Term(Fraction(1), argument.binders, argument.guards))
        inner = alone(argument.form, "max") if function.name == "max" else None
        if inner is None:
            yield from self.parts(argument.form, around)
            return
        # A maximum of a maximum: what the inner one is over, the outer one is over.
        for part in inner.args:
            yield from self._of_argument(inner, part, around)

    def _partial(self, function: Function) -> Iterator[Part]:
        """What the laws leave of a function that may be no number."""
        if self.is_defined(function):
            return
        for term in self.simplifier.simplify(one_factor(function)):
            for factor in term.factors:
                if isinstance(factor, Function) and not self.is_defined(factor):
                    yield Part(replace(term, coefficient=Fraction(1), factors=()), factor)

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
