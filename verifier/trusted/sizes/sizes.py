"""Infers symbolic shapes: the sizes of every tensor of a pair, and the equations that they satisfy.

An input ``x`` has sizes ``|x.0|, |x.1|, ...``. Equations between sizes are solved by substitution.
The conditions that remain say that every size is at least 1. A size that is a product keeps the
order of its factors, so that an index into it is written as digits and nothing is ever divided. The
width of a halo may be 0, and is at least the width that windows read.

An equation that substitution does not solve, such as one between two products, waits until others
are solved. An equation that is still open at the end holds, like every other, wherever both sides
are typed. Solvers are given it as a hypothesis (``Sizes.open``).
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
"""How many sizes deep ``_digits`` looks for the digits of a size among those of other sizes."""
SymbolicShape = tuple[Poly, ...]
SizeEquation = tuple[Poly, Poly]
"""Two sizes that are equal."""


def input_size(name: str, dim: int) -> str:
    """The symbol of an input's size."""
    return f"|{name}.{dim}|"


@dataclass
class Sizes:
    """The sizes of a graph's tensors, under construction. ``solved``: the symbols that equations
    are solved for; ``positive``: values of at least 1."""

    solved: dict[str, Poly] = field(default_factory=dict[str, Poly])
    positive: list[Poly] = field(default_factory=list[Poly])
    naturals: list[Poly] = field(default_factory=list[Poly])
    """The values that are at least 0: attributes that are sizes and the symbols in them, the widths
    of halos, and the differences between these widths and their lower bounds in ``least``."""
    least: list[tuple[Poly, Poly]] = field(default_factory=list[tuple[Poly, Poly]])
    """(width of a halo, its lower bound)."""
    shapes: dict[Node, tuple[SymbolicShape, ...]] = field(
        default_factory=dict[Node, tuple[SymbolicShape, ...]]
    )
    orders: list[tuple[Poly, ...]] = field(default_factory=list[tuple[Poly, ...]])
    """For each merged dimension, the factors of its size, outermost first."""
    quotients: dict[tuple[Call, tuple[SymbolicShape, ...], str], Poly] = field(
        default_factory=dict[tuple[Call, tuple[SymbolicShape, ...], str], Poly]
    )
    """The sizes of indices that are a merged size divided by its other factors."""
    open: list[SizeEquation] = field(default_factory=list[SizeEquation])
    """The demanded equations that are not solved."""

    @staticmethod
    def where(equations: Sequence[SizeEquation]) -> Sizes:
        """The sizes of no graph yet, under some equations. Raises Unsolvable if these fail."""
        sizes = Sizes()
        for left, right in equations:
            sizes.demand(left, right)
        return sizes

    @property
    def zeros(self) -> tuple[Poly, ...]:
        """The values that have to be 0 by the equations that are not solved."""
        differences = (self.resolve(left) - self.resolve(right) for left, right in self.open)
        return tuple(dict.fromkeys(difference for difference in differences if difference.terms))

    def demand(self, left: Poly, right: Poly) -> None:
        """Demand that two sizes are equal; the equation stays open if substitution does not solve
        it. Raises Unsolvable if it has no solution."""
        self.open.append((left, right))
        while self._solve_some() or self._combine_some():
            pass

    def _solve_some(self) -> bool:
        """Solve open equations. Return whether some are left and a symbol was solved for."""
        solved, waiting = len(self.solved), self.open
        self.open = []
        for equation in waiting:
            try:
                self.equal(*equation)
            except Undecided:
                self.open.append(equation)
        return bool(self.open) and len(self.solved) > solved

    def _combine_some(self) -> bool:
        """Eliminate a product of symbols that two open equations share, and solve the equation that
        is left. Return whether a symbol was solved for."""
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
        """The equation that solves a symbol, as text: ``|x.0| = |y.1|``, ``2 divides |x.0|``."""
        value = self.resolve(self.solved[symbol])
        quotients = {q.symbol: q for q in self.quotients.values() if q.symbol}
        rest = [s for s in value.symbols if s in quotients]
        if len(value.terms) == 1 and len(rest) == 1:
            divisor = value.over(Poly.of(rest[0]))
            return f"{divisor} divides {symbol}"
        return f"{symbol} = {value}"

    def resolve(self, size: Poly) -> Poly:
        """The same size with solved symbols replaced by their values."""
        while size.mentions(self.solved):
            size = size.substitute(self.solved)
        return size

    def equal(self, left: Poly, right: Poly) -> None:
        """Demand that two sizes are equal. Raises Unsolvable if they cannot be, and Undecided if
        substitution does not solve the equation."""
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
        """Demand that a sum of products, all of one sign, is 0. Then each product is 0, since no
        symbol is negative. Raises Undecided if a product has several factors that may be 0."""
        for monomial, _ in total.terms:
            left = {symbol for symbol in monomial if not self._is_positive(symbol)}
            if len(left) > 1:
                raise Undecided(f"{total} = 0 is beyond substitution")
        for monomial, _ in total.terms:
            for symbol in (s for s in monomial if not self._is_positive(s)):
                self.solved[symbol] = Poly()

    def at_least(self, size: Poly, bound: Poly) -> None:
        """Demand that a size is at least another. Raises Unsolvable if it never is."""
        size, bound = self.resolve(size), self.resolve(bound)
        more = size - bound
        if more.constant is not None and more.constant < 0:
            raise Unsolvable(f"{size} >= {bound} has no solution")
        if more.constant is None and more not in self.naturals:
            self.least.append((size, bound))
            self.naturals.append(more)

    def _primitive(self, difference: Poly) -> Poly:
        """A difference without its common factors that cannot be 0: numbers and sizes."""
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
        """Whether a symbol cannot be 0, because it is a size or divides one."""
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
        """Demand that the halos of an operator's operands are as wide as its windows read."""
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
        """Visit all nodes that the values depend on, operands first."""
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
        """``size / divisor``: a polynomial where that is exact, else a new size ``q`` with the
        demand ``size = divisor * q``."""
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
        """The factors of a merged size, outermost first; the size alone if it is not merged. They
        may also be adjacent digits of another size, if their product is this size."""
        orders = tuple(tuple(map(self.resolve, order)) for order in self.orders)
        return _digits(self.resolve(size), orders, ())


