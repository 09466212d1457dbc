"""Drops conditions that always hold, and terms whose conditions never hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pcg.language.normal import Argument, NormalForm, Term, with_arguments
from pcg.language.poly import Poly

RangeOf = Callable[[str], Poly | None]
"""The size of an index's range, if known."""


@dataclass(frozen=True)
class SureGuards:
    """Drops guards that are never negative.

    A guard that is linear in an index is least at one end of the index's range: at 0 if the
    coefficient is never negative, at size - 1 if it is never positive. With the ends substituted,
    the guard is at least 0 if it is a size, or if no coefficient is negative and all its symbols
    are known to be at least 0. ``is_natural`` says which symbols are known to be at least 0,
    ``is_size`` which values are known to be at least 1.
    """

    range_of: RangeOf
    is_natural: Callable[[str], bool]
    is_size: Callable[[Poly], bool]

    def dropped(self, form: NormalForm, inner: Mapping[str, Poly] | None = None) -> NormalForm:
        """The same value without guards that always hold, and without terms under a guard that is a
        negative number, which are 0. ``inner``: the indices bound around the value."""
        return tuple(self._term(term, inner or {}) for term in form if are_possible(term.guards))

    def are_sure(self, *guards: Poly) -> bool:
        """Whether none of the guards is ever negative."""
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
    """Whether none of the guards is a negative number."""
    return all(guard.constant is None or guard.constant >= 0 for guard in guards)
