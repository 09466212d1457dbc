"""Infers parallel types symbolically: degrees, copies and partials as products of powers.

Problem: do two graphs have the same types wherever their operators are typed?
Method: an input ``x`` has degrees ``x.d0, x.d1, ...``, slices ``x.t0, ...``, copies ``x.c`` and
partials ``x.p``. Typing an operator (``pcg.types.infer``) then yields products of powers, equations
between them, and quotients that have to be integers. In logarithms the equations are linear, and
Gaussian elimination over the rationals solves them.
Exact, except that degrees whose prime factors are not found are refused.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from itertools import product

from pcg.graph.graph import Leaf, Node, Value
from pcg.language.poly import Poly
from pcg.types.halo import halos_after, open_typing
from pcg.types.infer import infer_degrees
from pcg.types.local import LocalTyping
from pcg.types.operator import Attribute, Call
from pcg.types.tensor import Degrees, Halos
from verifier.trusted.errors import Undecided

Exponent = Fraction | int
MAX_PRIME = 1 << 20
"""The largest divisor that is tried to factor a degree; so all degrees below 2^40 are factored."""


@dataclass(frozen=True)
class Powers:
    """A product of powers of symbols and of primes (written as digits), exponents non-zero."""

    powers: tuple[tuple[str, Exponent], ...] = ()

    @staticmethod
    def of(symbol: str) -> Powers:
        return Powers(((symbol, 1),))

    @staticmethod
    def collect(powers: Mapping[str, Exponent]) -> Powers:
        """A product of powers, given as exponents by base; exponents may be 0."""
        return Powers(tuple(sorted((s, e) for s, e in powers.items() if e)))

    @staticmethod
    @lru_cache(maxsize=1024)
    def number(value: int) -> Powers:
        """A positive integer as the product of its primes. Raises Undecided if they are not found,
        since at least two of them are above ``MAX_PRIME``."""
        powers: dict[str, Exponent] = {}
        prime = 2
        while prime * prime <= value:
            if prime > MAX_PRIME:
                raise Undecided(f"the degree {value} has no small primes")
            while value % prime == 0:
                powers[str(prime)] = powers.get(str(prime), 0) + 1
                value //= prime
            prime += 1
        if value > 1:
            powers[str(value)] = powers.get(str(value), 0) + 1
        return Powers.collect(powers)

    def times(self, other: Powers, power: Exponent = 1) -> Powers:
        total = dict(self.powers)
        for symbol, exponent in other.powers:
            total[symbol] = total.get(symbol, 0) + exponent * power
        return Powers.collect(total)

    def over(self, other: Powers) -> Powers:
        return self.times(other, -1)

    def __str__(self) -> str:
        def side(sign: int) -> str:
            parts = [
                s if abs(e) == 1 else f"{s}^{abs(e)}"
                for s, e in self.powers
                if (e > 0) == (sign > 0)
            ]
            return " * ".join(parts) or "1"

        return side(1) if side(-1) == "1" else f"{side(1)} / {side(-1)}"


ONE = Powers()


def product_of(factors: Iterable[Powers]) -> Powers:
    return reduce(Powers.times, factors, ONE)


@dataclass
class PowersArithmetic:
    """Arithmetic on symbolic degrees (``pcg.types.infer.Arithmetic``). It collects conditions where
    arithmetic on numbers would raise an error."""

    equations: list[Powers] = field(default_factory=list[Powers])
    """Products that have to be 1."""
    whole: list[Powers] = field(default_factory=list[Powers])
    """Products that have to be whole numbers."""
    symbols: set[str] = field(default_factory=set[str])
    """The symbols in the degrees of operators."""

    def of(self, value: Attribute | int) -> Powers:
        """A degree: a number, or a product of symbols and a number. Raises ValueError for a number
        that is no positive integer, and Undecided for a sum."""
        if isinstance(value, float):
            raise ValueError(f"degree {value}, expected a whole number")
        terms = Poly.of(value).terms
        if len(terms) > 1:
            raise Undecided(f"degree {value} is a sum")
        if not terms or terms[0][1] < 1:
            raise ValueError(f"degree {value}, expected a positive integer")
        (symbols, number), *_ = terms
        self.symbols.update(symbols)
        return product_of((Powers.number(number), *map(Powers.of, symbols)))

    def times(self, a: Powers, b: Powers) -> Powers:
        return a.times(b)

    def divide(self, a: Powers, b: Powers, where: tuple[int, int | None], what: str) -> Powers:
        quotient = a.over(b)
        if any(exponent < 0 for _, exponent in quotient.powers):
            self.whole.append(quotient)
        return quotient

    def same(self, a: Powers, b: Powers, where: tuple[int, int | None], what: str) -> None:
        if a != b:
            self.equations.append(a.over(b))


@dataclass(frozen=True)
class Typing:
    """The types of the outputs of a graph, and the conditions under which its operators have types.

    ``equations`` have to be 1, ``whole`` have to be whole numbers.
    """

    types: tuple[Degrees[Powers], ...]
    equations: tuple[Powers, ...]
    whole: tuple[Powers, ...]
    symbols: frozenset[str]
    """All symbols of inputs and operators, also those that no type depends on."""

    @cached_property
    def basis(self) -> Basis:
        """The equations in solved form."""
        return Basis.of(self.equations)


def input_degrees(name: str, rank: int) -> Degrees[Powers]:
    """The general type of an input."""
    return Degrees(
        tuple(Powers.of(f"{name}.d{i}") for i in range(rank)),
        tuple(Powers.of(f"{name}.t{i}") for i in range(rank)),
        Powers.of(f"{name}.c"),
        Powers.of(f"{name}.p"),
    )


def typings(nodes: Sequence[Node], outputs: Sequence[Value]) -> Iterator[Typing]:
    """One typing for each choice of which operands carry partials."""
    computing, options = _carriers(nodes)
    for choice in product(*options):
        yield _typing(nodes, outputs, dict(zip(computing, choice, strict=True)))


def typing_at(nodes: Sequence[Node], outputs: Sequence[Value], number: int) -> Typing:
    """The typing at index ``number`` in the order of ``typings``, without computing the others.
    Raises IndexError if there are not so many typings."""
    computing, options = _carriers(nodes)
    chosen: dict[Node, frozenset[int]] = {}
    rest = number
    for node, choices in zip(reversed(computing), reversed(options), strict=True):
        rest, choice = divmod(rest, len(choices))
        chosen[node] = choices[choice]
    if rest:
        raise IndexError(number)
    return _typing(nodes, outputs, chosen)


def _carriers(nodes: Sequence[Node]) -> tuple[list[Node], list[tuple[frozenset[int], ...]]]:
    """The compute operators, and for each the sets of operands that may carry partials."""
    computing = [n for n in nodes if not n.is_leaf and n.operator_call.operator.parallel is None]
    return computing, [_carrier_options(node) for node in computing]


def ranks(node: Node) -> tuple[int, ...]:
    """The ranks of a node's operands."""
    return tuple(value.rank for value in node.inputs)


