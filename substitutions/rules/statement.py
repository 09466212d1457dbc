"""Prints a rule as one line for readers. Axes have names, and positions are given by these names.

    f(partition(x[a..., i, b...], i, k)) = partition(f(x), i, k)

An input lists its axes where it first occurs. A result lists them if an attribute names one of its
new axes: ``expand(x[a..., b...], j, size)[a..., j, b...]``. Axes that have to have the same size
have the same name. ``a...`` is any number of axes, and ``|i|`` is the size of axis i. Degrees and
symbols are printed without the names of their attributes. ``f``, ``g`` and ``h`` are any
element-wise operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pcg.disjoint import DisjointSets
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.graph.pairs import GraphPair, Outputs, both, ports, symbolic_attributes
from pcg.language.poly import Poly
from pcg.ops.stand_ins import STAND_INS
from pcg.types.operator import Attribute
from verifier.trusted.sizes.runs import Group, ValueDim

RUN_NAMES = "abcde"
AXIS_NAMES = "ijmnpqrl"
FUNCTION_NAMES = "fgh"
_SIZE = re.compile(r"\|(\w+)\.(\d+)\|")


def statement(pair: GraphPair, runs: Sequence[Group]) -> str:
    """Both sides as text, with named axes."""
    axes = _AxisClasses(pair)
    words = _StatementPrinter(axes, _axis_names(pair, runs, axes), _functions(pair))
    return " = ".join(words.side(side) for side in pair)


class _AxisClasses:
    """Classes of dimensions that have to have the same size. ``hints``: the names of dimensions in
    the equations of operators."""

    def __init__(self, pair: GraphPair) -> None:
        same = DisjointSets[ValueDim]()
        self.root, self._join = same.root, same.join
        self.hints: dict[ValueDim, str] = {}
        self.leaves: dict[str, Node] = {}
        for node in both(pair).nodes:
            if isinstance(node.call, Leaf):
                self.leaves[node.call.name] = node
            else:
                self._visit(node)
        for a, b in zip(*pair, strict=True):
            for dim in range(a.rank):
                self._join((a, dim), (b, dim))

    def _visit(self, node: Node) -> None:
        """Join the dimensions that have the same index in the equation of an operator."""
        template = node.operator_call.operator.template
        known: dict[str, ValueDim] = {}
        named = {n for part in template.placing for d in part.dims if not d.run for n in d.names}
        for value, dims in zip((*node.inputs, *ports(node)), _dimensions(node), strict=True):
            for dim, names in enumerate(dims):
                if len(names) == 1:
                    self._join((value, dim), known.setdefault(names[0], (value, dim)))
                    if names[0] in named:
                        self.hints.setdefault((value, dim), names[0])

    def suggested(self) -> dict[ValueDim, str]:
        """The first name that an equation has for each axis."""
        names: dict[ValueDim, str] = {}
        for place, name in self.hints.items():
            names.setdefault(self.root(place), name)
        return names


def _dimensions(node: Node) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The index names in each dimension of the operands of a node, then of its outputs."""
    equation = node.operator_call.instance(tuple(value.rank for value in node.inputs))
    for part in (*equation.operands, *equation.outputs):
        yield tuple(dim.names for dim in part.dims)


def _axis_names(pair: GraphPair, runs: Sequence[Group], axes: _AxisClasses) -> dict[ValueDim, str]:
    """A name for each axis: for runs first, then for the axes of values, operands first."""
    taken = {*axes.leaves, *_symbols(pair)}
    suggested = axes.suggested()
    names: dict[ValueDim, str] = {}
    for group in runs:
        name, dim = group[0]
        root = axes.root((axes.leaves[name].value(), dim))
        names.setdefault(root, _fresh(RUN_NAMES, taken) + "...")
    for node in both(pair).nodes:
        for place in ((value, dim) for value in ports(node) for dim in range(value.rank)):
            root = axes.root(place)
            hint = suggested.get(root, "")
            if root not in names:
                short = len(hint) == 1 and hint not in taken and hint not in RUN_NAMES
                names[root] = _fresh(hint if short else AXIS_NAMES, taken)
    return names


