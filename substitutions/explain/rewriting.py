"""Applies rules as rewriting steps on graphs of concrete types, in either direction.

It uses the matcher of the search for plans (``substitutions.rules.match``), but finds every
application: inputs and symbols that a direction leaves open are chosen among given values and
numbers, and the outputs of a rule may match any values of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Value
from pcg.graph.pairs import Outputs, both, ports, symbolic_attributes
from substitutions.rules.match import Binding, bindings, instantiated, solved
from substitutions.rules.rule import Rule, attribute_symbols, variables
from verifier.trusted.sizes.sizes import SizeEquation

MAX_CHOICES = 128
"""The most choices of open inputs and symbols that are tried at one match."""


@dataclass(frozen=True)
class RewriteDirection:
    """A rule, or one output of it, read in one direction. ``left`` may be replaced by ``right`` if
    the equations in ``equal`` hold."""

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
        """The attribute symbols of both sides, of which those that a match does not bind are
        open."""
        return tuple(sorted(attribute_symbols((*self.left, *self.right))))

    @cached_property
    def grows(self) -> bool:
        """Whether the direction applies to every value, or leaves inputs or symbols open."""
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
        """The operator of the first output; empty for an input."""
        node = self.left[0].node
        return "" if node.is_leaf else node.name


def directions(rule: Rule, equal: tuple[SizeEquation, ...] = ()) -> Iterator[RewriteDirection]:
    """Yield both directions of a rule, and of each of its outputs alone if it has several.
    ``equal``: the equations between sizes under which the rule is proved."""
    pairs = [(rule.left, rule.right)]
    if len(rule.left) > 1:
        pairs += [((a,), (b,)) for a, b in zip(rule.left, rule.right, strict=True)]
    for left, right in pairs:
        if left != right:
            yield RewriteDirection(rule, True, left, right, equal)
            yield RewriteDirection(rule, False, right, left, equal)


@dataclass(frozen=True)
class Pool:
    """The values and numbers among which open inputs and symbols are chosen."""

    values: Outputs
    sizes: tuple[int, ...]
    degrees: tuple[int, ...]
    reals: tuple[float, ...]

    @staticmethod
    def of(*graphs: Graph) -> Pool:
        """The values of the graphs, and the numbers in their types and attributes."""
        nodes = tuple(dict.fromkeys(node for graph in graphs for node in graph.nodes))
        values = tuple(value for node in nodes for value in ports(node))
        sizes = {size for value in values for size in value.type.shape}
        degrees, reals = set[int](), set[float]()
        for node in nodes:
            for name, given in () if node.is_leaf else node.operator_call.attributes:
                if isinstance(given, float):
                    reals.add(given)
                elif isinstance(given, int):
                    (degrees if name == "degree" else sizes).add(given)
        numbers = (sorted(distinct) for distinct in (sizes, degrees))
        sizes_found, degrees_found = (tuple(distinct) for distinct in numbers)
        return Pool(values, sizes_found, degrees_found, tuple(sorted(reals)))


def at(direction: RewriteDirection, host: Value, pool: Pool) -> Iterator[Value]:
    """Yield the values by which a direction with one output may replace a value. They have the same
    type."""
    for bound in bindings(direction.left[0], host, Binding({}, {})):
        for (image,) in _images(direction, bound, (host,), pool):
            yield image


def joint_replacements(
    direction: RewriteDirection, graph: Graph, pool: Pool
) -> Iterator[Mapping[Value, Value]]:
    """Yield the replacements of values of a graph by a direction with several outputs, each as a
    mapping from old to new values."""
    hosts = [value for node in graph.nodes for value in ports(node)]

    def places(count: int) -> Iterator[tuple[Binding, Outputs]]:
        if not count:
            yield Binding({}, {}), ()
            return
        for bound, chosen in places(count - 1):
            for host in hosts:
                if host not in chosen:
                    for more in bindings(direction.left[count - 1], host, bound):
                        yield more, (*chosen, host)

    for bound, chosen in places(len(direction.left)):
        for images in _images(direction, bound, chosen, pool):
            yield dict(zip(chosen, images, strict=True))


def _images(
    direction: RewriteDirection, bound: Binding, hosts: Outputs, pool: Pool
) -> Iterator[Outputs]:
    """Yield the outputs of the right side at a match, for each choice of open inputs and symbols
    for which the types agree."""
    for chosen in _completed(direction, bound, pool):
        try:
            images = instantiated(direction.right, chosen.values, chosen.numbers)
            alike = all(a.type == b.type for a, b in zip(images, hosts, strict=True))
        except (OperatorError, KeyError):
            continue
        if alike and images != hosts:
            yield images


def _completed(direction: RewriteDirection, bound: Binding, pool: Pool) -> Iterator[Binding]:
    """Yield the bindings of all inputs and symbols under which all equations hold."""
    solution = solved(bound)
    # Integer symbols are sizes, paddings and degrees, which are not negative.
    if solution is None or any(isinstance(n, int) and n < 0 for n in solution[0].values()):
        return
    first = solution[0]
    leaves = direction.open_values
    numbers = _ranges(direction, [s for s in direction.open_symbols if s not in first], pool)
    hosts = [[v for v in pool.values if v.type.rank == leaf.rank] for leaf in leaves]
    choices = product(product(*hosts), product(*numbers.values()))
    for own, others in islice(choices, MAX_CHOICES):
        values = {leaf.name: value for leaf, value in zip(leaves, own, strict=True)}
        symbols = {**first, **dict(zip(numbers, others, strict=True))}
        full = Binding({**bound.values, **values}, symbols, bound.equations)
        known = full.numbers
        if not all(a.at(known) == b.at(known) for a, b in direction.equal):
            continue
        complete = solved(full)
        if complete is not None and not complete[1]:
            yield full


def _ranges(
    direction: RewriteDirection, symbols: Sequence[str], pool: Pool
) -> dict[str, Sequence[float]]:
    """The numbers to choose each symbol from, by the kind of the attributes that it occurs in."""
    ranges: dict[str, Sequence[float]] = {}
    for call, name, value in symbolic_attributes(both((direction.left, direction.right))):
        whole = pool.degrees if name == "degree" else pool.sizes
        for symbol in value.symbols.intersection(symbols):
            ranges[symbol] = pool.reals if name in call.operator.reals else whole
    return ranges
