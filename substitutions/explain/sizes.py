"""Chooses concrete sizes of a pair at which only sizes that are equal in general are equal.

Free sizes become large primes of different orders of magnitude. The sizes that follow from them,
and the degrees, are chosen by the verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from math import prod

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Value
from pcg.graph.pairs import GraphPair, both, calls
from verifier.agreement import agree, typed_sides
from verifier.concrete import Valuation, degree_choices, real_symbols
from verifier.instances import free_symbols, instances
from verifier.trusted.errors import Undecided
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, pair_sizes

LADDERS = (
    (11, 103, 1009, 10007, 100003, 1000003, 10000019, 100000007, 1000000007),
    (13, 107, 1013, 10009, 100019, 1000033, 10000079, 100000037, 1000000009),
)
"""Primes for free sizes, so that different products are different. They are far apart, so that some
order of them satisfies inequalities such as ``a + b <= n``."""
ORDERS = 720
"""The most orders of the primes that are tried."""
OFFSETS = ((17, 19, 23, 29), (31, 37, 41, 43))
"""The values of attributes that no tensor has as a size, such as padding."""


@dataclass(frozen=True)
class NumberNames:
    """The symbols of numbers in a typed pair, such as ``|x.0|``, if known. Degrees are in a mapping
    of their own, since they are small and may equal other numbers."""

    numbers: Mapping[int | float, str]
    degrees: Mapping[int | float, str]


@dataclass(frozen=True)
class TypedPair:
    """Both sides at concrete types."""

    left: Graph
    right: Graph
    names: NumberNames


def typed_pairs(
    left: Sequence[Value], right: Sequence[Value], equal: Sequence[SizeEquation]
) -> tuple[TypedPair, ...]:
    """The pair at two independent choices of sizes, degrees and reals, or at fewer if no more are
    found. Raises OperatorError, Undecided or Unsolvable if its sizes or types are not found."""
    pair = (tuple(left), tuple(right))
    sizes, _ = pair_sizes(*pair, equal)
    pairs: list[TypedPair] = []
    degrees = _degrees(pair)
    for number, ladder in enumerate(LADDERS):
        chosen = _at_primes(pair, sizes, degrees[number % len(degrees)], number, ladder)
        if chosen is not None:
            pairs.append(chosen)
    return tuple(pairs) if len(pairs) == len(LADDERS) else _small(pair, sizes, degrees[0])


def _degrees(pair: GraphPair) -> list[Mapping[str, int]]:
    """Choices of degrees at which both sides have the same types; first those with different
    degrees of operators."""
    if all(call.operator.parallel is None for call in calls(both(pair))):
        return [{}]
    agreed = agree(*typed_sides(*pair))
    if agreed is None:
        raise Undecided("no degrees at which both sides have the same type")
    return [*degree_choices(*pair, agreed[1]), agreed[1]]


def _at_primes(
    pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int], number: int, ladder: Sequence[int]
) -> TypedPair | None:
    """The pair at primes for its free sizes, in the first order of the primes that fits. None if no
    order fits."""
    sized = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    others = set(free_symbols(pair, sizes)) - sized
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
            return _typed(Valuation(pair, sizes, values, degrees, reals))
        except (OperatorError, KeyError):
            continue
    return None


def _fits(sizes: Sizes, values: Mapping[str, int]) -> bool:
    positive = (sizes.resolve(size).evaluate(values) > 0 for size in sizes.positive)
    return all(positive) and all(
        sizes.resolve(size).evaluate(values) >= 0 for size in sizes.naturals
    )


def _typed(valuation: Valuation) -> TypedPair:
    """Both sides at values of all symbols. Raises OperatorError if a side has no type, or the types
    differ."""
    left, right = valuation.graphs()
    if [v.type for v in left.outputs] != [v.type for v in right.outputs]:
        raise OperatorError("outputs", "*", None, "of different types")
    degrees = {s: v for s, v in valuation.degrees.items() if "." not in s}
    integers = {s: v for s, v in valuation.integers.items() if s not in degrees}
    names = {v: s for s, v in sorted(integers.items(), reverse=True) if ".by." not in s and v > 1}
    numbers = {**names, **{v: s for s, v in valuation.reals.items()}}
    return TypedPair(left, right, NumberNames(numbers, {v: s for s, v in degrees.items()}))


def _small(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> tuple[TypedPair, ...]:
    """The pair at the first small sizes that fit, for use if primes do not. There are no names,
    since different symbols may have the same small number."""
    pairs: dict[str, TypedPair] = {}
    for instance in instances(*pair, sizes, degrees):
        pair_found = TypedPair(instance.left, instance.right, NumberNames({}, {}))
        pairs.setdefault(instance.left.digest, pair_found)
        if len(pairs) == len(LADDERS):
            break
    return tuple(pairs.values())
