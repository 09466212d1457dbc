"""A pair of graphs at concrete sizes at which nothing coincides that is not equal in general.

Sizes that are free become large numbers without a common factor, each of another order of
magnitude; those that follow from them, and degrees, are as the verifier has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from math import prod

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.language.poly import Poly
from pcg.readings.evaluate import concrete
from pcg.types.operator import Call
from pcg.types.tensor import Degrees, ParallelTensor
from verifier.agreement import agree, typed_sides
from verifier.concrete import degree_choices, real_symbols
from verifier.instances import instances, size_attributes
from verifier.trusted.errors import Undecided
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, input_size, pair_sizes

Pair = tuple[tuple[Value, ...], tuple[Value, ...]]

LADDERS = (
    (11, 103, 1009, 10007, 100003, 1000003, 10000019, 100000007, 1000000007),
    (13, 107, 1013, 10009, 100019, 1000033, 10000079, 100000037, 1000000009),
)
"""Primes, so that no product of some is a product of others, and far apart, so that some order of
them fits inequalities such as ``a + b <= n``."""
ORDERS = 720
"""How many orders of the primes are tried."""
OFFSETS = ((17, 19, 23, 29), (31, 37, 41, 43))
"""For attributes that are no size of any tensor, such as padding."""


@dataclass(frozen=True)
class Names:
    """What numbers in a typed pair stand for, such as ``|x.0|``, where that is known: sizes and
    reals, and apart from them degrees, which are small."""

    numbers: Mapping[int | float, str]
    degrees: Mapping[int | float, str]


@dataclass(frozen=True)
class TypedPair:
    """Both sides at concrete types."""

    left: Graph
    right: Graph
    names: Names


def typed_pairs(
    left: Sequence[Value], right: Sequence[Value], equal: Sequence[SizeEquation]
) -> tuple[TypedPair, ...]:
    """The pair at two independent choices of sizes, degrees and reals; fewer where no more are
    found. Raises OperatorError, Undecided or Unsolvable where its sizes cannot be told."""
    pair = (tuple(left), tuple(right))
    sizes, _ = pair_sizes(*pair, equal)
    found: list[TypedPair] = []
    degrees = _degrees(pair)
    for number, ladder in enumerate(LADDERS):
        chosen = _at_primes(pair, sizes, degrees[number % len(degrees)], number, ladder)
        if chosen is not None:
            found.append(chosen)
    return tuple(found) if len(found) == len(LADDERS) else _small(pair, sizes, degrees[0])


def _degrees(pair: Pair) -> list[Mapping[str, int]]:
    """Degrees at which both sides have the same type; of operators pairwise different first."""
    if not any(node.is_parallel or _joins(node) for node in Graph((*pair[0], *pair[1])).nodes):
        return [{}]
    agreed = agree(*typed_sides(*pair))
    if agreed is None:
        raise Undecided("no degrees at which both sides have the same type")
    return [*degree_choices(*pair, agreed[1]), agreed[1]]


def _joins(node: Node) -> bool:
    return isinstance(node.call, Call) and node.call.operator.parallel is not None


def _at_primes(
    pair: Pair, sizes: Sizes, degrees: Mapping[str, int], number: int, ladder: Sequence[int]
) -> TypedPair | None:
    """The pair at primes for its free sizes, in the first order of them that fits."""
    sized = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    others = _attribute_symbols(pair, sizes) - sized
    factor = prod(value for value in degrees.values())
    reals = {s: v * (1 - 1.5 * number) for s, v in real_symbols(pair).items()}
    offsets = OFFSETS[number]
    chosen = {s: offsets[i % len(offsets)] for i, s in enumerate(sorted(others))}
    orders = permutations(ladder[: len(sized)]) if len(sized) <= len(ladder) else iter(())
    for order in islice(orders, ORDERS):
        values = chosen | {s: p * factor for s, p in zip(sorted(sized), order, strict=True)}
        if not _fits(sizes, values):
            continue
        try:
            return _typed(pair, sizes, values, degrees, reals)
        except (OperatorError, KeyError):
            continue
    return None


def _attribute_symbols(pair: Pair, sizes: Sizes) -> set[str]:
    """The symbols of sizes and of whole attributes that do not follow from others."""
    return {s for v in (*size_attributes(pair), *sizes.naturals) for s in sizes.resolve(v).symbols}


def _fits(sizes: Sizes, values: Mapping[str, int]) -> bool:
    positive = (sizes.resolve(size).evaluate(values) > 0 for size in sizes.positive)
    return all(positive) and all(
        sizes.resolve(size).evaluate(values) >= 0 for size in sizes.naturals
    )


def _typed(
    pair: Pair,
    sizes: Sizes,
    values: Mapping[str, int],
    degrees: Mapping[str, int],
    reals: Mapping[str, float],
) -> TypedPair:
    """Both sides at values of all symbols. Raises OperatorError where one has no type."""
    integers = {s: sizes.resolve(v).evaluate(values) for s, v in sizes.solved.items()}
    integers |= values
    own = {s: v for s, v in degrees.items() if "." not in s}
    left, right = (_side(outputs, {**integers, **own}, degrees, reals) for outputs in pair)
    left.check()
    right.check()
    if [v.type for v in left.outputs] != [v.type for v in right.outputs]:
        raise OperatorError("outputs", "*", None, "of different types")
    names = {v: s for s, v in sorted(integers.items(), reverse=True) if ".by." not in s and v > 1}
    numbers = {**names, **{v: s for s, v in reals.items()}}
    return TypedPair(left, right, Names(numbers, {v: s for s, v in own.items()}))


def _side(
    outputs: tuple[Value, ...],
    integers: Mapping[str, int],
    degrees: Mapping[str, int],
    reals: Mapping[str, float],
) -> Graph:
    new: dict[Node, Node] = {}
    for node in Graph(outputs).nodes:
        if isinstance(node.call, Leaf):
            new[node] = Node(_typed_leaf(node.call, integers, degrees))
            continue
        call = concrete(node.call, integers)
        attributes = tuple(
            (name, evaluated(value, reals) if isinstance(value, Poly) else value)
            for name, value in call.attributes
        )
        inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
        new[node] = Node(Call(call.operator, attributes), inputs)
    return Graph(tuple(Value(new[v.node], v.port) for v in outputs))


def _typed_leaf(leaf: Leaf, sizes: Mapping[str, int], degrees: Mapping[str, int]) -> Leaf:
    name = leaf.name
    shape = tuple(sizes[input_size(name, dim)] for dim in range(leaf.rank))
    cuts, slices = (
        tuple(degrees.get(f"{name}.{kind}{dim}", 1) for dim in range(leaf.rank)) for kind in "dt"
    )
    own = Degrees(cuts, slices, degrees.get(f"{name}.c", 1), degrees.get(f"{name}.p", 1))
    if any(size % (cut * part) for size, cut, part in zip(shape, cuts, slices, strict=True)):
        raise OperatorError("input", name, None, "not divisible")
    return Leaf("input", name, leaf.rank, ParallelTensor(shape, own))


def _small(pair: Pair, sizes: Sizes, degrees: Mapping[str, int]) -> tuple[TypedPair, ...]:
    """The pair at the first small sizes that fit, where primes do not; a small number may stand
    for anything, hence no names."""
    found: dict[str, TypedPair] = {}
    for instance in instances(*pair, sizes, degrees):
        pair_found = TypedPair(instance.left, instance.right, Names({}, {}))
        found.setdefault(instance.left.digest, pair_found)
        if len(found) == len(LADDERS):
            break
    return tuple(found.values())


def evaluated(value: Poly, numbers: Mapping[str, int | float]) -> int | float:
    """The value of an attribute; KeyError names a symbol without one."""
    return sum(c * prod(numbers[symbol] for symbol in monomial) for monomial, c in value.terms)
