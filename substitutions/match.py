"""Finding and applying rules.

A pattern matches where operators, positions and attributes agree; symbols and inputs are bound.
The right side is then built at the concrete types, and the rewrite is made only if it has a type
and its outputs have the types of what they replace: with the rule's proof, that is what makes it
sound for tensors that are cut, copied or partial (``verifier.decide``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pcg.errors import OperatorError
from pcg.graph import Graph, Leaf, Node, Value
from pcg.operator import Call
from pcg.operator import Value as Attribute
from pcg.poly import Poly
from substitutions.rule import Rule


@dataclass(frozen=True)
class Match:
    """What a rule's inputs and symbols stand for, and which values its outputs are."""

    values: Mapping[str, Value]
    symbols: Mapping[str, Attribute]
    outputs: tuple[Value, ...]


def matches(rule: Rule, graph: Graph) -> Iterator[Match]:
    """Every place of a graph where the left side matches, operands before users."""
    for node in graph.nodes:
        yield from matches_at(rule, node)


def matches_at(rule: Rule, node: Node) -> Iterator[Match]:
    """The matches whose first output is an output of ``node``."""
    pattern = rule.left[0]
    if isinstance(pattern.node.call, Leaf):
        if len(rule.left) > 1:
            return
        for port in range(len(node.types)):
            value = node.value(port)
            if value.type.rank == pattern.node.call.rank:
                yield Match({pattern.node.call.name: value}, {}, (value,))
        return
    if node.is_leaf or node.name != pattern.node.name:
        return
    for values, symbols in _match(pattern, node.value(pattern.port), {}, {}):
        yield from _others(rule.left[1:], Match(values, symbols, (node.value(pattern.port),)))


def _others(patterns: tuple[Value, ...], match: Match) -> Iterator[Match]:
    """The further outputs, which have to be outputs of the node matched first."""
    if not patterns:
        yield match
        return
    host = match.outputs[0].node
    if isinstance(patterns[0].node.call, Leaf) or patterns[0].port >= len(host.types):
        return
    value = host.value(patterns[0].port)
    for values, symbols in _match(patterns[0], value, dict(match.values), dict(match.symbols)):
        yield from _others(patterns[1:], Match(values, symbols, (*match.outputs, value)))


Binding = tuple[dict[str, Value], dict[str, Attribute]]


def _match(
    pattern: Value, host: Value, values: dict[str, Value], symbols: dict[str, Attribute]
) -> Iterator[Binding]:
    if isinstance(pattern.node.call, Leaf):
        name = pattern.node.call.name
        known = values.get(name)
        if known is None:
            if host.type.rank == pattern.node.call.rank:
                yield {**values, name: host}, symbols
        elif known == host:
            yield values, symbols
        return
    if host.node.is_leaf or host.port != pattern.port or host.node.name != pattern.node.name:
        return
    bound = _bind(pattern.node.call, host.node.operator_call, symbols)
    if bound is None:
        return
    yield from _operands(pattern.node.inputs, host.node.inputs, values, bound)
    swapped = host.node.inputs[::-1]
    if pattern.node.call.operator.commutative and swapped != host.node.inputs:
        yield from _operands(pattern.node.inputs, swapped, values, bound)


def _operands(
    patterns: tuple[Value, ...],
    hosts: tuple[Value, ...],
    values: dict[str, Value],
    symbols: dict[str, Attribute],
) -> Iterator[Binding]:
    if not patterns:
        yield values, symbols
        return
    for found, bound in _match(patterns[0], hosts[0], values, symbols):
        yield from _operands(patterns[1:], hosts[1:], found, bound)


def _bind(
    pattern: Call, host: Call, symbols: Mapping[str, Attribute]
) -> dict[str, Attribute] | None:
    """Match attributes; a symbol is bound, sums of symbols are left to the types."""
    if len(pattern.attributes) != len(host.attributes):
        return None  # only one of them states a halo
    found = dict(symbols)
    for (_, wanted), (_, given) in zip(pattern.attributes, host.attributes, strict=True):
        if isinstance(wanted, Poly) and wanted.constant is None:
            symbol = wanted.symbol
            if symbol is None or symbol.startswith("|"):
                continue
            if found.setdefault(symbol, given) != given:
                return None
        elif wanted != given:
            return None
    return found


def build(rule: Rule, match: Match, free: Mapping[str, int]) -> tuple[Value, ...] | None:
    """The right side at a match, with values for the free symbols; None if it does not apply."""
    symbols = {**match.symbols, **free}
    sizes = {
        f"|{name}.{dim}|": size
        for name, value in match.values.items()
        for dim, size in enumerate(value.type.shape)
    }
    try:
        outputs = tuple(_instantiate(rule.right, match.values, symbols, sizes))
        agree = all(n.type == o.type for n, o in zip(outputs, match.outputs, strict=True))
    except (OperatorError, KeyError):
        return None
    return outputs if agree else None


def rewrite(graph: Graph, match: Match, outputs: tuple[Value, ...]) -> Graph:
    """The graph with a match replaced."""
    return graph.replace(dict(zip(match.outputs, outputs, strict=True)))


def _instantiate(
    outputs: tuple[Value, ...],
    values: Mapping[str, Value],
    symbols: Mapping[str, Attribute],
    sizes: Mapping[str, int],
) -> Iterator[Value]:
    made: dict[Value, Value] = {}

    def image(value: Value) -> Value:
        if isinstance(value.node.call, Leaf):
            return values[value.node.call.name]
        if value not in made:
            inputs = tuple(image(v) for v in value.node.inputs)
            call = _concrete(value.node.call, symbols, sizes)
            node = Node(call, inputs)
            _ = node.types  # an operator without a type is no application
            made[value] = Value(node, value.port)
        return made[value]

    for output in outputs:
        yield image(output)


def _concrete(call: Call, symbols: Mapping[str, Attribute], sizes: Mapping[str, int]) -> Call:
    attributes: list[tuple[str, Attribute]] = []
    for name, value in call.attributes:
        if isinstance(value, Poly):
            if value.symbol is not None and value.symbol in symbols:
                value = symbols[value.symbol]
            else:
                known = {s: v for s, v in symbols.items() if isinstance(v, int)}
                value = value.evaluate({**sizes, **known})
        attributes.append((name, value))
    return Call(call.operator, tuple(attributes))