def halos_of(value: Value) -> Halos:
    """The halos of a value, as the chain of parallel operators that produces it states them. Inputs
    and outputs of compute operators have none. Raises OperatorError for a halo that is invalid."""
    node = value.node
    if node.is_leaf or node.operator_call.operator.parallel is None:
        return ()
    return halos_after(node.operator_call, ranks(node), [halos_of(v) for v in node.inputs])


def local_typing(node: Node) -> LocalTyping:
    """The local typing of a compute operator. A window may be cut where its operands have halos."""
    return open_typing(node.operator_call, ranks(node), [halos_of(v) for v in node.inputs])


def _carrier_options(node: Node) -> tuple[frozenset[int], ...]:
    # A set of carriers includes the case without partials: partials is then 1.
    carriers = node.operator_call.typing(ranks(node)).carriers
    return carriers or (frozenset(),)


def _typing(
    nodes: Sequence[Node], outputs: Sequence[Value], carriers: dict[Node, frozenset[int]]
) -> Typing:
    known: dict[Node, tuple[Degrees[Powers], ...]] = {}
    arithmetic = PowersArithmetic()
    for node in nodes:
        if isinstance(node.call, Leaf):
            known[node] = (input_degrees(node.call.name, node.call.rank),)
            continue
        call: Call = node.call
        inputs = [known[value.node][value.port] for value in node.inputs]
        chosen = carriers.get(node, frozenset())
        known[node] = infer_degrees(call, ranks(node), inputs, arithmetic, chosen)
    types = tuple(known[value.node][value.port] for value in outputs)
    inputs = (m for n, types in known.items() if n.is_leaf for m in entries(types[0]))
    symbols = arithmetic.symbols.union(s for m in inputs for s, _ in m.powers)
    equations, whole = tuple(arithmetic.equations), tuple(arithmetic.whole)
    return Typing(types, equations, whole, frozenset(symbols))


