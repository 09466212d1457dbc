"""Infers symbolic shapes: the sizes of every tensor of a pair, and the equations that they satisfy.

An input ``x`` has sizes ``|x.0|, |x.1|, ...``. Equations between sizes are solved by substitution;
what remains is that every size is at least 1. Sizes that are products keep the order of their
factors, so that indices into them can be written as digits and nothing is ever divided. The widths
of halos may be 0, and are at least what windows read.

An equation that substitution does not solve, such as one between two products, waits until others
are solved. What is still open then holds wherever both sides are typed, as every other does: it is
a hypothesis that solvers are given (``Sizes.open``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from math import gcd

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.language.poly import ONE, Poly, Variable, product
from pcg.types.halo import demands
from pcg.types.operator import Call
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.degrees import halos_of

MAX_AROUND = 2
"""How deep the digits of sizes are looked for in those of others."""
SymbolicShape = tuple[Poly, ...]
SizeEquation = tuple[Poly, Poly]
"""Two sizes that are equal."""


def input_size(name: str, dim: int) -> str:
    """The symbol of an input's size."""
    return f"|{name}.{dim}|"


@dataclass
class Sizes:
    """Sizes under construction: equations solved so far and the sizes that have to be positive."""

    solved: dict[str, Poly] = field(default_factory=dict[str, Poly])
    positive: list[Poly] = field(default_factory=list[Poly])
    naturals: list[Poly] = field(default_factory=list[Poly])
    """The attributes that are sizes, and the symbols in them; they may be 0, as may the widths of
    halos and what these are more than ``least``."""
    least: list[tuple[Poly, Poly]] = field(default_factory=list[tuple[Poly, Poly]])
    """The widths of halos with what they are at least."""
    shapes: dict[Node, tuple[SymbolicShape, ...]] = field(
        default_factory=dict[Node, tuple[SymbolicShape, ...]]
    )
    orders: list[tuple[Poly, ...]] = field(default_factory=list[tuple[Poly, ...]])
    """Factors, outermost first, of the sizes of merged dimensions."""
    quotients: dict[tuple[Call, tuple[SymbolicShape, ...], str], Poly] = field(
        default_factory=dict[tuple[Call, tuple[SymbolicShape, ...], str], Poly]
    )
    """The sizes of indices that are what others leave of a merged dimension."""
    open: list[SizeEquation] = field(default_factory=list[SizeEquation])
    """The equations that are demanded and not solved."""

    @staticmethod
    def where(equations: Sequence[SizeEquation]) -> Sizes:
        """Nothing known but that some sizes are equal. Raises Unsolvable."""
        sizes = Sizes()
        for left, right in equations:
            sizes.demand(left, right)
        return sizes

    @property
    def zeros(self) -> tuple[Poly, ...]:
        """What is 0 by the equations that are not solved."""
        differences = (self.resolve(left) - self.resolve(right) for left, right in self.open)
        return tuple(dict.fromkeys(difference for difference in differences if difference.terms))

    def demand(self, left: Poly, right: Poly) -> None:
        """Demand that two sizes are equal, if need be as an equation that stays open. Raises
        Unsolvable."""
        self.open.append((left, right))
        while self._solve_some() or self._combine_some():
            pass

    def _solve_some(self) -> bool:
        """Solve open equations; whether a symbol was solved for."""
        solved, waiting = len(self.solved), self.open
        self.open = []
        for equation in waiting:
            try:
                self.equal(*equation)
            except Undecided:
                self.open.append(equation)
        return bool(self.open) and len(self.solved) > solved

    def _combine_some(self) -> bool:
        """Solve what follows from two open equations without a product that both have; whether a
        symbol was solved for."""
        for a, b in combinations(self.zeros, 2):
            for shared, number in a.terms:
                other = dict(b.terms).get(shared)
                if len(shared) < 2 or other is None:
                    continue
                with suppress(Undecided):
                    solved = len(self.solved)
                    self.equal(a * other, b * number)
                    if len(self.solved) > solved:
                        return True
        return False

    def equation(self, symbol: str) -> str:
        """What a symbol is solved for, to read: ``|x.0| = |y.1|``, or ``2 divides |x.0|``."""
        value = self.resolve(self.solved[symbol])
        quotients = {q.symbol: q for q in self.quotients.values() if q.symbol}
        rest = [s for s in value.symbols if s in quotients]
        if len(value.terms) == 1 and len(rest) == 1:
            divisor = value.over(Poly.of(rest[0]))
            return f"{divisor} divides {symbol}"
        return f"{symbol} = {value}"

    def resolve(self, size: Poly) -> Poly:
        """A size in terms of symbols that are not solved for."""
        while size.mentions(self.solved):
            size = size.substitute(self.solved)
        return size

    def equal(self, left: Poly, right: Poly) -> None:
        """Demand that two sizes are equal. Raises Unsolvable, or Undecided."""
        if left == right:
            return
        difference = self._primitive(self.resolve(left) - self.resolve(right))
        if not difference.terms:
            return
        if _one_sign(difference):
            if any(all(map(self._is_positive, m)) for m, _ in difference.terms):
                raise Unsolvable(f"{left} = {right} has no solution")
            self._vanish(difference)
            return
        if (ones := _unit_factors(difference)) is not None:
            self.solved |= dict.fromkeys(ones, ONE)
            return
        symbol = _isolated(difference)
        if symbol is None:
            raise Undecided(f"{left} = {right} is beyond substitution")
        coefficient = difference.coefficient(symbol)
        rest = difference - coefficient * Poly.of(symbol)
        self.solved[symbol] = -rest if coefficient.constant == 1 else rest

    def _vanish(self, total: Poly) -> None:
        """Demand that a sum of products without minus signs is 0: each product is, for no symbol is
        negative. Raises Undecided where one has several factors that may be 0."""
        for monomial, _ in total.terms:
            left = {symbol for symbol in monomial if not self._is_positive(symbol)}
            if len(left) > 1:
                raise Undecided(f"{total} = 0 is beyond substitution")
        for monomial, _ in total.terms:
            for symbol in (s for s in monomial if not self._is_positive(s)):
                self.solved[symbol] = Poly()

    def at_least(self, size: Poly, bound: Poly) -> None:
        """Demand that a size is no less than another. Raises Unsolvable."""
        size, bound = self.resolve(size), self.resolve(bound)
        more = size - bound
        if more.constant is not None and more.constant < 0:
            raise Unsolvable(f"{size} >= {bound} has no solution")
        if more.constant is None and more not in self.naturals:
            self.least.append((size, bound))
            self.naturals.append(more)

    def _primitive(self, difference: Poly) -> Poly:
        """A difference without the factors of all its terms that cannot be 0: numbers, sizes."""
        if not difference.terms:
            return difference
        factor = gcd(*(c for _, c in difference.terms))
        common = reduce(Counter.__and__, (Counter(m) for m, _ in difference.terms))
        for symbol in list(common):
            if not self._is_positive(symbol):
                del common[symbol]
        return Poly.collect(
            (tuple(sorted((Counter(m) - common).elements())), c // factor)
            for m, c in difference.terms
        )

    def _is_positive(self, symbol: str) -> bool:
        """Whether a symbol cannot be 0: a size, or what divides one."""
        if symbol.startswith("|"):
            return True
        sizes = (self.resolve(size).terms for size in self.positive)
        return any(len(terms) == 1 and symbol in terms[0][0] for terms in sizes)

    def visit(self, node: Node) -> tuple[SymbolicShape, ...]:
        """The shapes of a node's outputs; its operands have been visited."""
        if node in self.shapes:
            return self.shapes[node]
        if isinstance(node.call, Leaf):
            shape = tuple(Poly.of(input_size(node.call.name, i)) for i in range(node.call.rank))
            shapes: tuple[SymbolicShape, ...] = (shape,)
        else:
            shapes = self._outputs(node.call, [self.shape(value) for value in node.inputs])
            self._halos(node)
        for size in (size for shape in shapes for size in shape):
            self.positive.append(size)
        self.shapes[node] = shapes
        return shapes

    def _halos(self, node: Node) -> None:
        """Demand what the windows of an operator ask of the halos that they slide over."""
        call = node.operator_call
        widths = (w for h in halos_of(node.value()) for w in (h.before, h.after))
        self.naturals += [w for w in widths if w.symbols and w not in self.naturals]
        shapes = [self.shape(value) for value in node.inputs]
        halos = [halos_of(value) for value in node.inputs]
        for demand in demands(call, [len(shape) for shape in shapes], halos):
            reach, named = demand.reach, self.named(call, shapes)
            self.demand(shapes[reach.operand][reach.dim], demand.covered.substitute(named))
            for _, have, need in demand.widths:
                self.at_least(have, need.substitute(named))

    def visit_all(self, outputs: Sequence[Value]) -> None:
        """Visit everything that some values depend on."""
        for node in Graph(tuple(outputs)).nodes:
            self.visit(node)

    def shape(self, value: Value) -> SymbolicShape:
        return self.shapes[value.node][value.port]

    def named(self, call: Call, shapes: Sequence[SymbolicShape]) -> dict[str, Poly]:
        """The size of every index of an operator, as ``|name|``, and its size attributes."""
        equation = call.instance(tuple(len(shape) for shape in shapes))
        sizes = {name: Poly.of(_integral(call, name)) for name in call.operator.sizes}
        symbols = [Poly.of(s) for v in sizes.values() for s in sorted(v.symbols) if s[0] != "|"]
        for value in (*symbols, *sizes.values()):
            if value.symbols and value not in self.naturals:
                self.naturals.append(value)
        for operand, shape in zip(equation.operands, shapes, strict=True):
            for dim, size in zip(operand.dims, shape, strict=True):
                if len(dim.names) == 1:
                    sizes.setdefault(f"|{dim.names[0]}|", size)
        for name, bound in equation.bounds:
            if bound.symbols <= sizes.keys():
                sizes[f"|{name}|"] = bound.substitute(sizes)
        for quotient in equation.quotients:
            key = (call, tuple(shapes), quotient.name)
            if key not in self.quotients:
                size = shapes[quotient.operand][quotient.position]
                self.quotients[key] = self._quotient(size, quotient.divisor.substitute(sizes))
            sizes[f"|{quotient.name}|"] = self.quotients[key]
        for name, bound in equation.bounds:
            sizes[f"|{name}|"] = bound.substitute(sizes)
        return sizes

    def _outputs(self, call: Call, shapes: Sequence[SymbolicShape]) -> tuple[SymbolicShape, ...]:
        equation = call.instance(tuple(len(shape) for shape in shapes))
        sizes = self.named(call, shapes)
        for operand, shape in zip(equation.operands, shapes, strict=True):
            for dim, size in zip(operand.dims, shape, strict=True):
                self.demand(size, dim.size.substitute(sizes))
                self._order(dim.names, sizes)
        for output in equation.outputs:
            for dim in output.dims:
                self._order(dim.names, sizes)
        return tuple(
            tuple(dim.size.substitute(sizes) for dim in output.dims) for output in equation.outputs
        )

    def _quotient(self, size: Poly, divisor: Poly) -> Poly:
        """``size / divisor``: as a polynomial, or a new size that makes up the rest."""
        size, divisor = self.resolve(size), self.resolve(divisor)
        exact = size.over(divisor)
        if exact is not None:
            return exact
        quotient = Poly.of(Variable(f"|({_part(size)} / {_part(divisor)})|"))
        self.positive.append(quotient)
        self.demand(size, divisor * quotient)
        return quotient

    def _order(self, names: tuple[str, ...], sizes: dict[str, Poly]) -> None:
        if len(names) > 1:
            self.orders.append(tuple(sizes[f"|{name}|"] for name in names))

    def digits(self, size: Poly) -> tuple[Poly, ...]:
        """The factors of a merged size, outermost first; the size alone if it is not merged. A size
        may be the product of digits that stand side by side in another, too."""
        orders = tuple(tuple(map(self.resolve, order)) for order in self.orders)
        return _digits(self.resolve(size), orders, ())


def _digits(
    size: Poly, orders: tuple[tuple[Poly, ...], ...], around: tuple[Poly, ...]
) -> tuple[Poly, ...]:
    """The digits of a size, as ``orders`` have them; ``around`` are the sizes of which it is asked
    for the digits, which are not asked for again."""
    for factors in orders:
        proper = all(factor.constant != 1 and factor != size for factor in factors)
        if proper and len(factors) > 1 and product(factors) == size:
            return tuple(d for factor in factors for d in _digits(factor, orders, around))
    if sum(len(monomial) for monomial, _ in size.terms) < 2 or len(around) > MAX_AROUND:
        return (size,)
    for factors in orders:
        if any(factor.constant == 1 or factor in (size, *around) for factor in factors):
            continue
        digits = [d for factor in factors for d in _digits(factor, orders, (*around, size))]
        for start, end in combinations(range(len(digits) + 1), 2):
            if end - start > 1 and product(digits[start:end]) == size:
                return tuple(digits[start:end])
    return (size,)


def _part(size: Poly) -> str:
    """A size in the name of another: without bars, in brackets where it has several parts."""
    text = str(size).replace("|", "")
    return text if size.symbol or size.constant is not None else f"({text})"


def different_ranks(left: Sequence[Value], right: Sequence[Value]) -> str:
    """Which of the paired values have different ranks, or halos elsewhere, in words."""
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.rank != b.rank:
            return f"output {number} has rank {a.rank} on the left, {b.rank} on the right"
        if different := {h.dim for h in halos_of(a)} ^ {h.dim for h in halos_of(b)}:
            return f"output {number} has a halo in dimension {min(different)} on one side only"
    return ""


def pair_sizes(
    left: Sequence[Value],
    right: Sequence[Value],
    equal: Sequence[SizeEquation],
    *,
    carry: bool = False,
) -> tuple[Sizes, tuple[str, ...]]:
    """The sizes of two sides whose outputs have equal shapes, and what the right side asks of them
    beyond the left. Raises Unsolvable, OperatorError where a side has no shape, and Undecided where
    an equation stays open, unless what follows can ``carry`` it."""
    sizes = Sizes.where(equal)
    sizes.visit_all(left)
    before, held = frozenset(sizes.solved), len(sizes.least)
    stated = frozenset(sizes.open)
    sizes.visit_all(right)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(sizes.shape(a), sizes.shape(b), strict=True):
            sizes.demand(x, y)
        for x, y in zip(halos_of(a), halos_of(b), strict=True):
            sizes.demand(x.before, y.before)
            sizes.demand(x.after, y.after)
    if sizes.open and not carry:
        raise Undecided(f"{sizes.open[0][0]} = {sizes.open[0][1]} is beyond substitution")
    asked = [sizes.equation(s) for s in sizes.solved if s not in before]
    asked += [
        f"{sizes.resolve(a)} = {sizes.resolve(b)}" for a, b in sizes.open if (a, b) not in stated
    ]
    asked += [f"{sizes.resolve(a)} >= {sizes.resolve(b)}" for a, b in sizes.least[held:]]
    return sizes, tuple(dict.fromkeys(asked))


def _integral(call: Call, name: str) -> Poly | int:
    value = call.values[name]
    if isinstance(value, float):
        raise OperatorError(call.name, "*", None, f"attribute {name} is {value}, not an integer")
    return value


def _isolated(difference: Poly) -> str | None:
    """A symbol that can be solved for: alone in its monomial, with coefficient 1 or -1.

    A symbol whose opposite side keeps only positive terms is preferred, so that substitution
    does not introduce differences where a sum would do.
    """
    options: list[tuple[int, str]] = []
    for monomial, coefficient in difference.terms:
        if len(monomial) != 1 or abs(coefficient) != 1:
            continue
        symbol = monomial[0]
        if sum(symbol in m for m, _ in difference.terms) > 1:
            continue
        mixed = sum(c * coefficient > 0 for m, c in difference.terms if m != monomial)
        options.append((mixed, symbol))
    return min(options)[1] if options else None


def _unit_factors(difference: Poly) -> list[str] | None:
    """The factors of a product that is demanded to be 1: as none is negative, each is 1."""
    terms = dict(difference.terms)
    number = terms.pop((), 0)
    if len(terms) != 1 or abs(number) != 1 or list(terms.values()) != [-number]:
        return None
    return sorted(set(next(iter(terms))))


def _one_sign(difference: Poly) -> bool:
    """Whether all terms have one sign: as no symbol is negative, its being 0 means that all are."""
    signs = {coefficient > 0 for _, coefficient in difference.terms}
    return len(signs) == 1
