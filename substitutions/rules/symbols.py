"""Attribute symbols of a pair of graphs: told apart where they need not be equal, then solved for.

The enumeration gives attributes of equal value one symbol. Here every operator gets symbols of its
own for the sizes among its attributes; if the pair is still equal, the sizes of the outputs say how
they hang together (``at2 = at``, ``at = |x.0|``), and what is solved for is put in. A symbol that
sizes do not determine (where a slice starts) has to stay shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value
from pcg.language.poly import Poly
from pcg.types.operator import Call
from pcg.types.operator import Value as Attribute
from substitutions.rules.rule import attribute_symbols
from verifier.trusted.errors import Unsolvable
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, pair_sizes

Side = tuple[Value, ...]
Pair = tuple[Side, Side]


def variants(pair: Pair) -> Iterator[Pair]:
    """The pair with symbols told apart, as far as sizes determine them, then as it is; then with
    axes in a single group where they are divided into groups."""
    apart = told_apart(pair)
    free = undetermined(apart) if apart != pair else frozenset[str]()
    if free:
        stems = {symbol.rstrip("0123456789") for symbol in free}
        apart = told_apart(pair, keep=frozenset(stems))
        free = undetermined(apart) if apart != pair else free
    if apart != pair and not free:
        yield apart
    yield pair
    whole = single_groups(pair)
    if whole != pair:
        yield whole


def told_apart(pair: Pair, keep: frozenset[str] = frozenset()) -> Pair:
    """Each operator with its own symbols for sizes, but for attributes named in ``keep``."""
    numbers = count(1)
    sides: list[Side] = []
    for side in pair:
        new: dict[Node, Node] = {}
        for node in Graph(side).nodes:
            if node.is_leaf:
                new[node] = node
                continue
            call = node.operator_call
            own: list[tuple[str, Attribute]] = []
            for name, value in call.attributes:
                fresh = name in call.operator.sizes and name not in keep
                if fresh and isinstance(value, Poly) and value.symbol:
                    value = Poly.of(f"{name}{next(numbers) + 100}")
                own.append((name, value))
            inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
            new[node] = Node(Call(call.operator, tuple(own)), inputs)
        sides.append(tuple(Value(new[v.node], v.port) for v in side))
    return sides[0], sides[1]


def single_groups(pair: Pair) -> Pair:
    """The pair with the size of an axis for each symbol that divides it, where sizes tell it."""
    found: dict[str, Poly] = {}
    for side in pair:
        sizes = Sizes()
        try:
            sizes.visit_all(side)
        except (Unsolvable, OperatorError):
            continue
        for symbol, size in _divided(side, sizes):
            found.setdefault(symbol, size)
    return replaced(pair, found)


def _divided(side: Side, sizes: Sizes) -> Iterator[tuple[str, Poly]]:
    """The attribute symbols that divide an axis, with its size in sizes of inputs."""
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


def undetermined(pair: Pair) -> frozenset[str]:
    """The symbols that one side has alone, and that sizes do not express by the other's."""
    solved = solution(pair)
    if solved is None:
        return frozenset()
    left, right = (attribute_symbols(side) for side in pair)
    known = {s for symbol in left for s in solved.get(symbol, Poly.of(symbol)).symbols}
    missing = {s for symbol in right for s in solved.get(symbol, Poly.of(symbol)).symbols} - known
    return frozenset(s for s in missing if not s.startswith("|"))


def solution(pair: Pair, equal: Sequence[SizeEquation] = ()) -> dict[str, Poly] | None:
    """The attribute symbols that are equal to other sizes; None where nothing fits."""
    try:
        sizes, _ = pair_sizes(*pair, equal)
    except (Unsolvable, OperatorError):
        return None
    found: dict[str, Poly] = {}
    for symbol in attribute_symbols((*pair[0], *pair[1])):
        value = sizes.resolve(Poly.of(symbol))
        if value != Poly.of(symbol) and _is_plain(value, sizes):
            found[symbol] = value
    return found


def _is_plain(value: Poly, sizes: Sizes) -> bool:
    """Whether a size is written in sizes of inputs and attributes, and none made up on the way."""
    made_up = {q.symbol for q in sizes.quotients.values() if q.symbol}
    return made_up.isdisjoint(value.symbols) and not value.symbols & {"|"}


def settled(pair: Pair, equal: Sequence[SizeEquation] = ()) -> Pair:
    """The pair with what its symbols are equal to in their place, where sizes are equal so."""
    solved = solution(pair, equal)
    return replaced(pair, solved) if solved else pair


def replaced(pair: Pair, values: Mapping[str, Poly]) -> Pair:
    """The pair with symbols replaced."""
    return _replaced(pair[0], values), _replaced(pair[1], values)


def _replaced(side: Sequence[Value], values: Mapping[str, Poly]) -> Side:
    new: dict[Node, Node] = {}
    for node in Graph(tuple(side)).nodes:
        call = node.call
        if isinstance(call, Call):
            own = tuple(
                (name, value.substitute(values) if isinstance(value, Poly) else value)
                for name, value in call.attributes
            )
            call = Call(call.operator, own)
        new[node] = Node(call, tuple(Value(new[v.node], v.port) for v in node.inputs))
    return tuple(Value(new[v.node], v.port) for v in side)
