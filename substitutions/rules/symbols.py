"""Gives attributes of a pair different symbols where they need not be equal, and solves for them.

Method: the enumeration gives attributes of equal value the same symbol. Here every operator gets
its own symbols for the sizes among its attributes. If the pair is still equal, the sizes of the
outputs give equations between the symbols (``at2 = at``, ``at = |x.0|``), and solutions are
substituted. A symbol that sizes do not determine, such as the start of a slice, has to stay shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node
from pcg.graph.pairs import GraphPair, Outputs, remade, with_polynomials
from pcg.language.poly import Poly
from pcg.types.operator import Attribute, Call
from substitutions.rules.rule import attribute_symbols
from verifier.trusted.errors import Unsolvable
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, pair_sizes


def variants(pair: GraphPair) -> Iterator[GraphPair]:
    """Yield the pair with different symbols, as far as sizes determine them, then the pair as it
    is, then the pair with a single group where axes are divided into groups."""
    apart = with_distinct_symbols(pair)
    free = undetermined(apart) if apart != pair else frozenset[str]()
    if free:
        stems = {symbol.rstrip("0123456789") for symbol in free}
        apart = with_distinct_symbols(pair, keep=frozenset(stems))
        free = undetermined(apart) if apart != pair else free
    if apart != pair and not free:
        yield apart
    yield pair
    grouped = with_single_groups(pair)
    if grouped != pair:
        yield grouped


def with_distinct_symbols(pair: GraphPair, keep: frozenset[str] = frozenset()) -> GraphPair:
    """The pair with its own symbols for the sizes of each operator, except for attributes in
    ``keep``."""
    numbers = count(1)

    def make(node: Node, inputs: Outputs) -> Node:
        if not isinstance(node.call, Call):
            return node
        attributes: list[tuple[str, Attribute]] = []
        for name, value in node.call.attributes:
            fresh = name in node.call.operator.sizes and name not in keep
            if fresh and isinstance(value, Poly) and value.symbol:
                value = Poly.of(f"{name}{next(numbers) + 100}")
            attributes.append((name, value))
        return Node(Call(node.call.operator, tuple(attributes)), inputs)

    return remade(Graph(pair[0]), make), remade(Graph(pair[1]), make)


def with_single_groups(pair: GraphPair) -> GraphPair:
    """The pair with each symbol that divides an axis replaced by the size of the axis, if that is
    known. The axis is then one group."""
    lengths: dict[str, Poly] = {}
    for side in pair:
        sizes = Sizes()
        try:
            sizes.visit_all(side)
        except (Unsolvable, OperatorError):
            continue
        for symbol, size in _divided(side, sizes):
            lengths.setdefault(symbol, size)
    return with_values(pair, lengths)


def _divided(side: Outputs, sizes: Sizes) -> Iterator[tuple[str, Poly]]:
    """Yield the attribute symbols that divide an axis, with the size of the axis in terms of sizes
    of inputs."""
    for node in Graph(side).nodes:
        if not isinstance(node.call, Call):
            continue
        equation = node.call.instance(tuple(value.rank for value in node.inputs))
        lengths = {f"|{name}|": bound for name, bound in equation.bounds}
        for quotient in equation.quotients:
            divisor = quotient.divisor.substitute(lengths).symbol
            given = node.call.values.get(divisor) if divisor else None
            size = sizes.shape(node.inputs[quotient.operand])[quotient.position]
            if isinstance(given, Poly) and given.symbol:
                for plain in (size, sizes.resolve(size)):
                    if _is_plain(plain, sizes) and given.symbol not in plain.symbols:
                        yield given.symbol, plain


def undetermined(pair: GraphPair) -> frozenset[str]:
    """The attribute symbols of the right side that sizes do not express by those of the left."""
    solved = solution(pair)
    if solved is None:
        return frozenset()
    left, right = (attribute_symbols(side) for side in pair)
    known = {s for symbol in left for s in solved.get(symbol, Poly.of(symbol)).symbols}
    missing = {s for symbol in right for s in solved.get(symbol, Poly.of(symbol)).symbols} - known
    return frozenset(s for s in missing if not s.startswith("|"))


def solution(pair: GraphPair, equal: Sequence[SizeEquation] = ()) -> dict[str, Poly] | None:
    """The attribute symbols that sizes determine, with their values. None if no sizes fit."""
    try:
        sizes, _ = pair_sizes(*pair, equal)
    except (Unsolvable, OperatorError):
        return None
    solved: dict[str, Poly] = {}
    for symbol in attribute_symbols((*pair[0], *pair[1])):
        value = sizes.resolve(Poly.of(symbol))
        if value != Poly.of(symbol) and _is_plain(value, sizes):
            solved[symbol] = value
    return solved


def _is_plain(value: Poly, sizes: Sizes) -> bool:
    """Whether a size contains only sizes of inputs and attributes, and no quotient that the
    inference introduced."""
    made_up = {q.symbol for q in sizes.quotients.values() if q.symbol}
    return made_up.isdisjoint(value.symbols) and not value.symbols & {"|"}


def with_solved_symbols(pair: GraphPair, equal: Sequence[SizeEquation] = ()) -> GraphPair:
    """The pair with the attribute symbols that sizes determine replaced by their values, under the
    equations ``equal``."""
    solved = solution(pair, equal)
    return with_values(pair, solved) if solved else pair


def with_values(pair: GraphPair, values: Mapping[str, Poly]) -> GraphPair:
    """The pair with symbols replaced by values."""

    def make(node: Node, inputs: Outputs) -> Node:
        call = node.call
        return Node(with_polynomials(call, values) if isinstance(call, Call) else call, inputs)

    return remade(Graph(pair[0]), make), remade(Graph(pair[1]), make)
