"""Brings an operator's equation into normal form, ready to be composed.

An element outside of an operand is 0. A term that may read outside gets guards that exclude it.
Without them, an operand that is composed of ``exp``, for example, would be read as ``exp(0)``
there, not as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from pcg.language.equation import Dimension, Equation, size_of
from pcg.language.normal import Argument, Element, NormalForm, Normalizer, Term, with_arguments
from pcg.language.poly import Poly, product
from pcg.types.operator import Operator


@lru_cache(maxsize=4096)
def local_form(
    operator: Operator, ranks: tuple[int, ...], positions: tuple[int, ...], port: int
) -> NormalForm:
    """The value of one output of an operator. Elements are named by the number of their operand;
    indices and sizes are named as in the equation."""
    equation = operator.instance(ranks, positions)
    output = equation.outputs[port]
    form = Normalizer().normalize(output.body, _operand_element)
    bounds = dict(equation.bounds)
    ranges = {n: bounds.get(n, size_of(n)) for dim in output.dims for n in dim.names}
    return _BoundsGuards(equation, bounds).form(form, ranges, frozenset())


def _operand_element(operand: int, index: tuple[Poly, ...]) -> NormalForm:
    return (Term(Fraction(1), factors=(Element(str(operand), index),)),)


@dataclass(frozen=True)
class _BoundsGuards:
    """Adds guards to terms that may read outside of an operand."""

    equation: Equation
    bounds: Mapping[str, Poly]

    def form(
        self, form: NormalForm, ranges: Mapping[str, Poly], known: frozenset[Poly]
    ) -> NormalForm:
        """The value with its guards. ``ranges``: the sizes of the indices in scope. ``known``: the
        guards that hold around the value."""
        return tuple(self._term(term, ranges, known) for term in form)

    def _term(self, term: Term, ranges: Mapping[str, Poly], known: frozenset[Poly]) -> Term:
        ranges = {**ranges, **dict(term.binders)}
        known = known.union(term.guards, (size - 1 - Poly.of(v) for v, size in ranges.items()))
        factors = with_arguments(term.factors, lambda a: self._argument(a, ranges, known))
        read = (f for f in term.factors if isinstance(f, Element))
        missing = (g for element in read for g in self._conditions(element, ranges))
        new = dict.fromkeys(g for g in missing if g not in known)
        return replace(term, guards=(*term.guards, *new), factors=factors)

    def _argument(
        self, argument: Argument, ranges: Mapping[str, Poly], known: frozenset[Poly]
    ) -> Argument:
        ranges = {**ranges, **dict(argument.binders)}
        known = known.union(argument.guards, (n - 1 - Poly.of(v) for v, n in ranges.items()))
        return replace(argument, form=self.form(argument.form, ranges, known))

    def _conditions(self, element: Element, ranges: Mapping[str, Poly]) -> Iterator[Poly]:
        """The values that have to be at least 0 for an element to lie inside its operand."""
        dims = self.equation.operands[int(element.tensor)].dims
        for index, dim in zip(element.index, dims, strict=True):
            if index == dim.index and self._runs_through(dim, ranges):
                continue
            if any(coefficient < 0 for _, coefficient in index.terms):
                yield index
            yield product(map(self._size, dim.names)) - 1 - index

    def _runs_through(self, dim: Dimension, ranges: Mapping[str, Poly]) -> bool:
        """Whether the indices of a dimension have exactly the sizes of the dimension."""
        return all(ranges.get(name) in (size_of(name), self._size(name)) for name in dim.names)

    def _size(self, name: str) -> Poly:
        return self.bounds.get(name, size_of(name))
