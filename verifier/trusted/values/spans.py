"""Normalises the indices of sums: conditions become ranges, and short sums are written out.

Equal sums then have the same form.
- A condition on a summed index becomes the index's range, if that has at least one element for all
  sizes.
- An index with a short constant range that is multiplied by a symbol, such as the index of the two
  halves of a concat, is replaced by each of its values. Indices are then linear.
- An index with a range of one value is replaced by that value.

Exact, for all sizes. No solver is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pcg.language.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Term,
    substitute_argument,
    substitute_term,
)
from pcg.language.poly import Poly
from verifier.trusted.values.guards import are_possible

MAX_UNROLLED = 4
"""The longest range that is written out."""
IsSize = Callable[[Poly], bool]
"""Whether a polynomial is at least 1 for all sizes."""


def tightened(term: Term, is_size: IsSize) -> Term:
    """The same sum with conditions on summed indices turned into their ranges.

    For ``v < n`` and 1 <= m < n, the condition ``v < m`` leaves the range m. The condition ``v >=
    m`` leaves the range n - m, and v is replaced by v + m.
    """
    for guard in term.guards:
        for var, size in term.binders:
            coefficient = guard.coefficient(var).constant
            if coefficient not in (1, -1) or guard.degree_in(var) != 1:
                continue
            rest = guard - Poly.of(var) * coefficient
            bound = rest + 1 if coefficient == -1 else -rest
            inner = {name for name, _ in term.binders} | _defined(term)
            fits = inner.isdisjoint(bound.symbols | size.symbols)
            fits = fits and not any(n.mentions({var}) for _, n in term.binders)
            if fits and is_size(bound) and is_size(size - bound):
                return tightened(_narrowed(term, guard, var, bound), is_size)
    return term


def _narrowed(term: Term, guard: Poly, var: str, bound: Poly) -> Term:
    """The term without the guard ``var < bound`` or ``var >= bound``, its range narrowed."""
    below = guard.coefficient(var).constant == -1
    guards = tuple(g for g in term.guards if g != guard)
    binders = tuple((v, n if v != var else bound if below else n - bound) for v, n in term.binders)
    left = replace(term, guards=guards, binders=())
    moved = left if below else substitute_term(left, {var: Poly.of(var) + bound})
    return replace(moved, binders=binders)


def _defined(term: Term) -> set[str]:
    return {name for d in term.divisions for name in (d.quotient, d.rest)}


def unrolled(term: Term) -> NormalForm:
    """The same sum, with the values written out of each index that has a range of at most one
    value, or a short constant range and a product with a symbol."""
    for var, size in term.binders:
        count = size.constant
        if count is None or count > MAX_UNROLLED or not (count < 2 or _is_multiplied(var, term)):
            continue
        parts = (_at(term, var, value) for value in range(count))
        return tuple(
            summand for part in parts if are_possible(part.guards) for summand in unrolled(part)
        )
    return (term,)


def single(term: Term) -> Term:
    """The same sum without indices whose range is one value; they are 0."""
    for var, size in term.binders:
        if size.constant == 1:
            return single(_at(term, var, 0))
    return term


def single_argument(argument: Argument) -> Argument:
    """The same argument of a maximum without indices whose range is one value; they are 0."""
    ones = {var: Poly() for var, size in argument.binders if size.constant == 1}
    if not ones:
        return argument
    binders = tuple((v, n.substitute(ones)) for v, n in argument.binders if v not in ones)
    left = substitute_argument(replace(argument, binders=()), ones)
    return single_argument(replace(left, binders=binders))


def _at(term: Term, var: str, value: int) -> Term:
    """The term at one value of a summed index."""
    binders = tuple(binder for binder in term.binders if binder[0] != var)
    return substitute_term(replace(term, binders=binders), {var: Poly.of(value)})


def _is_multiplied(var: str, term: Term) -> bool:
    """Whether an index occurs in a product with another symbol, also inside functions."""
    values = (*term.guards, *(value for factor in term.factors for value in _indices(factor)))
    return any(var in m and set(m) != {var} for value in values for m, _ in value.terms)


def _indices(factor: Factor) -> Iterator[Poly]:
    """The indices and conditions in a factor, also inside functions."""
    match factor:
        case Element(_, index):
            yield from index
        case Number(index):
            yield index
        case Function(_, args):
            for argument in args:
                yield from argument.guards
                for term in argument.form:
                    yield from term.guards
                    for inner in term.factors:
                        yield from _indices(inner)
        case _:
            return
