"""Drops conditions that always hold, and terms under conditions that never do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pcg.language.normal import Argument, NormalForm, Term, with_arguments
from pcg.language.poly import Poly

RangeOf = Callable[[str], Poly | None]
"""What an index ranges over, if that is known."""


@dataclass(frozen=True)
class SureGuards:
    """Leaves out guards that are never negative.

    A guard that is linear in an index is least at one of the ends of its range: at 0 where the
    coefficient is never negative, at its size less 1 where it is never positive. What is left is
    at least 0 if no coefficient is negative, since sizes and indices are not, or if it is a size
    itself. ``is_natural`` says which symbols are known to be at least 0, ``is_size`` which values
    to be at least 1.
    """

    range_of: RangeOf
    is_natural: Callable[[str], bool]
    is_size: Callable[[Poly], bool]

    def dropped(self, form: NormalForm, inner: Mapping[str, Poly] | None = None) -> NormalForm:
        """The same value without such guards, and without terms under a guard that is a number
        below 0, which are 0; ``inner`` are the indices bound around it."""
        return tuple(self._term(term, inner or {}) for term in form if are_possible(term.guards))

    def are_sure(self, *guards: Poly) -> bool:
        """Whether none of them is ever negative."""
        return all(self._is_sure(guard, {}) for guard in guards)

    def _term(self, term: Term, inner: Mapping[str, Poly]) -> Term:
        inner = {**inner, **dict(term.binders)}
        guards = tuple(g for g in term.guards if not self._is_sure(g, inner))
        factors = with_arguments(term.factors, lambda a: self._argument(a, inner))
        return replace(term, guards=guards, factors=factors)

    def _argument(self, argument: Argument, inner: Mapping[str, Poly]) -> Argument:
        inner = {**inner, **dict(argument.binders)}
        guards = tuple(g for g in argument.guards if not self._is_sure(g, inner))
        return replace(argument, form=self.dropped(argument.form, inner), guards=guards)

    def _is_sure(self, guard: Poly, inner: Mapping[str, Poly]) -> bool:
        sizes = {name: inner.get(name) or self.range_of(name) for name in guard.symbols}
        least = guard
        for name in sorted(guard.symbols):
            size = sizes[name]
            if size is None or least.degree_in(name) != 1:
                continue
            coefficient = least.coefficient(name)
            signs = {number > 0 for _, number in coefficient.terms}
            known = all(sizes.get(s) or self.is_natural(s) for s in coefficient.symbols)
            if len(signs) == 1 and known:
                end = Poly() if signs == {True} else size - 1
                least = least.substitute({name: end})
        return self.is_size(least) or (
            all(number > 0 for _, number in least.terms)
            and all(sizes.get(s) or self.is_natural(s) for s in least.symbols)
        )


def are_possible(guards: Iterable[Poly]) -> bool:
    """Whether none of some guards is a number below 0."""
    return all(guard.constant is None or guard.constant >= 0 for guard in guards)
