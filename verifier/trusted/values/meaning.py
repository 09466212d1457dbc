"""Expands one output element of a graph, at symbolic indices, to a value in normal form.

Method: the equations of the operators are composed down to the graph's inputs. An index into a
merged dimension is a tuple of digits: an index whose range is a product of sizes is written as
``outer * |inner| + inner`` from the start. Another index into a merged dimension, such as one over
two merged dimensions side by side, gets digits that an equation defines (``Division``).
Exact.
Complexity: an operator is expanded once for each use; at most ``MAX_TERMS`` terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.graph.graph import Leaf, Value
from pcg.language.normal import (
    Argument,
    Division,
    Element,
    Factor,
    Function,
    NormalForm,
    Normalizer,
    Number,
    Symbol,
    Term,
    factor_symbols,
    substitute_factor,
    with_arguments,
)
from pcg.language.poly import ONE, Poly, Variable, product
from pcg.types.operator import Call
from verifier.trusted.errors import TooLarge
from verifier.trusted.sizes.sizes import Sizes
from verifier.trusted.values.equations import local_form
from verifier.trusted.values.simplify import times

MAX_TERMS = 4096


@dataclass(frozen=True)
class DigitIndex:
    """A free index of an output dimension: one variable per digit, each with its size."""

    digits: tuple[tuple[str, Poly], ...]

    @property
    def value(self) -> Poly:
        total = Poly()
        for name, size in self.digits:
            total = total * size + Poly.of(name)
        return total


def free_indices(sizes: Sizes, value: Value, prefix: str = "o") -> tuple[DigitIndex, ...]:
    """Symbolic indices into a value, ``%o0, %o1, ...``, with digits where dimensions are merged."""
    indices: list[DigitIndex] = []
    for dim, size in enumerate(sizes.shape(value)):
        digits = sizes.digits(size)
        names = (
            [Variable(f"%{prefix}{dim}")]
            if len(digits) == 1
            else [Variable(f"%{prefix}{dim}_{i}") for i in range(len(digits))]
        )
        indices.append(DigitIndex(tuple(zip(names, digits, strict=True))))
    return tuple(indices)


@dataclass(frozen=True)
class Digit:
    """A side condition: ``0 <= value < size`` wherever the indices are in their ranges."""

    value: Poly
    size: Poly


IsDigit = Callable[[Digit], bool]


class Meaning:
    """Expands values. One object serves both sides of a pair, so that no names clash.

    ``ranges`` receives the size of every index variable that is introduced. ``is_digit`` decides
    whether a value is known to be at least 0 and less than a size.
    """

    def __init__(self, sizes: Sizes, ranges: dict[str, Poly], is_digit: IsDigit) -> None:
        self._sizes = sizes
        self._normalizer = Normalizer()
        self._is_digit = is_digit
        self._ranges = ranges
        self._divisions: dict[tuple[Poly, Poly], Division] = {}

    def at(self, value: Value, index: tuple[DigitIndex, ...]) -> NormalForm:
        """Return the element of ``value`` at free indices. Raises TooLarge."""
        self._ranges |= {name: size for i in index for name, size in i.digits}
        form = self._at(value, tuple(i.value for i in index))
        if not self._divisions:
            return form
        free = frozenset(name for i in index for name, _ in i.digits)
        return _Definitions(tuple(self._divisions.values()), self._ranges).form(form, free)

    def _at(self, value: Value, index: tuple[Poly, ...]) -> NormalForm:
        node = value.node
        if isinstance(node.call, Leaf):
            return (Term(Fraction(1), factors=(self._element(value, node.call.name, index),)),)
        call: Call = node.call
        shapes = [self._sizes.shape(v) for v in node.inputs]
        ranks = tuple(len(shape) for shape in shapes)
        output = call.instance(ranks).outputs[value.port]
        named = self._sizes.named(call, shapes)
        values = {name: self._sizes.resolve(size) for name, size in named.items()}
        for dim, position in zip(output.dims, index, strict=True):
            values |= self._split(dim.names, position, values)
        local = local_form(call.operator, ranks, call.positions, value.port)
        return self._expand(self._instantiate(local, values, call), node.inputs)

    def _element(self, value: Value, name: str, index: tuple[Poly, ...]) -> Element:
        """An element of an input, with each index into a merged dimension as its digits."""
        digits: list[Poly] = []
        for position, size in zip(index, self._sizes.shape(value), strict=True):
            digits += self._split_digits(position, self._sizes.digits(size))
        return Element(name, tuple(digits))

    def _split_digits(self, index: Poly, sizes: tuple[Poly, ...]) -> list[Poly]:
        """The digits of an index, outermost first. For an index out of range they may be anything,
        since a guard excludes the element that is read there."""
        digits: list[Poly] = []
        above = [product(sizes[:i]) for i in range(1, len(sizes))]
        for size, left in zip(reversed(sizes[1:]), reversed(above), strict=True):
            if left == ONE:
                index, rest = Poly(), index
            else:
                quotient, rest = divide(index, size)
                if not self._is_digit(Digit(rest, size)):
                    quotient, rest = self._defined(index, size)
                index = quotient
            digits.append(rest)
        return [index, *reversed(digits)]

    def _defined(self, index: Poly, size: Poly) -> tuple[Poly, Poly]:
        """Quotient and rest as new indices that a ``Division`` defines, the same for the same index
        and size."""
        known = self._divisions.get((index, size))
        if known is None:
            known = Division(
                self._normalizer.fresh("quotient"), self._normalizer.fresh("rest"), index, size
            )
            self._divisions[index, size] = known
        return Poly.of(known.quotient), Poly.of(known.rest)

    def _split(
        self, names: tuple[str, ...], index: Poly, values: Mapping[str, Poly]
    ) -> dict[str, Poly]:
        """The index names of a dimension with their values, by the digits of its index."""
        sizes = tuple(values[f"|{name}|"] for name in names)
        return dict(zip(names, self._split_digits(index, sizes), strict=True))

    def _instantiate(self, form: NormalForm, values: Mapping[str, Poly], call: Call) -> NormalForm:
        """An operator's equation with values for its indices, sizes and attributes. Summed indices
        get new names, and digits if their range is a merged size."""
        return tuple(self._instantiate_term(term, values, call) for term in form)

    def _instantiate_term(self, term: Term, values: Mapping[str, Poly], call: Call) -> Term:
        binders, images = self._bind(term.binders, values)
        coefficient = term.coefficient
        factors: list[Factor] = []
        for factor in term.factors:
            attribute = call.values[factor.name] if isinstance(factor, Symbol) else None
            if isinstance(factor, Function):
                args = tuple(self._instantiate_argument(a, images, call) for a in factor.args)
                factors.append(Function(factor.name, args))
            elif attribute is None:
                factors.append(substitute_factor(factor, images))
            elif isinstance(attribute, Poly):
                number, symbols = self._scalars(attribute)
                coefficient *= number
                factors += symbols
            else:
                coefficient *= Fraction(attribute)
        guards = tuple(guard.substitute(images) for guard in term.guards)
        return Term(coefficient, binders, guards, tuple(factors))

    def _scalars(self, given: Poly) -> tuple[Fraction, list[Factor]]:
        """A real attribute as a coefficient and factors. Symbols that are sizes become numbers."""
        if len(given.terms) != 1:
            return Fraction(1), [Symbol(str(given))]
        ((monomial, coefficient),) = given.terms
        sizes = {symbol for size in self._sizes.naturals for symbol in size.symbols}
        factors: list[Factor] = []
        for symbol in monomial:
            if symbol in sizes or symbol.startswith("|"):
                factors.append(Number(self._sizes.resolve(Poly.of(symbol))))
            else:
                factors.append(Symbol(symbol))
        return Fraction(coefficient), factors

    def _instantiate_argument(
        self, argument: Argument, values: Mapping[str, Poly], call: Call
    ) -> Argument:
        binders, images = self._bind(argument.binders, values)
        guards = tuple(guard.substitute(images) for guard in argument.guards)
        return Argument(self._instantiate(argument.form, images, call), binders, guards)

    def _bind(
        self, binders: tuple[tuple[str, Poly], ...], values: Mapping[str, Poly]
    ) -> tuple[tuple[tuple[str, Poly], ...], dict[str, Poly]]:
        """Bound indices under new names, one for each digit, and ``values`` with the old names in
        terms of the new."""
        images = dict(values)
        bound: list[tuple[str, Poly]] = []
        for var, size in binders:
            digits = self._sizes.digits(size.substitute(images))
            names = [self._normalizer.fresh(var) for _ in digits]
            index = DigitIndex(tuple(zip(names, digits, strict=True)))
            self._ranges |= dict(index.digits)
            bound += index.digits
            images[var] = index.value
        return tuple(bound), images

    def _expand(self, form: NormalForm, operands: tuple[Value, ...]) -> NormalForm:
        """Replace each element of an operand by its expansion. Raises TooLarge."""
        result: list[Term] = []
        for term in form:
            products: list[Term] = [replace(term, factors=())]
            for factor in term.factors:
                inner = self._expand_factor(factor, operands)
                products = [times(left, right) for left in products for right in inner]
                if len(products) > MAX_TERMS:
                    raise TooLarge(f"more than {MAX_TERMS} terms")
            result += products
        return tuple(result)

    def _expand_factor(self, factor: Factor, operands: tuple[Value, ...]) -> NormalForm:
        if isinstance(factor, Element):
            return self._at(operands[int(factor.tensor)], factor.index)
        if isinstance(factor, Function):
            args = (replace(a, form=self._expand(a.form, operands)) for a in factor.args)
            factor = Function(factor.name, tuple(args))
        return (Term(Fraction(1), factors=(factor,)),)


@dataclass(frozen=True)
class _Definitions:
    """Attaches each division to the outermost term in which all indices of it are bound.

    A division has exactly one solution wherever it is attached, so moving it changes no value.
    """

    divisions: tuple[Division, ...]
    ranges: Mapping[str, Poly]

    def form(self, form: NormalForm, scope: frozenset[str]) -> NormalForm:
        """The value with its divisions attached. ``scope``: the indices bound around it."""
        return tuple(self._term(term, scope) for term in form)

    def _term(self, term: Term, scope: frozenset[str]) -> Term:
        scope = scope.union(var for var, _ in term.binders)
        here: list[Division] = []
        for division in self._used(term):
            if division.quotient not in scope and self._is_bound(division.index, scope):
                here.append(division)
                scope = scope.union((division.quotient, division.rest))
        factors = with_arguments(term.factors, lambda a: self._argument(a, scope))
        return replace(term, factors=factors, divisions=tuple(here))

    def _argument(self, argument: Argument, scope: frozenset[str]) -> Argument:
        scope = scope.union(var for var, _ in argument.binders)
        return replace(argument, form=self.form(argument.form, scope))

    def _used(self, term: Term) -> list[Division]:
        """The divisions that a term needs. Each depends on earlier ones only."""
        used = {symbol for guard in term.guards for symbol in guard.symbols}
        used.update(*(factor_symbols(factor) for factor in term.factors))
        needed: list[Division] = []
        for division in reversed(self.divisions):
            if not used.isdisjoint((division.quotient, division.rest)):
                used |= division.index.symbols
                needed.append(division)
        return needed[::-1]

    def _is_bound(self, index: Poly, scope: frozenset[str]) -> bool:
        defined = {name for d in self.divisions for name in (d.quotient, d.rest)}
        return all(s in scope or (s not in self.ranges and s not in defined) for s in index.symbols)


def divide(index: Poly, size: Poly) -> tuple[Poly, Poly]:
    """Polynomials (quotient, rest) with ``index = quotient * size + rest``.

    They are the digits of the index if the rest lies in [0, size), which the caller has to show.
    """
    if len(size.terms) != 1:
        return _divide_sum(index, size)
    (divisor, factor) = size.terms[0]
    quotient: list[tuple[tuple[str, ...], int]] = []
    rest: list[tuple[tuple[str, ...], int]] = []
    for monomial, coefficient in index.terms:
        left = _remove(monomial, divisor)
        if left is None or coefficient % factor:
            rest.append((monomial, coefficient))
        else:
            quotient.append((left, coefficient // factor))
    return Poly.collect(quotient), Poly.collect(rest)


def _divide_sum(index: Poly, size: Poly) -> tuple[Poly, Poly]:
    """``divide`` by a sum of sizes: splits indices of the form ``outer * size + inner`` only."""
    lead, factor = size.terms[-1]
    candidates = Poly.collect(
        (left, c // factor)
        for m, c in index.terms
        if (left := _remove(m, lead)) is not None and c % factor == 0 and left
    )
    return candidates, index - candidates * size


def _remove(monomial: tuple[str, ...], divisor: tuple[str, ...]) -> tuple[str, ...] | None:
    left = list(monomial)
    for symbol in divisor:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)