def _digits(
    size: Poly, orders: tuple[tuple[Poly, ...], ...], around: tuple[Poly, ...]
) -> tuple[Poly, ...]:
    """The digits of a size by the factorizations in ``orders``. ``around``: the sizes whose digits
    are being computed, which end the recursion."""
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
    """A size as part of a quotient's name: without bars, in brackets if it has several parts."""
    text = str(size).replace("|", "")
    return text if size.symbol or size.constant is not None else f"({text})"


def different_ranks(left: Sequence[Value], right: Sequence[Value]) -> str:
    """A line about the first pair with different ranks or halos elsewhere; empty if none is."""
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
    """The sizes of two sides whose outputs have equal shapes, and the conditions of the right side
    beyond the left, as text. ``carry``: equations may stay open. Raises Unsolvable if no sizes fit,
    OperatorError if a side has no shape, Undecided if an equation stays open without ``carry``."""
    sizes = Sizes.where(equal)
    sizes.visit_all(left)
    left_solved, left_bounds = frozenset(sizes.solved), len(sizes.least)
    given = frozenset(sizes.open)
    sizes.visit_all(right)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(sizes.shape(a), sizes.shape(b), strict=True):
            sizes.demand(x, y)
        for x, y in zip(halos_of(a), halos_of(b), strict=True):
            sizes.demand(x.before, y.before)
            sizes.demand(x.after, y.after)
    if sizes.open and not carry:
        raise Undecided(f"{sizes.open[0][0]} = {sizes.open[0][1]} is beyond substitution")
    asked = [sizes.equation(s) for s in sizes.solved if s not in left_solved]
    asked += [
        f"{sizes.resolve(a)} = {sizes.resolve(b)}" for a, b in sizes.open if (a, b) not in given
    ]
    asked += [f"{sizes.resolve(a)} >= {sizes.resolve(b)}" for a, b in sizes.least[left_bounds:]]
    return sizes, tuple(dict.fromkeys(asked))


def _integral(call: Call, name: str) -> Poly | int:
    value = call.values[name]
    if isinstance(value, float):
        raise OperatorError(call.name, "*", None, f"attribute {name} is {value}, not an integer")
    return value


def _isolated(difference: Poly) -> str | None:
    """A symbol to solve for, if there is one: it is a monomial by itself with coefficient 1 or -1,
    and in no other monomial.

    Preferred is a symbol whose value has only positive terms, so that substitution does not
    introduce a difference where a sum would do.
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
    """Whether all terms have one sign: as no symbol is negative, all are 0 if the sum is."""
    signs = {coefficient > 0 for _, coefficient in difference.terms}
    return len(signs) == 1
