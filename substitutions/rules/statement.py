"""A rule in one line for readers, in which axes have names and positions are told by them.

    f(partition(x[a..., i, b...], i, k)) = partition(f(x), i, k)

An input states its axes where it first occurs, and so does a result whose new axes are spoken of:
``expand(x[a..., b...], j, size)[a..., j, b...]``. Axes that have to be of one size have one name;
``a...`` is any number of axes, ``|i|`` the size of one. Degrees and symbols stand without the
names of their attributes; ``f``, ``g`` and ``h`` are any element-wise operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.language.poly import Poly
from pcg.ops.stand_ins import STAND_INS
from pcg.types.operator import Call
from pcg.types.operator import Value as Attribute
from verifier.trusted.sizes.runs import Group, Place

RUN_NAMES = "abcde"
AXIS_NAMES = "ijmnpqrl"
FUNCTION_NAMES = "fgh"
_SIZE = re.compile(r"\|(\w+)\.(\d+)\|")


def statement(left: Sequence[Value], right: Sequence[Value], runs: Sequence[Group]) -> str:
    """Both sides with their axes named."""
    sides = (tuple(left), tuple(right))
    axes = _SameAxes(sides)
    words = _Words(axes, _axis_names(sides, runs, axes), _functions(sides))
    return " = ".join(words.side(side) for side in sides)


class _SameAxes:
    """Which dimensions have to be of one size, and what their positions in equations suggest."""

    def __init__(self, sides: tuple[tuple[Value, ...], tuple[Value, ...]]) -> None:
        self._parent: dict[Place, Place] = {}
        self.hints: dict[Place, str] = {}
        self.leaves: dict[str, Node] = {}
        for node in Graph((*sides[0], *sides[1])).nodes:
            if isinstance(node.call, Leaf):
                self.leaves[node.call.name] = node
            else:
                self._visit(node)
        for a, b in zip(*sides, strict=True):
            for dim in range(a.rank):
                self._join((a, dim), (b, dim))

    def _visit(self, node: Node) -> None:
        """Join what has one index in the equation of an operator."""
        template = node.operator_call.operator.template
        known: dict[str, Place] = {}
        named = {n for part in template.placing for d in part.dims if not d.run for n in d.names}
        for value, dims in zip(_values_of(node), _dimensions(node), strict=True):
            for dim, names in enumerate(dims):
                if len(names) == 1:
                    self._join((value, dim), known.setdefault(names[0], (value, dim)))
                    if names[0] in named:
                        self.hints.setdefault((value, dim), names[0])

    def root(self, place: Place) -> Place:
        while (parent := self._parent.get(place, place)) != place:
            place = parent
        return place

    def _join(self, a: Place, b: Place) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._parent[a] = b

    def suggested(self) -> dict[Place, str]:
        """For each axis the first name that an equation has for it."""
        found: dict[Place, str] = {}
        for place, name in self.hints.items():
            found.setdefault(self.root(place), name)
        return found


def _values_of(node: Node) -> tuple[Value, ...]:
    """The operands of a node, then its outputs."""
    return (*node.inputs, *(node.value(port) for port in range(len(node.ranks))))


def _dimensions(node: Node) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The index names in each dimension of the operands of a node, then of its outputs."""
    equation = node.operator_call.instance(tuple(value.rank for value in node.inputs))
    for part in (*equation.operands, *equation.outputs):
        yield tuple(dim.names for dim in part.dims)


def _axis_names(
    sides: tuple[tuple[Value, ...], tuple[Value, ...]], runs: Sequence[Group], axes: _SameAxes
) -> dict[Place, str]:
    """A name for each axis: of inputs in order of use, then of results."""
    taken = {*axes.leaves, *_symbols(sides)}
    suggested = axes.suggested()
    found: dict[Place, str] = {}
    for group in runs:
        name, dim = group[0]
        root = axes.root((axes.leaves[name].value(), dim))
        found.setdefault(root, _fresh(RUN_NAMES, taken) + "...")
    for node in Graph((*sides[0], *sides[1])).nodes:
        values = [node.value(port) for port in range(len(node.ranks))]
        for place in ((value, dim) for value in values for dim in range(value.rank)):
            root = axes.root(place)
            hint = suggested.get(root, "")
            if root not in found:
                short = len(hint) == 1 and hint not in taken and hint not in RUN_NAMES
                found[root] = _fresh(hint if short else AXIS_NAMES, taken)
    return found


