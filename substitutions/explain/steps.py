"""Equalities as rewriting steps on graphs of concrete types, in whichever direction.

Unlike ``substitutions.rules.match``, which the search for plans uses, this finds every application:
an attribute that is a sum or product of symbols is solved for, what a direction leaves open is
chosen among given values and numbers, and outputs of a rule may belong to different operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from math import isclose

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.language.poly import Poly
from pcg.types.operator import Call
from substitutions.explain.sizes import evaluated
from substitutions.rules.rule import Rule, attribute_symbols, variables
from verifier.trusted.sizes.sizes import SizeEquation

Number = int | float
Outputs = tuple[Value, ...]

MAX_CHOICES = 128
"""How many choices of what a direction leaves open are tried at a place."""


@dataclass(frozen=True)
class Direction:
    """Some outputs of a rule, read one way: ``left`` may be replaced by ``right``, where the sizes
    in ``equal`` are equal."""

    rule: Rule
    forward: bool
    left: Outputs
    right: Outputs
    equal: tuple[SizeEquation, ...] = ()

    @cached_property
    def open_values(self) -> tuple[Leaf, ...]:
        """The inputs that only the right side has."""
        unbound = variables(self.right) - variables(self.left)
        leaves = (node.leaf for node in Graph(self.right).leaves)
        return tuple(leaf for leaf in leaves if leaf.name in unbound)

    @cached_property
    def open_symbols(self) -> tuple[str, ...]:
        """The symbols that no attribute of the left side consists of."""
        return tuple(sorted(attribute_symbols((*self.left, *self.right))))

    @cached_property
    def grows(self) -> bool:
        """Whether it applies to every value, or leaves inputs or symbols open."""
        return (
            any(value.node.is_leaf for value in self.left)
            or bool(self.open_values)
            or not attribute_symbols(self.right) <= attribute_symbols(self.left)
        )

    @cached_property
    def makes(self) -> frozenset[str]:
        """The operators of the right side."""
        return frozenset(node.name for node in Graph(self.right).nodes if not node.is_leaf)

    @property
    def root(self) -> str:
        """The operator at the first output; empty for an input."""
        node = self.left[0].node
        return "" if node.is_leaf else node.name


def directions(rule: Rule, equal: tuple[SizeEquation, ...] = ()) -> Iterator[Direction]:
    """Both directions of a rule; where it has several outputs, of each output alone as well.
    ``equal``: the sizes for which it is proved, if that is not for all."""
    pairs = [(rule.left, rule.right)]
    if len(rule.left) > 1:
        pairs += [((a,), (b,)) for a, b in zip(rule.left, rule.right, strict=True)]
    for left, right in pairs:
        if left != right:
            yield Direction(rule, True, left, right, equal)
            yield Direction(rule, False, right, left, equal)


@dataclass(frozen=True)
class Pool:
    """What may stand for that which a direction leaves open."""

    values: tuple[Value, ...]
    sizes: tuple[int, ...]
    degrees: tuple[int, ...]
    reals: tuple[float, ...]

    @staticmethod
    def of(*graphs: Graph) -> Pool:
        """The values of some graphs, and the numbers in their types and attributes."""
        nodes = tuple(dict.fromkeys(node for graph in graphs for node in graph.nodes))
        values = tuple(node.value(port) for node in nodes for port in range(len(node.types)))
        sizes = {size for value in values for size in value.type.shape}
        degrees, reals = set[int](), set[float]()
        for node in nodes:
            for name, given in () if node.is_leaf else node.operator_call.attributes:
                if isinstance(given, float):
                    reals.add(given)
                elif isinstance(given, int):
                    (degrees if name == "degree" else sizes).add(given)
        numbers = (sorted(found) for found in (sizes, degrees))
        sizes_found, degrees_found = (tuple(found) for found in numbers)
        return Pool(values, sizes_found, degrees_found, tuple(sorted(reals)))


@dataclass(frozen=True)
class _Bound:
    """What has been matched so far; ``equations``: attributes that are still to be solved for."""

    values: Mapping[str, Value]
    symbols: Mapping[str, Number]
    equations: tuple[tuple[Poly, Number], ...] = ()

    def sizes(self) -> dict[str, Number]:
        """The symbols and the sizes of the inputs, as far as they are bound."""
        found: dict[str, Number] = dict(self.symbols)
        for name, value in self.values.items():
            found |= {f"|{name}.{dim}|": size for dim, size in enumerate(value.type.shape)}
        return found


def at(direction: Direction, host: Value, pool: Pool) -> Iterator[Value]:
    """What a direction with one output may replace a value by: values of the same type."""
    for bound in _match(direction.left[0], host, _Bound({}, {})):
        for (image,) in _images(direction, bound, (host,), pool):
            yield image


def together(direction: Direction, graph: Graph, pool: Pool) -> Iterator[Mapping[Value, Value]]:
    """What a direction with several outputs may replace values of a graph by, all at once."""
    hosts = [node.value(port) for node in graph.nodes for port in range(len(node.types))]

    def places(count: int) -> Iterator[tuple[_Bound, Outputs]]:
        if not count:
            yield _Bound({}, {}), ()
            return
        for bound, found in places(count - 1):
            for host in hosts:
                if host not in found:
                    for more in _match(direction.left[count - 1], host, bound):
                        yield more, (*found, host)

    for bound, found in places(len(direction.left)):
        for images in _images(direction, bound, found, pool):
            yield dict(zip(found, images, strict=True))


def _match(pattern: Value, host: Value, bound: _Bound) -> Iterator[_Bound]:
    if isinstance(pattern.node.call, Leaf):
        name = pattern.node.call.name
        known = bound.values.get(name)
        if known is None and host.type.rank == pattern.node.call.rank:
            yield _Bound({**bound.values, name: host}, bound.symbols, bound.equations)
        elif known == host:
            yield bound
        return
    if host.node.is_leaf or host.port != pattern.port or host.node.name != pattern.node.name:
        return
    found = _attributes(pattern.node.call, host.node.operator_call, bound)
    if found is None:
        return
    yield from _operands(pattern.node.inputs, host.node.inputs, found)
    swapped = host.node.inputs[::-1]
    if pattern.node.call.operator.commutative and swapped != host.node.inputs:
        yield from _operands(pattern.node.inputs, swapped, found)


def _operands(patterns: Outputs, hosts: Outputs, bound: _Bound) -> Iterator[_Bound]:
    if not patterns:
        yield bound
        return
    for found in _match(patterns[0], hosts[0], bound):
        yield from _operands(patterns[1:], hosts[1:], found)


def _attributes(pattern: Call, host: Call, bound: _Bound) -> _Bound | None:
    """Bind the symbols that are an attribute alone; other attributes become equations."""
    if len(pattern.attributes) != len(host.attributes):
        return None  # only one of them states a halo
    symbols, equations = dict(bound.symbols), list(bound.equations)
    for (_, wanted), (_, given) in zip(pattern.attributes, host.attributes, strict=True):
        assert not isinstance(given, Poly)  # types are concrete
        if not isinstance(wanted, Poly):
            if wanted != given:
                return None
        elif (symbol := wanted.symbol) is not None and not symbol.startswith("|"):
            if symbols.setdefault(symbol, given) != given:
                return None
        else:
            equations.append((wanted, given))
    return _Bound(bound.values, symbols, tuple(equations))


def _images(direction: Direction, bound: _Bound, hosts: Outputs, pool: Pool) -> Iterator[Outputs]:
    """The right side at a match, for each choice of what is open, where the types agree."""
    for chosen in _completed(direction, bound, pool):
        try:
            images = _built(direction.right, chosen)
            alike = all(a.type == b.type for a, b in zip(images, hosts, strict=True))
        except (OperatorError, KeyError):
            continue
        if alike and images != hosts:
            yield images


def _completed(direction: Direction, bound: _Bound, pool: Pool) -> Iterator[_Bound]:
    """Bindings of all inputs and symbols under which all equations hold."""
    first = _solved(bound)
    if first is None:
        return
    leaves = direction.open_values
    numbers = _ranges(direction, [s for s in direction.open_symbols if s not in first], pool)
    hosts = [[v for v in pool.values if v.type.rank == leaf.rank] for leaf in leaves]
    choices = product(product(*hosts), product(*numbers.values()))
    for own, others in islice(choices, MAX_CHOICES):
        values = {leaf.name: value for leaf, value in zip(leaves, own, strict=True)}
        symbols = {**first, **dict(zip(numbers, others, strict=True))}
        full = _Bound({**bound.values, **values}, symbols, bound.equations)
        known = full.sizes()
        if not all(evaluated(a, known) == evaluated(b, known) for a, b in direction.equal):
            continue
        if all(p.symbols <= known.keys() and _holds(p, v, known) for p, v in bound.equations):
            yield full


def _holds(wanted: Poly, given: Number, known: Mapping[str, Number]) -> bool:
    value = evaluated(wanted, known)
    return isclose(value, given) if isinstance(given, float) else value == given


def _solved(bound: _Bound) -> dict[str, Number] | None:
    """The symbols with those that follow from equations; None where one has no solution."""
    symbols, pending = dict(bound.symbols), list(bound.equations)
    while pending:
        known = _Bound(bound.values, symbols).sizes()
        rest: list[tuple[Poly, Number]] = []
        for wanted, given in pending:
            unknown = wanted.symbols - known.keys()
            if len(unknown) != 1 or wanted.degree_in(symbol := min(unknown)) != 1:
                rest.append((wanted, given))
                continue
            factor = evaluated(wanted.coefficient(symbol), known)
            others = evaluated(wanted, {**known, symbol: 0})
            exact = isinstance(given, int)
            rest_of_it = given - others
            # Whole symbols are sizes, paddings and degrees, of which none is negative.
            if not factor or (exact and (rest_of_it % factor or rest_of_it // factor < 0)):
                return None
            symbols[symbol] = rest_of_it // factor if exact else rest_of_it / factor
        if len(rest) == len(pending):
            break
        pending = rest
    return symbols


def _ranges(
    direction: Direction, symbols: Sequence[str], pool: Pool
) -> dict[str, Sequence[Number]]:
    """The numbers that each symbol may stand for, by the attributes that it occurs in."""
    found: dict[str, Sequence[Number]] = {}
    for node in Graph((*direction.left, *direction.right)).nodes:
        for name, value in () if node.is_leaf else node.operator_call.attributes:
            for symbol in value.symbols if isinstance(value, Poly) else ():
                if symbol in symbols:
                    real = name in node.operator_call.operator.reals
                    whole = pool.degrees if name == "degree" else pool.sizes
                    found[symbol] = pool.reals if real else whole
    return found


def _built(outputs: Outputs, bound: _Bound) -> Outputs:
    """Raises OperatorError where an operator has no type, KeyError where something is open."""
    known = bound.sizes()
    made: dict[Node, Node] = {}

    def image(value: Value) -> Value:
        if isinstance(value.node.call, Leaf):
            return bound.values[value.node.call.name]
        return Value(made[value.node], value.port)

    for node in Graph(outputs).nodes:
        if node.is_leaf:
            continue
        call = node.operator_call
        attributes = tuple(
            (name, evaluated(value, known) if isinstance(value, Poly) else value)
            for name, value in call.attributes
        )
        made[node] = Node(Call(call.operator, attributes), tuple(map(image, node.inputs)))
        _ = made[node].types
    return tuple(map(image, outputs))
