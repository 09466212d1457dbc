"""Scalar functions of values, compared up to the indices that they depend on.

``relu(sum k: x[i, k] * w[k, j])`` is abstracted to a template with holes for ``i`` and ``j``, and
read at the coordinates (i, j), as an element of a tensor would be. Two templates are the same if
their arguments are proved equal for all values of the holes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

from pcg.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
    substitute_factor,
)
from pcg.poly import Poly
from verifier.errors import Unproved

Same = Callable[[Function, Function, frozenset[str]], bool]
MAX_HOLES_PERMUTED = 4


class Templates:
    """The templates met so far, by number. ``same`` proves two of them equal."""

    def __init__(self, same: Same) -> None:
        self._same = same
        self._known: list[tuple[Function, int, int]] = []

    def abstract(self, function: Function, bound: frozenset[str]) -> tuple[str, tuple[Poly, ...]]:
        """The head and coordinates of a function of values; ``bound`` are the index variables."""
        holes = _Holes(bound)
        template = holes.function(function, frozenset())
        coordinates = tuple(holes.found)
        # Equal depths only: comparing arguments then meets strictly shallower functions, and ends.
        shape = (len(coordinates), _depth(template))
        for number, (known, *known_shape) in enumerate(self._known):
            if tuple(known_shape) != shape or known.name != template.name:
                continue
            order = self._match(known, template, len(coordinates))
            if order is not None:
                return f"{template.name}#{number}", tuple(coordinates[i] for i in order)
        self._known.append((template, *shape))
        number = len(self._known) - 1
        return f"{template.name}#{number}", coordinates

    def _match(self, known: Function, template: Function, arity: int) -> tuple[int, ...] | None:
        """Which hole of ``template`` stands for each hole of ``known``, if they are equal."""
        names = frozenset(f"h{i}" for i in range(arity))
        whole = tuple(range(arity))
        orders = permutations(whole) if arity <= MAX_HOLES_PERMUTED else [whole]
        for order in orders:
            values = {f"h{hole}": Poly.of(f"h{i}") for i, hole in enumerate(order)}
            renamed = _substitute(template, values)
            if renamed == known or self._same(known, renamed, names):
                return tuple(order)
        return None


class _Holes:
    """Replaces what depends on outside indices by holes ``h0, h1, ...``."""

    def __init__(self, bound: frozenset[str]) -> None:
        self._bound = bound
        self.found: list[Poly] = []

    def function(self, function: Function, inner: frozenset[str]) -> Function:
        return Function(function.name, tuple(self._argument(a, inner) for a in function.args))

    def _argument(self, argument: Argument, inner: frozenset[str]) -> Argument:
        inner = inner | {var for var, _ in argument.binders}
        return Argument(
            tuple(self._term(term, inner) for term in argument.form),
            tuple((var, self._poly(size, inner)) for var, size in argument.binders),
            tuple(self._poly(guard, inner) for guard in argument.guards),
        )

    def _term(self, term: Term, inner: frozenset[str]) -> Term:
        inner = inner | {var for var, _ in term.binders}
        return Term(
            term.coefficient,
            tuple((var, self._poly(size, inner)) for var, size in term.binders),
            tuple(self._poly(guard, inner) for guard in term.guards),
            tuple(self._factor(factor, inner) for factor in term.factors),
        )

    def _factor(self, factor: Factor, inner: frozenset[str]) -> Factor:
        match factor:
            case Element(tensor, index):
                return Element(tensor, tuple(self._poly(i, inner) for i in index))
            case Number(index):
                return Number(self._poly(index, inner))
            case Function():
                return self.function(factor, inner)
            case Symbol():
                return factor

    def _poly(self, value: Poly, inner: frozenset[str]) -> Poly:
        """The part that depends on outside indices becomes one hole. Raises Unproved where an
        outside index is multiplied by one that is summed inside."""
        outside = Poly.collect((m, c) for m, c in value.terms if not self._bound.isdisjoint(m))
        if not outside.terms:
            return value
        if not outside.symbols.isdisjoint(inner):
            raise Unproved(f"index {outside} mixes a summed index with one outside of the sum")
        if outside not in self.found:
            self.found.append(outside)
        return value - outside + Poly.of(f"h{self.found.index(outside)}")


def _depth(function: Function) -> int:
    """How deep functions are nested in it, itself included."""
    inner = (f for arg in function.args for term in arg.form for f in term.factors)
    return 1 + max((_depth(f) for f in inner if isinstance(f, Function)), default=0)


def _substitute(function: Function, values: dict[str, Poly]) -> Function:
    result = substitute_factor(function, values)
    assert isinstance(result, Function)
    return result


def case_split(form: NormalForm, free: frozenset[str]) -> Iterator[Term]:
    """Guards inside functions that depend on outside indices become guards of cases.

    ``f(a if c else b)`` is ``[c] f(a) + [not c] f(b)``, for any condition on outside indices.
    """
    for term in form:
        yield from _split_term(term, free | {var for var, _ in term.binders})


def _split_term(term: Term, bound: frozenset[str]) -> Iterator[Term]:
    guard = next(
        (g for f in term.factors if isinstance(f, Function) for g in _outer_guards(f, bound)), None
    )
    if guard is None:
        yield term
        return
    for case, holds in ((guard, True), (-guard - 1, False)):
        factors = tuple(
            _assume(f, guard, holds=holds) if isinstance(f, Function) else f for f in term.factors
        )
        guards = term.guards if case in term.guards else (*term.guards, case)
        yield from _split_term(replace(term, guards=guards, factors=factors), bound)


def _outer_guards(
    function: Function, bound: frozenset[str], inner: frozenset[str] = frozenset()
) -> Iterator[Poly]:
    """Guards in a function's arguments whose index variables are all outside; ``inner`` are
    those summed inside."""
    for argument, term in ((a, term) for a in function.args for term in a.form):
        within = inner.union(var for var, _ in (*argument.binders, *term.binders))
        for guard in term.guards:
            if guard.symbols.isdisjoint(within) and not guard.symbols.isdisjoint(bound):
                yield guard
        for factor in term.factors:
            if isinstance(factor, Function):
                yield from _outer_guards(factor, bound, within)


def _assume(function: Function, guard: Poly, *, holds: bool) -> Function:
    """The function where ``guard >= 0`` is known to hold, or not to."""
    opposite = -guard - 1
    args = tuple(
        replace(
            argument,
            form=tuple(
                _assume_term(term, guard, opposite, holds=holds)
                for term in argument.form
                if (opposite if holds else guard) not in term.guards
            ),
        )
        for argument in function.args
    )
    return Function(function.name, args)


def _assume_term(term: Term, guard: Poly, opposite: Poly, *, holds: bool) -> Term:
    known = guard if holds else opposite
    guards = tuple(g for g in term.guards if g != known)
    factors = tuple(
        _assume(f, guard, holds=holds) if isinstance(f, Function) else f for f in term.factors
    )
    return replace(term, guards=guards, factors=factors)
