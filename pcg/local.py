"""Which cuts an operator allows, derived from its equation (design, section 3).

A compute operator is local: each task computes its block of the output from its blocks of the
operands, at global indices. So an index may be cut where every access to a dimension it reads is
that index itself, and where it is an output index or the index of an outermost sum. Partials may
enter where every term reads exactly one element of the operands that carry them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from pcg.expr import Sum, accesses, walk
from pcg.language import Dimension, Equation, size_of
from pcg.normal import Element, Function, NormalForm, Normalizer, Term, elements
from pcg.poly import Poly


@dataclass(frozen=True)
class Axis:
    """An index that may be cut: where it stands in each operand and output, or None.

    None in an output means that the index is summed away there: its degree becomes partials.
    """

    name: str
    operands: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True)
class LocalTyping:
    """Everything the parallel type of an operator follows from."""

    axes: tuple[Axis, ...]
    carriers: tuple[frozenset[int], ...]
    """Sets of operands that may carry partials together."""

    def axis_at(self, operand: int, dim: int) -> Axis | None:
        """The index at a dimension of an operand, if that dimension may be cut."""
        return next((a for a in self.axes if a.operands[operand] == dim), None)


def derive(equation: Equation) -> LocalTyping:
    """The local typing of an equation."""
    forms = tuple(_form(equation, i) for i in range(len(equation.outputs)))
    axes = (_axis(equation, forms, name) for name in _candidates(equation, forms))
    return LocalTyping(tuple(a for a in axes if a), _carriers(equation, forms))


def _form(equation: Equation, output: int) -> NormalForm:
    def element(operand: int, index: tuple[Poly, ...]) -> NormalForm:
        return (Term(Fraction(1), factors=(Element(str(operand), index),)),)

    return Normalizer().normalize(equation.outputs[output].body, element)


def _candidates(equation: Equation, forms: tuple[NormalForm, ...]) -> list[str]:
    names = [dim.names[0] for output in equation.outputs for dim in output.dims]
    names += [var for form in forms for term in form for var, _ in term.binders]
    return list(dict.fromkeys(names))


def _axis(equation: Equation, forms: tuple[NormalForm, ...], name: str) -> Axis | None:
    outputs: list[int | None] = []
    for output, form in zip(equation.outputs, forms, strict=True):
        at = [i for i, dim in enumerate(output.dims) if name in dim.names]
        if at:
            if len(at) > 1 or output.dims[at[0]].names[0] != name:
                return None
            outputs.append(at[0])
        elif all(_summed_outermost(term, name) for term in form):
            outputs.append(None)
        else:
            return None
    positions = tuple(_position(equation, name, i) for i in range(len(equation.operands)))
    if -1 in positions or all(p is None for p in positions):
        return None
    return Axis(name, positions, tuple(outputs))


def _summed_outermost(term: Term, name: str) -> bool:
    """Whether the term is one sum over all of the index, which no other sum in it uses too.

    Of two sums over ``k`` that are multiplied, the normal form renames one (``k~1``). A cut of
    ``k`` would cut both, and a product of parts is no part of the product.
    """
    mine = [size for var, size in term.binders if var.split("~")[0] == name]
    return mine == [size_of(name)] and not any(name == var for var in _inner_binders(term))


def _inner_binders(term: Term) -> Iterator[str]:
    """The indices summed inside the functions of a term, by the name in the equation."""
    for factor in term.factors:
        if isinstance(factor, Function):
            yield from (var.split("~")[0] for arg in factor.args for var, _ in arg.binders)
            for inner in (inner for arg in factor.args for inner in arg.form):
                yield from (var.split("~")[0] for var, _ in inner.binders)
                yield from _inner_binders(inner)


def _position(equation: Equation, name: str, operand: int) -> int | None:
    """Where the index stands in the operand; None if nowhere; -1 if it forbids a cut."""
    found: int | None = None
    for position, dim in enumerate(equation.operands[operand].dims):
        read = {
            access.index[position]
            for output in equation.outputs
            for access in accesses(output.body)
            if access.operand == operand
        }
        if not any(name in index.symbols for index in read):
            continue
        lead = {_lead(equation, index, dim) for index in read}
        if found is not None or lead != {name}:
            return -1
        found = position
    return found


def _lead(equation: Equation, index: Poly, dim: Dimension) -> str | None:
    """The index that ``index`` runs through ``dim`` in the order of, if there is one: itself, or
    the first of a merged dimension of which the second runs through all."""
    name = index.symbol
    if name is not None and _size(equation, name) == dim.size:
        return name
    if len(dim.names) > 1 and index == dim.index:
        return dim.names[0]
    if len(dim.names) != 2:
        return None
    first, second = dim.names
    inner = (index - Poly.of(first) * size_of(second)).symbol
    sizes = _summed(equation)
    return first if inner is not None and sizes.get(inner) == size_of(second) else None


def _summed(equation: Equation) -> dict[str, Poly]:
    """The sizes of summed indices; none for a name that is summed over different sizes."""
    found: dict[str, set[Poly]] = {}
    for output in equation.outputs:
        for part in walk(output.body):
            if isinstance(part, Sum):
                found.setdefault(part.var, set()).add(part.size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def _size(equation: Equation, name: str) -> Poly:
    operand_names = {n for o in equation.operands for d in o.dims for n in d.names}
    if name in operand_names:
        return size_of(name)
    for bound, size in equation.bounds:
        if bound == name:
            return size
    return size_of(name)


def _carriers(equation: Equation, forms: tuple[NormalForm, ...]) -> tuple[frozenset[int], ...]:
    terms = [term for form in forms for term in form]
    operands = range(len(equation.operands))
    nonlinear = {
        int(e.tensor)
        for term in terms
        for f in term.factors
        if not isinstance(f, Element)
        for e in elements((Term(Fraction(1), factors=(f,)),))
    }
    linear = [o for o in operands if o not in nonlinear]
    reads = [[int(f.tensor) for f in term.factors if isinstance(f, Element)] for term in terms]
    return tuple(
        frozenset(chosen)
        for size in range(1, len(linear) + 1)
        for chosen in combinations(linear, size)
        if terms and all(sum(r in chosen for r in read) == 1 for read in reads)
    )
