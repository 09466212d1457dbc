"""The value of one output element of a graph, at symbolic indices, in normal form.

The equations of the operators are composed down to the graph's inputs. Indices into merged
dimensions are tuples of digits: an index that ranges over a product of sizes is written as
``outer * |inner| + inner`` from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.graph import Leaf, Value
from pcg.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Normalizer,
    Number,
    Symbol,
    Term,
    substitute_factor,
)
from pcg.operator import Call
from pcg.poly import Poly
from verifier.equations import local_form
from verifier.errors import TooLarge
from verifier.sizes import Sizes

MAX_TERMS = 4096


@dataclass(frozen=True)
class Index:
    """A free index of an output dimension: one variable per digit, each with its size."""

    digits: tuple[tuple[str, Poly], ...]

    @property
    def value(self) -> Poly:
        total = Poly()
        for name, size in self.digits:
            total = total * size + Poly.of(name)
        return total


def free_indices(sizes: Sizes, value: Value, prefix: str = "o") -> tuple[Index, ...]:
    """Symbolic indices into a value, ``o0, o1, ...``, with digits where dimensions are merged."""
    found: list[Index] = []
    for dim, size in enumerate(sizes.shape(value)):
        digits = sizes.digits(size)
        names = (
            [f"{prefix}{dim}"]
            if len(digits) == 1
            else [f"{prefix}{dim}_{i}" for i in range(len(digits))]
        )
        found.append(Index(tuple(zip(names, digits, strict=True))))
    return tuple(found)


@dataclass(frozen=True)
class Digit:
    """A side condition: ``0 <= value < size`` wherever the indices are in their ranges."""

    value: Poly
    size: Poly


class Meaning:
    """Composes equations. One object for both sides of a rule, so that no names clash.

    ``ranges`` has the size of every index variable that was made, ``conditions`` what has to hold
    for the digits that indices were split into.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._normalizer = Normalizer()
        self.ranges: dict[str, Poly] = {}
        self.conditions: dict[Digit, None] = {}

    def at(self, value: Value, index: tuple[Index, ...]) -> NormalForm:
        """The element of ``value`` at free indices."""
        self.ranges |= {name: size for i in index for name, size in i.digits}
        return self._at(value, tuple(i.value for i in index))

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
        """An element of an input, its indices into merged dimensions written digit by digit."""
        digits: list[Poly] = []
        for position, size in zip(index, self._sizes.shape(value), strict=True):
            digits += self._split_digits(position, self._sizes.digits(size))
        return Element(name, tuple(digits))

    def _split_digits(self, index: Poly, sizes: tuple[Poly, ...]) -> list[Poly]:
        found: list[Poly] = []
        for size in reversed(sizes[1:]):
            index, rest = divide(index, size)
            self.conditions[Digit(rest, size)] = None
            found.append(rest)
        return [index, *reversed(found)]

    def _split(
        self, names: tuple[str, ...], index: Poly, values: Mapping[str, Poly]
    ) -> dict[str, Poly]:
        """The index of a dimension as the index names of the equation."""
        sizes = tuple(values[f"|{name}|"] for name in names)
        return dict(zip(names, self._split_digits(index, sizes), strict=True))

    def _instantiate(self, form: NormalForm, values: Mapping[str, Poly], call: Call) -> NormalForm:
        """An operator's equation with indices, sizes and attributes put in, summed indices
        renamed, those over merged sizes as digits."""
        return tuple(self._instantiate_term(term, values, call) for term in form)

    def _instantiate_term(self, term: Term, values: Mapping[str, Poly], call: Call) -> Term:
        binders, images = self._bind(term.binders, values)
        coefficient = term.coefficient
        factors: list[Factor] = []
        for factor in term.factors:
            given = call.values[factor.name] if isinstance(factor, Symbol) else None
            if isinstance(factor, Function):
                args = tuple(self._instantiate_argument(a, images, call) for a in factor.args)
                factors += self._size_reciprocals(Function(factor.name, args))
            elif given is None:
                factors.append(substitute_factor(factor, images))
            elif isinstance(given, Poly):
                factors.append(Symbol(str(given)))
            else:
                coefficient *= Fraction(given)
        guards = tuple(guard.substitute(images) for guard in term.guards)
        return Term(coefficient, binders, guards, tuple(factors))

    def _instantiate_argument(
        self, argument: Argument, values: Mapping[str, Poly], call: Call
    ) -> Argument:
        binders, images = self._bind(argument.binders, values)
        guards = tuple(guard.substitute(images) for guard in argument.guards)
        return Argument(self._instantiate(argument.form, images, call), binders, guards)

    def _bind(
        self, binders: tuple[tuple[str, Poly], ...], values: Mapping[str, Poly]
    ) -> tuple[tuple[tuple[str, Poly], ...], dict[str, Poly]]:
        """Bound indices under new names, digit by digit, and what the old ones are in them."""
        images = dict(values)
        found: list[tuple[str, Poly]] = []
        for var, size in binders:
            digits = self._sizes.digits(size.substitute(images))
            names = [self._normalizer.fresh(var) for _ in digits]
            index = Index(tuple(zip(names, digits, strict=True)))
            self.ranges |= dict(index.digits)
            found += index.digits
            images[var] = index.value
        return tuple(found), images

    def _size_reciprocals(self, function: Function) -> tuple[Factor, ...]:
        """1 / (m * n) of sizes as 1/m * 1/n: sizes are positive. Other functions as they are."""
        size = _number(function.args[0].form) if function.name == "recip" else None
        if size is None or len(size.terms) != 1 or size.terms[0][1] != 1:
            return (function,)
        if not size.symbols.isdisjoint(self.ranges):
            return (function,)  # an index may be 0
        return tuple(
            Function.of("recip", (Term(Fraction(1), factors=(Number(Poly.of(symbol)),)),))
            for symbol in size.terms[0][0]
        )

    def _expand(self, form: NormalForm, operands: tuple[Value, ...]) -> NormalForm:
        """Replace elements of operands by their own meaning."""
        result: list[Term] = []
        for term in form:
            products: list[Term] = [replace(term, factors=())]
            for factor in term.factors:
                inner = self._expand_factor(factor, operands)
                products = [_times(left, right) for left in products for right in inner]
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


def _number(form: NormalForm) -> Poly | None:
    """The index or size that a value is, if it is just one."""
    if len(form) != 1 or len(form[0].factors) != 1 or not isinstance(form[0].factors[0], Number):
        return None
    number = form[0].factors[0]
    return number.index if form == (Term(Fraction(1), factors=(number,)),) else None


def _times(left: Term, right: Term) -> Term:
    """The product of terms whose summed indices are all different."""
    guards = left.guards + tuple(g for g in right.guards if g not in left.guards)
    return Term(
        left.coefficient * right.coefficient,
        left.binders + right.binders,
        guards,
        left.factors + right.factors,
    )


def divide(index: Poly, size: Poly) -> tuple[Poly, Poly]:
    """``index`` as (quotient, rest) by ``size``, term by term: exact as polynomials.

    The rest is the lower digit if it lies in [0, size), which the caller's indices satisfy.
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
    """Division by a sum of sizes: only indices written as ``outer * size + inner`` split."""
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
