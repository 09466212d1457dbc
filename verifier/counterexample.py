"""Concrete inputs on which two graphs differ, found and replayed by the reference evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod

import numpy as np

from pcg.errors import OperatorError
from pcg.evaluate import concrete, evaluate_shards, meaning
from pcg.graph import Graph, Leaf, Node, Value
from pcg.ring import PrimeField
from pcg.tensor import Degrees, ParallelTensor
from pcg.text import print_graph
from verifier.sizes import Sizes, input_size

BASES = ((2, 3, 5, 7, 11, 13), (1, 2, 3, 5, 7, 4), (3, 2, 1, 4, 5, 7), (4, 3, 2, 1, 6, 5))
MAX_ELEMENTS = 200_000


@dataclass(frozen=True)
class Counterexample:
    """Types of the inputs, values of the symbols, and where the two sides differ."""

    inputs: tuple[tuple[str, str], ...]
    symbols: tuple[tuple[str, int], ...]
    left: str
    right: str
    difference: str

    def __str__(self) -> str:
        inputs = ", ".join(f"{name}: {kind}" for name, kind in self.inputs)
        symbols = "".join(f", {name} = {value}" for name, value in self.symbols)
        return f"{inputs}{symbols}: {self.difference}"


@dataclass(frozen=True)
class Instance:
    """A pair of graphs at concrete types."""

    left: Graph
    right: Graph
    symbols: Mapping[str, int]

    @property
    def leaves(self) -> dict[str, Leaf]:
        nodes = {*self.left.leaves, *self.right.leaves}
        return {node.leaf.name: node.leaf for node in sorted(nodes, key=lambda n: n.leaf.name)}


def instances(
    left: tuple[Value, ...],
    right: tuple[Value, ...],
    sizes: Sizes,
    degrees: Mapping[str, int],
) -> Iterator[Instance]:
    """The pair at small, pairwise different sizes and the given degrees, where it has types.

    The smallest come first; in most, sizes are multiples of what cuts them.
    """
    leaves = {v.node.leaf.name: v.node for v in _leaves((*left, *right))}
    free = _free_symbols(sizes)
    cuts = lcm(*(prod(_cuts(leaf, degrees)) for leaf in leaves.values()))
    most = cuts * prod(_attributes(degrees))
    for base in BASES:
        for factor in dict.fromkeys((1, cuts, lcm(cuts, *_attributes(degrees)), most)):
            values = {s: base[i % len(base)] * factor for i, s in enumerate(free)}
            instance = _instance(left, right, sizes, values, degrees)
            if instance is not None:
                yield instance


def replay(instance: Instance, seed: int = 0) -> Counterexample | None:
    """Evaluate both sides shard by shard over a prime field; what differs, if anything does."""
    if types := _type_difference(instance):
        return _report(instance, types)
    ring = PrimeField(generic=True)
    rng = np.random.default_rng(seed)
    leaves = {
        name: rng.integers(0, ring.prime, (leaf.type.degrees.partials, *leaf.type.shape))
        for name, leaf in instance.leaves.items()
        if leaf.type is not None
    }
    left = evaluate_shards(instance.left, leaves, ring)
    right = evaluate_shards(instance.right, leaves, ring)
    for output, (a, b) in enumerate(zip(left, right, strict=True)):
        x, y = meaning(a, ring), meaning(b, ring)
        differs = np.argwhere(x != y)
        if len(differs):
            at = tuple(int(i) for i in differs[0])
            where = f"element {list(at)} of output {output}"
            text = f"{where} is {x[at]} on the left, {y[at]} on the right (mod {ring.prime})"
            return _report(instance, text)
    return None


def _type_difference(instance: Instance) -> str | None:
    for output, (a, b) in enumerate(
        zip(instance.left.outputs, instance.right.outputs, strict=True)
    ):
        if a.type != b.type:
            return f"output {output} has type {a.type} on the left, {b.type} on the right"
    return None


def _report(instance: Instance, difference: str) -> Counterexample:
    return Counterexample(
        tuple((name, str(leaf.type)) for name, leaf in instance.leaves.items()),
        tuple(sorted((s, v) for s, v in instance.symbols.items() if not s.startswith("|"))),
        print_graph(instance.left),
        print_graph(instance.right),
        difference,
    )


def _instance(
    left: tuple[Value, ...],
    right: tuple[Value, ...],
    sizes: Sizes,
    values: Mapping[str, int],
    degrees: Mapping[str, int],
) -> Instance | None:
    full = dict(values)
    for symbol, size in sizes.solved.items():
        full[symbol] = sizes.resolve(size).evaluate(values)
    if any(value < 1 for value in full.values()):
        return None
    symbols = full | {s: v for s, v in degrees.items() if "." not in s}
    try:
        sides = [_typed(side, full, symbols, degrees) for side in (left, right)]
        for side in sides:
            side.check()
    except (OperatorError, KeyError):
        return None
    if any(v.type.elements > MAX_ELEMENTS for s in sides for n in s.nodes for v in _ports(n)):
        return None
    return Instance(sides[0], sides[1], symbols)


def _ports(node: Node) -> list[Value]:
    return [Value(node, port) for port in range(len(node.types))]


def _typed(
    outputs: tuple[Value, ...],
    sizes: Mapping[str, int],
    symbols: Mapping[str, int],
    degrees: Mapping[str, int],
) -> Graph:
    """One side with its inputs and attributes made concrete."""
    new: dict[Node, Node] = {}
    for node in Graph(outputs).nodes:
        if isinstance(node.call, Leaf):
            new[node] = Node(_typed_leaf(node.call, sizes, degrees))
            continue
        inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
        new[node] = Node(concrete(node.call, dict(symbols)), inputs)
    return Graph(tuple(Value(new[v.node], v.port) for v in outputs))


def _typed_leaf(leaf: Leaf, sizes: Mapping[str, int], degrees: Mapping[str, int]) -> Leaf:
    shape = tuple(sizes[input_size(leaf.name, i)] for i in range(leaf.rank))
    own = Degrees(
        tuple(degrees.get(f"{leaf.name}.d{i}", 1) for i in range(leaf.rank)),
        tuple(degrees.get(f"{leaf.name}.t{i}", 1) for i in range(leaf.rank)),
        degrees.get(f"{leaf.name}.c", 1),
        degrees.get(f"{leaf.name}.p", 1),
    )
    cuts = zip(shape, own.dims, own.slices, strict=True)
    for dim, (size, degree, slices) in enumerate(cuts):
        if size % (degree * slices):
            raise OperatorError("input", leaf.name, dim, "not divisible")
    return Leaf("input", leaf.name, leaf.rank, ParallelTensor(shape, own))


def _leaves(values: Sequence[Value]) -> list[Value]:
    return [Value(node) for node in Graph(tuple(values)).leaves]


def _free_symbols(sizes: Sizes) -> list[str]:
    known = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    return sorted(known)


def _cuts(leaf: Node, degrees: Mapping[str, int]) -> list[int]:
    name = leaf.leaf.name
    return [v for s, v in degrees.items() if s.startswith((f"{name}.d", f"{name}.t"))]


def _attributes(degrees: Mapping[str, int]) -> list[int]:
    return [v for s, v in degrees.items() if "." not in s]


__all__ = ["Counterexample", "Instance", "instances", "replay"]
