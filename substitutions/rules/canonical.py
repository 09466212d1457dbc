"""Canonical form of pairs: one form for pairs that differ in names, operand order or direction.

Method: a pair is read in several ways. Free are the side that is read first, if both have equally
many inputs and operators, the order of the paired outputs, and the order of commuting operands of
the same shape. In each reading, names are given in order of use. The canonical form is the reading
with the least text.
Complexity: at most ``MOST_READINGS`` readings. Exact for pairs that have no more.
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
"""The names of symbols by attribute, if not the attribute's name."""
MOST_READINGS = 512
"""The most readings that are compared. Only pairs with many operands of the same shape have
more."""

Orders = Mapping[Node, tuple[Value, ...]]
"""The operands of commutative operators, in the order of a reading."""


def canonical_pair(pair: GraphPair) -> GraphPair:
    """The pair with operands in a fixed order, the side with more inputs and operators on the left,
    and inputs and symbols named in order of use."""
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
    """The orders of the sides to read. The side with all inputs comes first; if both have all or
    neither has, the side with more operators; both orders if that is equal too."""
    left, right = pair
    inputs = variables((*left, *right))
    said = [(variables(side) == inputs, operators_in(side)) for side in pair]
    if said[0] == said[1]:
        return [(left, right), (right, left)]
    return [(left, right) if said[0] > said[1] else (right, left)]


def _orders(nodes: Sequence[Node]) -> Iterator[Orders]:
    """Yield the orders of the operands of commutative operators: sorted by shape without names, and
    both orders of operands with the same shape."""
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
    """Texts of values without the names of inputs and symbols."""

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
    """A reading of a pair: names for inputs and symbols in order of use, and the text with these
    names."""

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
        """Name a symbol by the attribute in which it occurs first: ``at``, ``at2``, ..."""
        if symbol.startswith("|"):
            leaf = self._leaves.get(symbol[1:-1].rpartition(".")[0])
            if leaf is not None:
                self._input(leaf)
            return
        count = self._stems[stem] = self._stems.get(stem, 0) + 1
        self._symbols[symbol] = Poly.of(stem if count == 1 else f"{stem}{count}")

    def named(self) -> GraphPair:
        """The pair with the names and orders of this reading."""

        def make(node: Node, inputs: Outputs) -> Node:
            if isinstance(node.call, Leaf):
                leaf = node.call
                return Node(Leaf(leaf.kind, self._inputs[leaf.name], leaf.rank))
            as_read = self._operands(node) == node.inputs
            call = with_polynomials(node.call, self._symbols)
            return Node(call, inputs if as_read else inputs[::-1])

        return halves(remade(both(self._pair), make))