def _fresh(names: str, taken: set[str]) -> str:
    """The first letter of ``names`` that is free, with a number if all are taken. It is added to
    ``taken``."""
    number = 0
    while True:
        for name in names:
            wanted = f"{name}{number or ''}"
            if wanted not in taken:
                taken.add(wanted)
                return wanted
        number += 1


def _symbols(pair: GraphPair) -> set[str]:
    attributes = symbolic_attributes(both(pair))
    return {symbol for _, _, value in attributes for symbol in value.symbols}


def _functions(pair: GraphPair) -> dict[str, str]:
    """A letter for each stand-in."""
    nodes = both(pair).nodes
    taken = {node.leaf.name for node in nodes if node.is_leaf} | _symbols(pair)
    used = [name for name in STAND_INS if any(node.name == name for node in nodes)]
    return {name: _fresh(FUNCTION_NAMES, taken) for name in used}


class _StatementPrinter:
    """Prints values. A value lists its axes at most once."""

    def __init__(
        self, axes: _AxisClasses, names: dict[ValueDim, str], functions: dict[str, str]
    ) -> None:
        self._axes, self._names, self._functions = axes, names, functions
        self._stated: set[Value] = set()
        self._inputs = {
            axes.root((node.value(), dim))
            for node in axes.leaves.values()
            for dim in range(node.leaf.rank)
        }

    def side(self, values: Outputs) -> str:
        named = self._named_axes(values)
        return ", ".join(self._value(value, named) for value in values)

    def _named_axes(self, values: Outputs) -> frozenset[ValueDim]:
        """The axes of results that attributes name and no input has."""
        nodes = (node for node in Graph(values).nodes if not node.is_leaf)
        places = (place for node in nodes for place in _positions(node).values())
        return frozenset(self._axes.root(place) for place in places) - self._inputs

    def _value(self, value: Value, named: frozenset[ValueDim]) -> str:
        node = value.node
        if isinstance(node.call, Leaf):
            return node.call.name + self._brackets(value)
        parts = [self._value(operand, named) for operand in node.inputs]
        parts += [
            text for name, given in node.call.attributes if (text := self._given(node, name, given))
        ]
        port = f".{value.port}" if len(node.call.operator.outputs) > 1 else ""
        text = f"{self._functions.get(node.name, node.name)}({', '.join(parts)}){port}"
        new = {self._axes.root((value, dim)) for dim in range(value.rank)}
        old = {self._axes.root((v, dim)) for v in node.inputs for dim in range(v.rank)}
        return text + (self._brackets(value) if (new - old) & named else "")

    def _brackets(self, value: Value) -> str:
        """The list of a value's axes; empty if it has been printed before."""
        if value in self._stated:
            return ""
        self._stated.add(value)
        return f"[{', '.join(self._name((value, dim)) for dim in range(value.rank))}]"

    def _name(self, place: ValueDim) -> str:
        """The name of an axis, with a prime for each earlier axis of its tensor in its class."""
        value, dim = place
        root = self._axes.root(place)
        before = sum(self._axes.root((value, d)) == root for d in range(dim))
        return self._names[root] + "'" * before

    def _given(self, node: Node, name: str, given: Attribute) -> str:
        place = _positions(node).get(name)
        if place is not None:
            return self._name(place)
        text = _SIZE.sub(self._size, str(given))
        return text if name == "degree" or isinstance(given, Poly) else f"{name}={text}"

    def _size(self, match: re.Match[str]) -> str:
        leaf = self._axes.leaves.get(match[1])
        if leaf is None or int(match[2]) >= leaf.leaf.rank:
            return match[0]
        return f"|{self._name((leaf.value(), int(match[2])))}|"


def _positions(node: Node) -> dict[str, ValueDim]:
    """The attributes that are positions of axes, with the dimensions that they name."""
    call = node.operator_call
    places: dict[str, ValueDim] = {}
    values, placing = (*node.inputs, *ports(node)), call.operator.template.placing
    for value, declared in zip(values, placing, strict=True):
        for dim in declared.dims:
            if dim.position is not None:
                places.setdefault(dim.position, (value, call.integer(dim.position)))
    if "dim" in call.values:
        places["dim"] = (node.inputs[0], call.integer("dim"))
    return places