def _fresh(names: str, taken: set[str]) -> str:
    """The first of some letters that is free, with a number where all are taken."""
    number = 0
    while True:
        for name in names:
            wanted = f"{name}{number or ''}"
            if wanted not in taken:
                taken.add(wanted)
                return wanted
        number += 1


def _symbols(sides: tuple[tuple[Value, ...], tuple[Value, ...]]) -> set[str]:
    values = (
        value
        for node in Graph((*sides[0], *sides[1])).nodes
        if isinstance(node.call, Call)
        for _, value in node.call.attributes
    )
    return {s for value in values if isinstance(value, Poly) for s in value.symbols}


def _functions(sides: tuple[tuple[Value, ...], tuple[Value, ...]]) -> dict[str, str]:
    """A letter for each stand-in."""
    nodes = Graph((*sides[0], *sides[1])).nodes
    taken = {node.leaf.name for node in nodes if node.is_leaf} | _symbols(sides)
    used = [name for name in STAND_INS if any(node.name == name for node in nodes)]
    return {name: _fresh(FUNCTION_NAMES, taken) for name in used}


class _Words:
    """Prints values; what has stated its axes once does not do so again."""

    def __init__(self, axes: _SameAxes, names: dict[Place, str], functions: dict[str, str]) -> None:
        self._axes, self._names, self._functions = axes, names, functions
        self._stated: set[Value] = set()
        self._inputs = {
            axes.root((node.value(), dim))
            for node in axes.leaves.values()
            for dim in range(node.leaf.rank)
        }

    def side(self, values: tuple[Value, ...]) -> str:
        spoken = self._spoken_of(values)
        return ", ".join(self._value(value, spoken) for value in values)

    def _spoken_of(self, values: tuple[Value, ...]) -> frozenset[Place]:
        """The axes of results, and of no input, that attributes name."""
        nodes = (node for node in Graph(values).nodes if not node.is_leaf)
        places = (place for node in nodes for place in _positions(node).values())
        return frozenset(self._axes.root(place) for place in places) - self._inputs

    def _value(self, value: Value, spoken: frozenset[Place]) -> str:
        node = value.node
        if isinstance(node.call, Leaf):
            return node.call.name + self._brackets(value)
        parts = [self._value(operand, spoken) for operand in node.inputs]
        parts += [
            text for name, given in node.call.attributes if (text := self._given(node, name, given))
        ]
        port = f".{value.port}" if len(node.call.operator.outputs) > 1 else ""
        text = f"{self._functions.get(node.name, node.name)}({', '.join(parts)}){port}"
        new = {self._axes.root((value, dim)) for dim in range(value.rank)}
        old = {self._axes.root((v, dim)) for v in node.inputs for dim in range(v.rank)}
        return text + (self._brackets(value) if (new - old) & spoken else "")

    def _brackets(self, value: Value) -> str:
        """The axes of a value, where it has not stated them before."""
        if value in self._stated:
            return ""
        self._stated.add(value)
        return f"[{', '.join(self._name((value, dim)) for dim in range(value.rank))}]"

    def _name(self, place: Place) -> str:
        """The name of an axis; with a stroke where an earlier one of the tensor is as long."""
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


def _positions(node: Node) -> dict[str, Place]:
    """The attributes that say where an axis is, with the dimension that they speak of."""
    call = node.operator_call
    found: dict[str, Place] = {}
    for value, declared in zip(_values_of(node), call.operator.template.placing, strict=True):
        for dim in declared.dims:
            if dim.position is not None:
                found.setdefault(dim.position, (value, call.integer(dim.position)))
    if "dim" in call.values:
        found["dim"] = (node.inputs[0], call.integer("dim"))
    return found
