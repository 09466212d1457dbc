"""Matches rules in a graph, and applies them.

A pattern matches a place of a graph where operators, positions and attributes agree. The match
binds the pattern's symbols and inputs. An attribute that is a sum or product of symbols has to have
the value that these give, or is solved for one of them. The right side is then built at the
concrete types. The rewrite is made only if the right side has types, and its outputs have the types
of the values that they replace. With the rule's proof, this makes the rewrite sound for tensors
that are cut, copied or partial (``verifier.decide``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value, topological
from pcg.graph.pairs import Outputs, with_numbers
from pcg.language.poly import Poly
from pcg.types.operator import Attribute, Call
from substitutions.rules.requirements import hold, not_natural
from substitutions.rules.rule import Rule, unknown_of


@dataclass(frozen=True)
class Match:
    """A place where a rule matches: the values of its inputs, the values of its symbols, and the
    values that its outputs match."""

    values: Mapping[str, Value]
    symbols: Mapping[str, Attribute]
    outputs: Outputs


class Binding(NamedTuple):
    """The inputs and symbols bound so far. ``equations``: attributes that are sums or products of
    symbols, with the values that they have to have."""

    values: dict[str, Value]
    symbols: Mapping[str, Attribute]
    equations: tuple[tuple[Poly, Attribute], ...] = ()

    @property
    def numbers(self) -> dict[str, float | int]:
        """The symbols that are numbers, and the sizes of the inputs."""
        return {**_numbers(self.symbols), **_sizes(self.values)}


def matches(rule: Rule, graph: Graph) -> Iterator[Match]:
    """Yield every match of the left side in a graph, operands before users."""
    for node in graph.nodes:
        yield from matches_at(rule, node, graph)


def anchor(rule: Rule) -> int:
    """The number of the output at which matching starts: the first that is no input, or else 0."""
    return next((i for i, value in enumerate(rule.left) if not value.node.is_leaf), 0)


def matches_at(rule: Rule, node: Node, graph: Graph) -> Iterator[Match]:
    """Yield the matches in a graph whose output number ``anchor(rule)`` is an output of ``node``.

    Rules with several outputs match only where each output shares an input with an earlier one. No
    match has an input that is computed from a value that the match replaces.
    """
    for bound in anchor_bindings(rule, node):
        yield from complete_matches(rule, node, bound, graph)


def anchor_bindings(rule: Rule, node: Node) -> Iterator[Binding]:
    """Yield the bindings of a rule's anchor output at an operator. They depend only on the operator
    and its operands, as many operators deep as the rule, and on nothing else of the graph."""
    pattern = rule.left[anchor(rule)]
    if isinstance(pattern.node.call, Leaf):
        if len(rule.left) == 1:
            for port, held in enumerate(node.types):
                if held.rank == pattern.node.call.rank:
                    yield Binding({pattern.node.call.name: node.value(port)}, {})
        return
    if node.is_leaf or node.name != pattern.node.name:
        return
    yield from bindings(pattern, node.value(pattern.port), Binding({}, {}))


def complete_matches(rule: Rule, node: Node, bound: Binding, graph: Graph) -> Iterator[Match]:
    """Yield the matches in a graph that extend a binding of the anchor output at ``node``."""
    first = anchor(rule)
    pattern = rule.left[first]
    if isinstance(pattern.node.call, Leaf):
        yield Match(bound.values, {}, (bound.values[pattern.node.call.name],))
        return
    host = node.value(pattern.port)
    for outputs, complete in _further_outputs(rule.left, {first: host}, bound, graph):
        symbols = _solved(complete)
        if symbols is not None and (len(outputs) == 1 or _are_independent(rule, outputs, complete)):
            yield Match(complete.values, symbols, outputs)


def could_match(rule: Rule, node: Node) -> bool:
    """Whether an operator and the operators of its operands are those of the rule's anchor.

    This is a quick test that excludes many rules. It depends only on the operator's call and on the
    names of its operands' operators, so a rule that passes need not match.
    """
    pattern = rule.left[anchor(rule)]
    if pattern.node.is_leaf or node.is_leaf or pattern.node.name != node.name:
        return pattern.node.is_leaf
    if _bind(pattern.node.operator_call, node.operator_call, Binding({}, {})) is None:
        return False
    given = [None if value.node.is_leaf else value.node.name for value in node.inputs]
    asked = [None if value.node.is_leaf else value.node.name for value in pattern.node.inputs]
    orders = (given, given[::-1]) if node.operator_call.operator.commutative else (given,)
    return any(
        all(name is None or name == found for name, found in zip(asked, order, strict=True))
        for order in orders
    )


def _further_outputs(
    patterns: tuple[Value, ...], found: dict[int, Value], bound: Binding, graph: Graph
) -> Iterator[tuple[tuple[Value, ...], Binding]]:
    """Yield the values of all outputs, given those in ``found``. Each further output is searched
    for among the users of an input that is bound."""
    missing = [i for i in range(len(patterns)) if i not in found]
    if not missing:
        yield tuple(found[i] for i in range(len(patterns))), bound
        return
    for i in missing:
        hosts = _candidates(patterns, i, found, bound, graph)
        if hosts is None:
            continue
        for host in hosts:
            for more in bindings(patterns[i], host, bound):
                yield from _further_outputs(patterns, {**found, i: host}, more, graph)
        return


def _candidates(
    patterns: tuple[Value, ...], i: int, found: dict[int, Value], bound: Binding, graph: Graph
) -> list[Value] | None:
    """The values that output ``i`` may match. None if no input that it reads is bound yet."""
    pattern = patterns[i]
    if isinstance(pattern.node.call, Leaf):
        known = bound.values.get(pattern.node.call.name)
        return None if known is None else [known]
    for j, host in found.items():
        if patterns[j].node == pattern.node:
            return [host.node.value(pattern.port)]
    path = _path(pattern.node, bound.values)
    if path is None:
        return None
    reached = {bound.values[path[0].leaf.name].node: None}
    for step in path[1:]:
        users = (user for node in reached for user in graph.users.get(node, ()))
        reached = dict.fromkeys(user for user in users if user.name == step.name)
    return [node.value(pattern.port) for node in reached]


def _path(pattern: Node, values: Mapping[str, Value]) -> tuple[Node, ...] | None:
    """The shortest path of nodes from a bound input to ``pattern``. None if no input is bound."""
    frontier: list[tuple[Node, ...]] = [(pattern,)]
    while frontier:
        for path in frontier:
            if path[0].is_leaf and path[0].leaf.name in values:
                return path
        frontier = [(v.node, *path) for path in frontier for v in path[0].inputs]
    return None


def _are_independent(rule: Rule, outputs: Outputs, bound: Binding) -> bool:
    """Whether different outputs of a rule match different values, and no input is computed from
    these values."""
    if len(set(outputs)) < len(set(rule.left)):
        return False
    pairs = zip(rule.left, outputs, strict=True)
    replaced = {host.node for pattern, host in pairs if not pattern.node.is_leaf}
    if len(replaced) == 1:
        return True
    return replaced.isdisjoint(topological(value.node for value in bound.values.values()))


def bindings(pattern: Value, host: Value, bound: Binding) -> Iterator[Binding]:
    """Yield the bindings that extend ``bound`` and under which ``host`` matches ``pattern``."""
    if isinstance(pattern.node.call, Leaf):
        name = pattern.node.call.name
        known = bound.values.get(name)
        if known is None:
            if host.type.rank == pattern.node.call.rank:
                yield bound._replace(values={**bound.values, name: host})
        elif known == host:
            yield bound
        return
    if host.node.is_leaf or host.port != pattern.port or host.node.name != pattern.node.name:
        return
    attributed = _bind(pattern.node.call, host.node.operator_call, bound)
    if attributed is None:
        return
    yield from _operands(pattern.node.inputs, host.node.inputs, attributed)
    swapped = host.node.inputs[::-1]
    if pattern.node.call.operator.commutative and swapped != host.node.inputs:
        yield from _operands(pattern.node.inputs, swapped, attributed)


def _operands(
    patterns: tuple[Value, ...], hosts: tuple[Value, ...], bound: Binding
) -> Iterator[Binding]:
    if not patterns:
        yield bound
        return
    for more in bindings(patterns[0], hosts[0], bound):
        yield from _operands(patterns[1:], hosts[1:], more)


def _bind(pattern: Call, host: Call, bound: Binding) -> Binding | None:
    """Match attributes. A symbol is bound; sums and products of symbols become equations. None if
    the attributes do not match."""
    if len(pattern.attributes) != len(host.attributes):
        return None  # Only one of the calls states a halo.
    if not pattern.attributes:
        return bound
    symbols, equations = dict(bound.symbols), bound.equations
    for (_, wanted), (_, given) in zip(pattern.attributes, host.attributes, strict=True):
        if not isinstance(wanted, Poly):
            if wanted != given:
                return None
        elif (symbol := wanted.symbol) is None or symbol.startswith("|"):
            equations = (*equations, (wanted, given))
        elif symbols.setdefault(symbol, given) != given:
            return None
    return bound._replace(symbols=symbols, equations=equations)


def _solved(bound: Binding) -> Mapping[str, Attribute] | None:
    """The values of all symbols; None if an equation fails or is left unsolved."""
    if not bound.equations:
        return bound.symbols
    solution = solved(bound)
    if solution is None or solution[1]:
        return None
    return {name: value for name, value in solution[0].items() if not name.startswith("|")}


def solved(bound: Binding) -> tuple[dict[str, float | int], list[tuple[Poly, Attribute]]] | None:
    """The numbers of a binding, including those that follow from its equations, and the equations
    that are left. None if an equation does not hold."""
    known, left = bound.numbers, list(bound.equations)
    before = len(left) + 1
    while left and len(left) < before:
        pending, left, before = left, list[tuple[Poly, Attribute]](), len(left)
        for wanted, given in pending:
            if isinstance(given, Poly):
                return None
            if wanted.symbols <= known.keys():
                if not equal(wanted.at(known), given):
                    return None
            elif (symbol := unknown_of(wanted, known)) is None:
                left.append((wanted, given))
            elif (number := _root(wanted, symbol, known, given)) is None:
                return None
            else:
                known[symbol] = number
    return known, left


def _root(
    wanted: Poly, symbol: str, known: Mapping[str, float | int], given: float | int
) -> float | int | None:
    """The value of ``symbol`` at which ``wanted`` is ``given``; None if there is none."""
    rest = wanted.at({**known, symbol: 0})
    factor = wanted.at({**known, symbol: 1}) - rest
    if not factor:
        return None
    if isinstance(given, int) and isinstance(rest, int) and isinstance(factor, int):
        return (given - rest) // factor if (given - rest) % factor == 0 else None
    return (given - rest) / factor


def equal(a: float, b: float) -> bool:
    """Whether numbers are equal: integers exactly, reals up to rounding."""
    return a == b if isinstance(a, int) and isinstance(b, int) else isclose(a, b, rel_tol=1e-12)


def _numbers(symbols: Mapping[str, Attribute]) -> dict[str, float | int]:
    return {name: value for name, value in symbols.items() if not isinstance(value, Poly)}


def _sizes(values: Mapping[str, Value]) -> dict[str, int]:
    """The sizes of the inputs, by the symbols that stand for them."""
    return {
        f"|{name}.{dim}|": size
        for name, value in values.items()
        for dim, size in enumerate(value.type.shape)
    }


def build(rule: Rule, match: Match, free: Mapping[str, int]) -> tuple[Value, ...] | None:
    """The right side at a match, with values for the free symbols. None if the requirements do not
    hold, or the right side has no types or other types than the outputs that it replaces."""
    numbers = {**_sizes(match.values), **_numbers(match.symbols), **free}
    if not hold(rule.requirements, numbers) or not_natural(rule.naturals, numbers) is not None:
        return None
    try:
        outputs = instantiated(rule.right, match.values, numbers)
        agree = all(n.type == o.type for n, o in zip(outputs, match.outputs, strict=True))
    except (OperatorError, KeyError):
        return None
    return outputs if agree else None


def rewrite(graph: Graph, match: Match, outputs: Outputs) -> Graph:
    """The graph with a match replaced."""
    return graph.replace(dict(zip(match.outputs, outputs, strict=True)))


def instantiated(
    outputs: Outputs, values: Mapping[str, Value], numbers: Mapping[str, float | int]
) -> Outputs:
    """The graph with values for its inputs and numbers for its symbols. Raises OperatorError if an
    operator has no type, and KeyError if an input or symbol has no value."""
    made: dict[Value, Value] = {}

    def image(value: Value) -> Value:
        if isinstance(value.node.call, Leaf):
            return values[value.node.call.name]
        if value not in made:
            inputs = tuple(image(v) for v in value.node.inputs)
            node = Node(with_numbers(value.node.call, numbers), inputs)
            _ = node.types  # Raises OperatorError if the operator has no type.
            made[value] = Value(node, value.port)
        return made[value]

    return tuple(map(image, outputs))
