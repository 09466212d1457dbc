"""Concrete inputs on which two graphs differ, found and replayed by the reference evaluation.

Evaluation over a prime field is exact and leaves functions uninterpreted, so it finds every
difference; but ``relu(relu(x))`` differs from ``relu(x)`` there. Only what differs in real numbers
too is a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod

import numpy as np

from pcg.errors import OperatorError
from pcg.evaluate import concrete, evaluate_shards, meaning
from pcg.expr import Apply, accesses, walk
from pcg.graph import Graph, Leaf, Node, Value
from pcg.ring import Array, PrimeField, Reals
from pcg.tensor import Degrees, ParallelTensor
from pcg.text import print_graph
from verifier.sizes import Sizes, input_size

BASES = ((2, 3, 5, 7, 11, 13), (1, 2, 3, 5, 7, 4), (3, 2, 1, 4, 5, 7), (4, 3, 2, 1, 6, 5))
MAX_ELEMENTS = 200_000
MAX_INDEX = 4
"""Token ids are below: small, so that some of them are the index of a row."""


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
    """Evaluate both sides shard by shard; how they differ, if they do."""
    if types := _type_difference(instance):
        return _report(instance, types)
    if _value_difference(instance, PrimeField(generic=True), seed) is None:
        return None
    values = _value_difference(instance, Reals(), seed)
    return _report(instance, values) if values is not None else None


def _value_difference(instance: Instance, ring: PrimeField | Reals, seed: int) -> str | None:
    leaves = random_leaves(instance, ring, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        left = evaluate_shards(instance.left, leaves, ring)
        right = evaluate_shards(instance.right, leaves, ring)
    for output, (a, b) in enumerate(zip(left, right, strict=True)):
        x, y = meaning(a, ring), meaning(b, ring)
        exact = isinstance(ring, PrimeField)
        differs = np.argwhere(x != y if exact else ~np.isclose(x, y, 1e-6, 1e-9, equal_nan=True))
        if len(differs):
            at = tuple(int(i) for i in differs[0])
            where = f"element {list(at)} of output {output}"
            return f"{where} is {x[at]} on the left, {y[at]} on the right"
    return None


def random_leaves(
    instance: Instance, ring: PrimeField | Reals, rng: np.random.Generator
) -> dict[str, Array]:
    """V of every input at random, shape (partials, *shape); in real numbers, inputs that are
    compared with indices are indices."""
    indices = _index_leaves(instance)
    found: dict[str, Array] = {}
    for name, leaf in instance.leaves.items():
        assert leaf.type is not None
        shape = (leaf.type.degrees.partials, *leaf.type.shape)
        if isinstance(ring, PrimeField):
            found[name] = rng.integers(0, ring.prime, shape)
        elif name in indices:
            found[name] = rng.integers(0, MAX_INDEX, shape).astype(np.float64)
        else:
            found[name] = rng.standard_normal(shape)
    return found


def _index_leaves(instance: Instance) -> set[str]:
    """The inputs that stand in a test of equality, such as token ids."""
    found: set[str] = set()
    for node in (n for side in (instance.left, instance.right) for n in side.nodes):
        if node.is_leaf:
            continue
        equation = node.operator_call.instance(tuple(v.type.rank for v in node.inputs))
        for part in (part for output in equation.outputs for part in walk(output.body)):
            if isinstance(part, Apply) and part.function == "eq":
                read = {access.operand for access in accesses(part)}
                found |= {
                    v.node.leaf.name
                    for i, v in enumerate(node.inputs)
                    if i in read and v.node.is_leaf
                }
    return found


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
