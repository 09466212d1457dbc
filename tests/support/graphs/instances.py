"""Pairs of graphs at random concrete types."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from pcg.errors import OperatorError
from pcg.graph.graph import Graph
from pcg.graph.pairs import Outputs
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import PrimeField, Reals
from verifier.concrete import Valuation, numbers, real_symbols
from verifier.counterexample import random_leaves
from verifier.instances import Instance, cuts_of, free_symbols, instantiate
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.degrees import Powers, Typing, typings
from verifier.trusted.sizes.sizes import SizeEquation, Sizes
from verifier.trusted.sizes.types import differences
from verifier.witness import solve

DEGREES = (2, 2, 3)
SIZES = (2, 3, 1, 4, 5, 7)
OFFSETS = (1, 1, 2)
SIZINGS = 12
MAX_ELEMENTS = 30_000
MAX_NUMBERS = 1 << 20
FIELD = PrimeField(generic=True)


def random_instance(
    left: Outputs,
    right: Outputs,
    random: Random,
    tries: int = 5,
    equal: Sequence[SizeEquation] = (),
) -> Instance | None:
    """The pair at some types at which both sides have equal types, and the sizes in ``equal`` are
    equal. None if no such types were found.

    ``tries`` degrees, copies or partials are set to 2 or 3 at random, or fewer of them if these are
    too many. The others follow, or are 1. Type inference on the concrete graphs checks that the
    types fit.
    """
    if len(left) != len(right):
        return None
    try:
        sides = [list(typings(Graph(side).nodes, side)) for side in (left, right)]
        sizes = Sizes.where(equal)
        for node in Graph((*left, *right)).nodes:
            sizes.visit(node)
        for a, b in zip(left, right, strict=True):
            for x, y in zip(sizes.shape(a), sizes.shape(b), strict=True):
                sizes.equal(x, y)
    except (OperatorError, ValueError, Unsolvable, Undecided):
        return None
    for pins in range(tries, -1, -1) if all(sides) else ():
        a, b = (random.choice(side) for side in sides)
        degrees = _degrees(a, b, random, pins)
        if degrees is None:
            continue
        instance = _sized(left, right, sizes, degrees, random)
        if instance is not None and all(
            a.type == b.type
            for a, b in zip(instance.left.outputs, instance.right.outputs, strict=True)
        ):
            return instance
    return None


def _degrees(a: Typing, b: Typing, random: Random, pins: int) -> dict[str, int] | None:
    """Degrees at which both types are equal, a few of them set at random."""
    if any(len(x.dims) != len(y.dims) for x, y in zip(a.types, b.types, strict=True)):
        return None
    names = sorted(a.symbols | b.symbols)
    pinned = random.sample(names, min(pins, len(names)))
    values = {s: random.choice(DEGREES) for s in pinned}
    equations = [Powers.of(s).over(Powers.number(v)) for s, v in values.items()]
    equations += [*a.equations, *b.equations, *differences(a, b)]
    solution = solve(equations, [*a.whole, *b.whole], names)
    return dict(solution) if solution is not None else None


def _sized(
    left: Outputs, right: Outputs, sizes: Sizes, degrees: dict[str, int], random: Random
) -> Instance | None:
    symbols = sorted({s for size in sizes.positive for s in sizes.resolve(size).symbols})
    # Strides, offsets and the like: no size of a tensor depends on them.
    others = [s for s in free_symbols((left, right), sizes) if s not in symbols]
    cuts = dict.fromkeys(symbols, 1) | cuts_of((left, right), sizes, degrees)
    operators = prod(value for name, value in degrees.items() if "." not in name)
    for attempt in range(SIZINGS):
        base = random.choices(SIZES if attempt < SIZINGS // 2 else SIZES[:3], k=len(symbols))
        own = operators if attempt % 3 else 1
        values = {s: base[i] * cuts[s] * own for i, s in enumerate(symbols)}
        values |= {s: random.choice(OFFSETS) for s in others}
        pair = (left, right)
        instance = instantiate(Valuation(pair, sizes, values, degrees, real_symbols(pair)))
        if (
            instance is not None
            and _largest(instance) <= MAX_ELEMENTS
            and _most(instance) <= MAX_NUMBERS
        ):
            return instance
    return None


def _largest(instance: Instance) -> int:
    nodes = (*instance.left.nodes, *instance.right.nodes)
    return max(t.elements * t.degrees.partials for node in nodes for t in node.types)


def _most(instance: Instance) -> int:
    nodes = (*instance.left.nodes, *instance.right.nodes)
    return max(numbers(node) * max(t.degrees.partials for t in node.types) for node in nodes)


def agree(instance: Instance, seed: int) -> bool:
    """Whether the devices of both sides hold pieces of the same tensors, exactly."""
    leaves = random_leaves(instance, FIELD, np.random.default_rng(seed))
    left = evaluate_shards(instance.left, leaves, FIELD)
    right = evaluate_shards(instance.right, leaves, FIELD)
    return all(
        np.array_equal(meaning(a, FIELD), meaning(b, FIELD))
        for a, b in zip(left, right, strict=True)
    )


def agree_nearly(instance: Instance, seed: int) -> bool:
    """Whether both sides have the same real values where these are finite. For rules that hold by
    laws of scalar functions, of which the prime field knows only the names."""
    leaves = random_leaves(instance, Reals(), np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        left = evaluate_shards(instance.left, leaves, Reals())
        right = evaluate_shards(instance.right, leaves, Reals())
        pairs = [
            (meaning(a, Reals()), meaning(b, Reals())) for a, b in zip(left, right, strict=True)
        ]
    return all(
        np.allclose(a[fine], b[fine], rtol=1e-6, atol=1e-9)
        for a, b in pairs
        for fine in [np.isfinite(a) & np.isfinite(b)]
    )
