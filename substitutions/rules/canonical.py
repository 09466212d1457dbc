"""Brings pairs that differ in names, order of operands and direction only into one form.

Method: every pair has several readings: which side is read first where neither has more to say, in
which order the outputs are paired, and the order of operands that commute and look alike. Names are
given in the order in which a reading meets them, and the reading with the least text is the form.
Complexity: at most ``MOST_READINGS``; exact for pairs that have no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations, product

from pcg.graph.graph import Leaf, Node, Value
from pcg.graph.pairs import GraphPair, Outputs, both, halves, remade, with_polynomials
from pcg.language.poly import Poly
from pcg.types.operator import Attribute, Call
from substitutions.rules.rule import operators_in, variables
from verifier.trusted.sizes.sizes import input_size

NAMES = ("x", "y", "z", "w", "u", "v", "s", "t")
STEMS = {"degree": "k"}
"""What symbols are called, where that is not the name of their attribute."""
MOST_READINGS = 512
"""Readings that are compared at most; only pairs with many operands that look alike have more."""

Orders = Mapping[Node, tuple[Value, ...]]
"""The operands of commutative operators, in the order in which they are read."""


def canonical_pair(pair: GraphPair) -> GraphPair:
    """The pair with operands in a fixed order, the side that says more on the left, and inputs and
    symbols named in order of use."""
    readings = list(islice(_readings(pair), MOST_READINGS))
    if len(readings) == 1:
        return readings[0].named()
    return min(readings, key=lambda reading: reading.text).named()


def _readings(pair: GraphPair) -> Iterator[_Reading]:
    directions = _directions(pair)
    outputs = list(permutations(range(len(pair[0]))))
    nodes = both(pair).nodes
    leaves = {node.name: node.leaf for node in nodes if node.is_leaf}
    for orders in _orders(nodes):
        for left, right in directions:
            for places in outputs:
                yield _Reading((reordered(left, places), reordered(right, places)), orders, leaves)


def reordered(side: Outputs, places: Sequence[int]) -> Outputs:
    """The outputs of a side in another order."""
    return tuple(side[place] for place in places)


def _directions(pair: GraphPair) -> list[GraphPair]:
    """The side with all inputs first; of two such, the one with more operators; both ways where
    that is no difference."""
    left, right = pair
    inputs = variables((*left, *right))
    said = [(variables(side) == inputs, operators_in(side)) for side in pair]
    if said[0] == said[1]:
        return [(left, right), (right, left)]
    return [(left, right) if said[0] > said[1] else (right, left)]


def _orders(nodes: Sequence[Node]) -> Iterator[Orders]:
    """The orders of the operands of commutative operators: by what they look like without names,
    and all orders of those that look alike."""
    shapes = _Shapes()
    fixed: dict[Node, tuple[Value, ...]] = {}
    open_: list[tuple[Node, list[tuple[Value, ...]]]] = []
    for node in nodes:
        if not isinstance(node.call, Call) or not node.call.operator.commutative:
            continue
        ordered = tuple(sorted(node.inputs, key=shapes.of))
        if ordered[0] != ordered[-1] and shapes.of(ordered[0]) == shapes.of(ordered[-1]):
            open_.append((node, [ordered, ordered[::-1]]))
        else:
            fixed[node] = ordered
    for chosen in product(*(options for _, options in open_)):
        yield {**fixed, **dict(zip((node for node, _ in open_), chosen, strict=True))}


class _Shapes:
    """What values look like without the names of inputs and symbols."""

    def __init__(self) -> None:
        self._known: dict[Node, str] = {}

    def of(self, value: Value) -> str:
        return f"{self._node(value.node)}.{value.port}"

    def _node(self, node: Node) -> str:
        if node not in self._known:
            self._known[node] = self._made(node)
        return self._known[node]

    def _made(self, node: Node) -> str:
        if isinstance(node.call, Leaf):
            return f"_{node.call.rank}"
        operands = [self.of(value) for value in node.inputs]
        if node.call.operator.commutative:
            operands.sort()
        attributes = (
            f"{name}=_" if isinstance(value, Poly) and value.symbols else f"{name}={value}"
            for name, value in node.call.attributes
        )
        return f"{node.call.name}({','.join((*operands, *attributes))})"


class _Reading:
    """A pair as it is read: names in order of use, and the text with these names."""

    def __init__(self, pair: GraphPair, orders: Orders, leaves: Mapping[str, Leaf]) -> None:
        self._pair, self._orders, self._leaves = pair, orders, leaves
        self._inputs: dict[str, str] = {}
        self._symbols: dict[str, Poly] = {}
        self._stems: dict[str, int] = {}
        self.text = " == ".join(", ".join(self._read(v) for v in side) for side in pair)

    def _read(self, value: Value) -> str:
        node = value.node
        if isinstance(node.call, Leaf):
            return self._input(node.call)
        operands = [self._read(v) for v in self._operands(node)]
        attributes = [f"{name}={self._attribute(name, v)}" for name, v in node.call.attributes]
        return f"{node.call.name}({', '.join((*operands, *attributes))}).{value.port}"

    def _operands(self, node: Node) -> tuple[Value, ...]:
        return self._orders.get(node, node.inputs)

    def _input(self, leaf: Leaf) -> str:
        if leaf.name not in self._inputs:
            number = len(self._inputs)
            new = NAMES[number] if number < len(NAMES) else f"x{number}"
            self._inputs[leaf.name] = new
            for dim in range(leaf.rank):
                self._symbols[input_size(leaf.name, dim)] = Poly.of(input_size(new, dim))
        return self._inputs[leaf.name]

    def _attribute(self, name: str, value: Attribute) -> str:
        if not isinstance(value, Poly):
            return str(value)
        for symbol in sorted(value.symbols - self._symbols.keys()):
            self._name(symbol, STEMS.get(name, name.rstrip("0123456789")))
        return str(value.substitute(self._symbols))

    def _name(self, symbol: str, stem: str) -> None:
        """Name a symbol by where it occurs first: ``at``, ``at2``, ..."""
        if symbol.startswith("|"):
            leaf = self._leaves.get(symbol[1:-1].rpartition(".")[0])
            if leaf is not None:
                self._input(leaf)
            return
        count = self._stems[stem] = self._stems.get(stem, 0) + 1
        self._symbols[symbol] = Poly.of(stem if count == 1 else f"{stem}{count}")

    def named(self) -> GraphPair:
        """The pair with these names and orders."""

        def make(node: Node, inputs: Outputs) -> Node:
            if isinstance(node.call, Leaf):
                leaf = node.call
                return Node(Leaf(leaf.kind, self._inputs[leaf.name], leaf.rank))
            as_read = self._operands(node) == node.inputs
            call = with_polynomials(node.call, self._symbols)
            return Node(call, inputs if as_read else inputs[::-1])

        return halves(remade(both(self._pair), make))