def entries(degrees: Degrees[Powers]) -> tuple[Powers, ...]:
    """All degrees of a type in a fixed order, without its halos, which are sizes."""
    return (*degrees.dims, *degrees.slices, degrees.copies, degrees.partials)


@dataclass(frozen=True)
class Basis:
    """Equations between products of powers, as a reduced linear system in logarithms.

    Each row is solved for its leading symbol. Symbols of inputs are solved for before degrees of
    operators. Primes are known numbers and are never solved for.
    """

    rows: tuple[tuple[str, Powers], ...] = ()
    """(leading symbol, its value). The symbol ``"0"`` marks a contradiction: the value has to be 1
    and is another number."""

    @staticmethod
    def of(equations: Iterable[Powers]) -> Basis:
        basis = Basis()
        for equation in equations:
            basis = basis.extended(equation)
        return basis

    @cached_property
    def _solved(self) -> Mapping[str, Powers]:
        """The value of each solved symbol. No value contains a solved symbol."""
        return dict(self.rows)

    def reduce(self, monomial: Powers) -> Powers:
        """The same product with solved symbols replaced by their values."""
        if not any(symbol in self._solved for symbol, _ in monomial.powers):
            return monomial
        powers: dict[str, Exponent] = {}
        for symbol, exponent in monomial.powers:
            value = self._solved.get(symbol)
            for name, power in value.powers if value else ((symbol, 1),):
                powers[name] = powers.get(name, 0) + power * exponent
        return Powers.collect(powers)

    def implies(self, equation: Powers) -> bool:
        """Whether ``equation`` is 1 wherever the rows hold."""
        return self.reduce(equation) == ONE

    def extended(self, equation: Powers) -> Basis:
        """The system with one more equation: ``equation`` is 1."""
        equation = self.reduce(equation)
        symbol = _leading(equation)
        if symbol is None:
            if equation == ONE:
                return self
            return Basis((*self.rows, ("0", equation)))
        exponent = dict(equation.powers)[symbol]
        rest = equation.times(Powers.of(symbol), -exponent)
        # Most exponents are 1 or -1. Then no Fraction is needed, which is far quicker.
        value = ONE.times(rest, -exponent if abs(exponent) == 1 else Fraction(-1) / exponent)
        rows = [(s, _replaced(v, symbol, value)) for s, v in self.rows]
        insort(rows, (symbol, value), key=lambda row: _rank_of(row[0]))
        return Basis(tuple(rows))

    @property
    def contradicts(self) -> bool:
        """Whether the equations demand that two different numbers are equal."""
        return any(symbol == "0" for symbol, _ in self.rows)


def _replaced(monomial: Powers, symbol: str, value: Powers) -> Powers:
    exponent = next((e for s, e in monomial.powers if s == symbol), 0)
    if not exponent:
        return monomial
    return monomial.times(Powers.of(symbol), -exponent).times(value, exponent)


def _rank_of(symbol: str) -> tuple[int, str]:
    """The order in which symbols are solved for: those of inputs, then degrees of operators."""
    return (0 if "." in symbol else 1, symbol)


def _leading(equation: Powers) -> str | None:
    symbols = [s for s, _ in equation.powers if not s.isdigit()]
    return min(symbols, key=_rank_of) if symbols else None
