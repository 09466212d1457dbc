"""Abstracts scalar functions of values from the indices that they depend on, to compare them.

``relu(sum k: x[i, k] * w[k, j])`` is abstracted to a template with holes for ``i`` and ``j``, and
read at the coordinates (i, j), as an element of a tensor would be. Two templates are the same if
their arguments are proved equal for all values of the holes. Complexity: up to
``MAX_HOLES_PERMUTED`` holes are tried in every order, more in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Literal

from pcg.language.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
    elements,
    substitute_factor,
    with_arguments,
)
from pcg.language.poly import Poly, Variable
from verifier.trusted.errors import Unproved
from verifier.trusted.steps import Steps
from verifier.trusted.values.guards import RangeOf
from verifier.trusted.values.keys import key


@dataclass(frozen=True)
class Head:
    """What a factor reads, whatever the coordinates: the elements of a tensor, numbers, a symbol,
    or a function by the number of its template."""

    kind: Literal["element", "number", "symbol", "function"]
    name: str = ""
    template: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "element":
                return self.name
            case "number":
                return "#"
            case "symbol":
                return f"${self.name}"
            case "function":
                return f"{self.name}#{self.template}"


Ranges = Mapping[str, Poly | None]
"""The sizes that indices range over, where known."""
Same = Callable[[Function, Function, Ranges], bool]
MAX_HOLES_PERMUTED = 4
NEW = "new"
"""The way to go where a template equals none of the known ones."""


class Templates:
    """The templates met so far, by number. ``same`` proves two of them equal where holes are in
    their ranges, which ``range_of`` tells of the indices that stand for them; ``steps`` says with
    which template each new one is compared, and in which order of its holes."""

    def __init__(self, same: Same, steps: Steps, range_of: RangeOf) -> None:
        self._same = same
        self._steps = steps
        self._range_of = range_of
        self._known: list[tuple[Function, int, int]] = []

    @property
    def count(self) -> int:
        """How many templates are known."""
        return len(self._known)

    def forget(self, count: int) -> None:
        """Know only the first ``count`` templates."""
        del self._known[count:]

    def abstract(self, function: Function, bound: frozenset[str]) -> tuple[Head, tuple[Poly, ...]]:
        """The head and coordinates of a function of values; ``bound`` are the index variables."""
        holes = _Holes(bound)
        template = holes.function(function, frozenset())
        coordinates = tuple(holes.found)
        # Equal depths only: comparing arguments then meets strictly shallower functions, and ends.
        shape = (len(coordinates), _depth(template))
        mark = len(self._known)
        for way in self._steps.options(self._ways(template, shape)):
            if way == NEW:
                break
            number, order = _parse(way)
            ranges = {_hole(i): self._range(coordinates[hole]) for i, hole in enumerate(order)}
            if self._matches(number, template, order, ranges):
                head = Head("function", template.name, number)
                return head, tuple(coordinates[i] for i in order)
            del self._known[mark:]
        self._known.append((template, *shape))
        return Head("function", template.name, len(self._known) - 1), coordinates

    def _ways(self, template: Function, shape: tuple[int, int]) -> list[str]:
        """The templates that this one may be equal to, with every order of the holes."""
        whole = range(shape[0])
        orders = list(permutations(whole)) if shape[0] <= MAX_HOLES_PERMUTED else [tuple(whole)]
        places = _places(template, shape[0])
        ways: list[str] = []
        for number, (known, *known_shape) in enumerate(self._known):
            if tuple(known_shape) != shape or known.name != template.name:
                continue
            wanted = _places(known, shape[0])
            ways += (
                f"{number}:{','.join(map(str, order))}"
                for order in orders
                if all(_alike(places[hole], w) for hole, w in zip(order, wanted, strict=True))
            )
        return [*ways, NEW]

    def _range(self, coordinate: Poly) -> Poly | None:
        return None if coordinate.symbol is None else self._range_of(coordinate.symbol)

    def _matches(
        self, number: int, template: Function, order: tuple[int, ...], ranges: Ranges
    ) -> bool:
        """Whether the template equals a known one, its hole ``order[i]`` standing for hole i."""
        known = self._known[number][0]
        values = {_hole(hole): Poly.of(_hole(i)) for i, hole in enumerate(order)}
        renamed = _substitute(template, values)
        return key(renamed) == key(known) or self._same(known, renamed, ranges)


def _hole(number: int) -> str:
    """What stands for an outside index in a template."""
    return Variable(f"%h{number}")


def _places(template: Function, arity: int) -> list[frozenset[tuple[str, int]]]:
    """Where each hole is read: tensors and dimensions. Holes that are read in different places
    hardly ever stand for the same index, and are not tried."""
    by_argument: list[set[tuple[str, int]]] = [set() for _ in range(arity)]
    for element in elements((Term(Fraction(1), factors=(template,)),)):
        for dim, index in enumerate(element.index):
            for hole in range(arity):
                if _hole(hole) in index.symbols:
                    by_argument[hole].add((element.tensor, dim))
    return [frozenset(places) for places in by_argument]


def _alike(some: frozenset[tuple[str, int]], other: frozenset[tuple[str, int]]) -> bool:
    """Whether two holes may be the same; one that stands in conditions only may be any."""
    return not some or not other or some == other


def _parse(way: str) -> tuple[int, tuple[int, ...]]:
    number, _, order = way.partition(":")
    return int(number), tuple(int(hole) for hole in order.split(",") if hole)


class _Holes:
    """Replaces what depends on outside indices by holes ``%h0, %h1, ...``."""

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
        inner = inner | bound_in(term)
        return Term(
            term.coefficient,
            tuple((var, self._poly(size, inner)) for var, size in term.binders),
            tuple(self._poly(guard, inner) for guard in term.guards),
            tuple(self._factor(factor, inner) for factor in term.factors),
            tuple(
                replace(d, index=self._poly(d.index, inner), size=self._poly(d.size, inner))
                for d in term.divisions
            ),
        )

    def _factor(self, factor: Factor, inner: frozenset[str]) -> Factor:
        match factor:
            case Element(tensor, index):
                return Element(tensor, tuple(self._index(i, inner) for i in index))
            case Number(index):
                return Number(self._poly(index, inner))
            case Function():
                return self.function(factor, inner)
            case Symbol():
                return factor

    def _index(self, value: Poly, inner: frozenset[str]) -> Poly:
        """An index that depends on nothing inside is a hole as a whole, so that what reads
        elsewhere in the same way has the same template, be it at a fixed place."""
        return self._hole(value) if value.symbols.isdisjoint(inner) else self._poly(value, inner)

    def _hole(self, value: Poly) -> Poly:
        """A hole for a value, or for what it is the opposite of: the first index that is bound
        outside has a plus sign, by whatever sizes the value is moved."""
        signs = (c for m, c in value.terms if not self._bound.isdisjoint(m))
        sign = 1 if next(signs, 1) > 0 else -1
        if value * sign not in self.found:
            self.found.append(value * sign)
        return Poly.of(_hole(self.found.index(value * sign))) * sign

    def _poly(self, value: Poly, inner: frozenset[str]) -> Poly:
        """The part that depends on outside indices becomes one hole. Raises Unproved where an
        outside index is multiplied by one that is summed inside."""
        outside = Poly.collect((m, c) for m, c in value.terms if not self._bound.isdisjoint(m))
        if not outside.terms:
            return value
        if not outside.symbols.isdisjoint(inner):
            raise Unproved(f"index {outside} mixes a summed index with one outside of the sum")
        return value - outside + self._hole(outside)


def _depth(function: Function) -> int:
    """How deep functions are nested in it, itself included."""
    inner = (f for arg in function.args for term in arg.form for f in term.factors)
    return 1 + max((_depth(f) for f in inner if isinstance(f, Function)), default=0)


def _substitute(function: Function, values: Mapping[str, Poly]) -> Function:
    result = substitute_factor(function, values)
    assert isinstance(result, Function)
    return result


def bound_in(term: Term) -> frozenset[str]:
    """The indices that a term sums over or defines."""
    defined = (name for d in term.divisions for name in (d.quotient, d.rest))
    return frozenset(var for var, _ in term.binders).union(defined)


def case_split(form: Sequence[Term], free: frozenset[str]) -> Iterator[Term]:
    """Guards inside functions that depend on outside indices become guards of cases.

    ``f(a if c else b)`` is ``[c] f(a) + [not c] f(b)``, for any condition on outside indices.
    """
    for term in form:
        yield from _split_term(term, free | bound_in(term))


def split_everywhere(form: NormalForm, free: frozenset[str]) -> NormalForm:
    """The same inside functions too: each guard then stands where its indices are bound."""
    return tuple(_split_inside(term, free | bound_in(term)) for term in case_split(form, free))


def _split_inside(term: Term, bound: frozenset[str]) -> Term:
    def split(argument: Argument) -> Argument:
        within = bound.union(name for name, _ in argument.binders)
        return replace(argument, form=split_everywhere(argument.form, within))

    return replace(term, factors=with_arguments(term.factors, split))


def _split_term(term: Term, bound: frozenset[str]) -> Iterator[Term]:
    guard = next(
        (g for f in term.factors if isinstance(f, Function) for g in _outer_guards(f, bound)), None
    )
    if guard is None:
        yield term
        return
    for case in (guard, -guard - 1):
        factors = with_arguments(term.factors, lambda a, known=case: _assume(a, known))
        guards = term.guards if case in term.guards else (*term.guards, case)
        yield from _split_term(replace(term, guards=guards, factors=factors), bound)


def _outer_guards(
    function: Function, bound: frozenset[str], inner: frozenset[str] = frozenset()
) -> Iterator[Poly]:
    """Guards in a function's arguments whose index variables are all outside; ``inner`` are
    those summed inside."""
    for argument, term in ((a, term) for a in function.args for term in a.form):
        within = inner.union(bound_in(term), (var for var, _ in argument.binders))
        for guard in term.guards:
            if guard.symbols.isdisjoint(within) and not guard.symbols.isdisjoint(bound):
                yield guard
        for factor in term.factors:
            if isinstance(factor, Function):
                yield from _outer_guards(factor, bound, within)


def _assume(argument: Argument, known: Poly) -> Argument:
    """The argument where ``known >= 0``."""
    possible = (term for term in argument.form if -known - 1 not in term.guards)
    return replace(argument, form=tuple(_assume_in(term, known) for term in possible))


def _assume_in(term: Term, known: Poly) -> Term:
    guards = tuple(g for g in term.guards if g != known)
    factors = with_arguments(term.factors, lambda a: _assume(a, known))
    return replace(term, guards=guards, factors=factors)
