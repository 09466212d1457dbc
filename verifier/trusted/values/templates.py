"""Abstracts scalar functions of values from the indices that they depend on, to compare them.

Method: ``relu(sum k: x[i, k] * w[k, j])`` is abstracted to a template with holes for ``i`` and
``j``. The function is then a reading of the template at the coordinates (i, j), like an element of
a tensor. Two templates are equal if their arguments are proved equal for all values of the holes.
Complexity: all orders of up to ``MAX_HOLES_PERMUTED`` holes are tried, and one order of more.
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
    """What a factor reads, without the coordinates: elements of a tensor, numbers, a symbol, or a
    function, given by its name and the number of its template."""

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
"""The sizes of indices' ranges, None where unknown."""
Same = Callable[[Function, Function, Ranges], bool]
MAX_HOLES_PERMUTED = 4
NEW = "new"
"""The way for a template that equals none of the known ones."""


class Templates:
    """The templates found so far, by number.

    ``same`` proves two templates equal for all values of the holes in their ranges. A hole has the
    range of the index in its place, which ``range_of`` gives. ``steps`` says with which template a
    new one is compared, and in which order of its holes.
    """

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
        """Return the head and coordinates of a function of values. ``bound``: the indices bound
        around it. Raises Unproved if an index cannot be abstracted."""
        holes = _Holes(bound)
        template = holes.function(function, frozenset())
        coordinates = tuple(holes.values)
        # Only templates of equal depth are compared. Their arguments are less deep, so this ends.
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
        """The ways to match the template: known templates that it may equal, each with an order of
        the holes, as ``number:hole,hole,...``, and at last ``NEW``."""
        holes = range(shape[0])
        orders = list(permutations(holes)) if shape[0] <= MAX_HOLES_PERMUTED else [tuple(holes)]
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
        """Whether the template equals a known one with its hole ``order[i]`` as hole i of that."""
        known = self._known[number][0]
        values = {_hole(hole): Poly.of(_hole(i)) for i, hole in enumerate(order)}
        renamed = _substitute(template, values)
        return key(renamed) == key(known) or self._same(known, renamed, ranges)


def _hole(number: int) -> str:
    """The variable of a hole, which stands for an index from outside of the template."""
    return Variable(f"%h{number}")


def _places(template: Function, arity: int) -> list[frozenset[tuple[str, int]]]:
    """For each hole, the tensors and dimensions that it indexes. Holes that index different
    dimensions hardly ever match, so such orders are not tried."""
    by_argument: list[set[tuple[str, int]]] = [set() for _ in range(arity)]
    for element in elements((Term(Fraction(1), factors=(template,)),)):
        for dim, index in enumerate(element.index):
            for hole in range(arity):
                if _hole(hole) in index.symbols:
                    by_argument[hole].add((element.tensor, dim))
    return [frozenset(places) for places in by_argument]


def _alike(left: frozenset[tuple[str, int]], right: frozenset[tuple[str, int]]) -> bool:
    """Whether two holes may match, by their places. A hole that indexes no tensor may match any."""
    return not left or not right or left == right


def _parse(way: str) -> tuple[int, tuple[int, ...]]:
    number, _, order = way.partition(":")
    return int(number), tuple(int(hole) for hole in order.split(",") if hole)


class _Holes:
    """Replaces the parts of indices that depend on outside indices by holes ``%h0, %h1, ...``.
    ``values``: the values of the holes in order."""

    def __init__(self, bound: frozenset[str]) -> None:
        self._bound = bound
        self.values: list[Poly] = []

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
        """An index that contains no inside index becomes one hole. So functions that read at
        different places in the same way have the same template, even if a place is constant."""
        return self._hole(value) if value.symbols.isdisjoint(inner) else self._poly(value, inner)

    def _hole(self, value: Poly) -> Poly:
        """The hole for a value, or its opposite for the opposite value. The value of a hole has a
        plus sign at the first outside index, whatever sizes are added to it."""
        signs = (c for m, c in value.terms if not self._bound.isdisjoint(m))
        sign = 1 if next(signs, 1) > 0 else -1
        if value * sign not in self.values:
            self.values.append(value * sign)
        return Poly.of(_hole(self.values.index(value * sign))) * sign

    def _poly(self, value: Poly, inner: frozenset[str]) -> Poly:
        """The value with its part that depends on outside indices as one hole. Raises Unproved if
        an outside index is multiplied by one that is summed inside."""
        outside = Poly.collect((m, c) for m, c in value.terms if not self._bound.isdisjoint(m))
        if not outside.terms:
            return value
        if not outside.symbols.isdisjoint(inner):
            raise Unproved(f"index {outside} mixes a summed index with one outside of the sum")
        return value - outside + self._hole(outside)


def _depth(function: Function) -> int:
    """The depth of nested functions, the function itself included."""
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
    """Yield the terms with guards on outside indices moved out of functions.

    ``f(a if c else b)`` is ``[c] f(a) + [not c] f(b)`` for any condition c on outside indices.
    """
    for term in form:
        yield from _split_term(term, free | bound_in(term))


def split_everywhere(form: NormalForm, free: frozenset[str]) -> NormalForm:
    """``case_split`` at every level, inside functions too. Each guard then stands where its indices
    are bound."""
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
    """The guards in a function's arguments that contain indices of ``bound`` and none of those that
    are summed inside. ``inner``: the indices summed inside, around this function."""
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
