"""Replays a claim in numbers before it is accepted: defence in depth behind the proofs.

Problem: a proof is only as good as the solvers behind it. Nearly every false claim fails at some
small shape.
Method: both sides are evaluated by the reference, shard by shard, at two shapes. The shapes are
chosen here, not by the certificate: pairwise different sizes at degrees 2, 3, 2, ..., and the least
sizes that degrees 3, 2, 3, ... allow, with as many attributes of 0 as fit. If the types leave it
free, an input is cut, copied or partial too. Real attributes take both signs. Inputs are drawn from
a fixed seed.
Not exact: a replay can refute a claim, never prove it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, combinations, count, cycle, islice
from math import lcm

from pcg.graph.pairs import GraphPair, both
from pcg.language.poly import Poly
from verifier.concrete import Valuation, numbers, real_symbols, tasks
from verifier.counterexample import Counterexample, replay
from verifier.instances import OFFSETS, Instance, cuts_of, free_symbols, instantiate, sized
from verifier.trusted.sizes.degrees import Basis, Typing
from verifier.trusted.sizes.sizes import Sizes
from verifier.trusted.sizes.types import differences
from verifier.witness import complete, value_of

MAX_TASKS = 16
"""The most blocks, times copies, times partials, of an input at degrees that are chosen here."""
MAX_NUMBERS = 1 << 21
"""The most numbers that the evaluation of an instance may hold, summed over its nodes."""
TRIES = 8
"""How many instances are tried at one choice of degrees, until one is small enough."""
ALONE = 6
"""With fewer attributes than this, two at a time are tried at 0 as well."""


def refutation(
    pair: GraphPair, sizes: Sizes, types: tuple[Typing, Typing] | None, degrees: Mapping[str, int]
) -> Counterexample | str | None:
    """How both sides differ at one of the shapes, or None if they agree at all. If there is no
    shape to try, a line of text says so. ``degrees``: a choice of degrees at which both sides have
    the same types, for use where others are not found."""
    tried = 0
    for instance in shapes(pair, sizes, types, degrees):
        # At the first shape, with different sizes, several inputs are drawn for few elements.
        if refuting := replay(instance, once=tried > 0):
            return refuting
        tried += 1
    return None if tried else "no shape is small enough to replay it"


def shapes(
    pair: GraphPair, sizes: Sizes, types: tuple[Typing, Typing] | None, degrees: Mapping[str, int]
) -> Iterator[Instance]:
    """Yield the instances at which a claim is replayed, at most two."""
    for number, candidates in ((2, _different), (3, _least)):
        chosen = (_degrees(types, number) if types is not None else None) or degrees
        yield from islice(filter(_is_small, islice(candidates(pair, sizes, chosen), TRIES)), 1)


def _different(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> Iterator[Instance]:
    """Yield the pair at pairwise different sizes, as small as their degrees allow."""
    free, cuts = free_symbols(pair, sizes), _multiples(pair, sizes, degrees)
    values = {s: number * cuts.get(s, 1) for s, number in zip(free, count(2), strict=False)}
    # Attributes that no size depends on are small, so that a window reads elements inside too.
    known = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    values |= dict(zip((s for s in free if s not in known), cycle(OFFSETS), strict=False))
    return chain(_typed(pair, sizes, values, degrees, sign=-1), sized(pair, sizes, degrees))


def _least(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> Iterator[Instance]:
    """Yield the pair at the least sizes that their degrees allow, with as many attributes of 0 as
    fit."""
    free, cuts = free_symbols(pair, sizes), _multiples(pair, sizes, degrees)
    attributes = [s for s in free if not s.startswith("|")]
    zeros = [set(attributes), *({s} for s in attributes), set[str]()]
    zeros += map(set, combinations(attributes, 2)) if len(attributes) < ALONE else ()
    for zero_attributes in zeros:
        values = {s: 0 if s in zero_attributes else cuts.get(s, 1) for s in free}
        yield from _typed(pair, sizes, values, degrees)
    yield from sized(pair, sizes, degrees)


def _typed(
    pair: GraphPair,
    sizes: Sizes,
    values: Mapping[str, int],
    degrees: Mapping[str, int],
    *,
    sign: int = 1,
) -> Iterator[Instance]:
    """Yield the pair at the given values, if it has types there. ``sign``: the sign of all real
    attributes; -1 also reverses their order."""
    reals = {symbol: sign * value for symbol, value in real_symbols(pair).items()}
    instance = instantiate(Valuation(pair, sizes, values, degrees, reals))
    if instance is not None:
        yield instance


def _multiples(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> dict[str, int]:
    """The numbers of which the free symbols of sizes should be multiples: the degrees of inputs and
    of the operators that cut further."""
    cuts = cuts_of(pair, sizes, degrees)
    for node in both(pair).nodes:
        if node.is_leaf or node.operator_call.operator.parallel not in ("partition", "pipeline"):
            continue
        degree = node.operator_call.values["degree"]
        if isinstance(degree, float):
            continue
        degree, dim = Poly.of(degree), node.operator_call.integer("dim")
        size = sizes.resolve(sizes.shape(node.inputs[0])[dim])
        times = degree.evaluate(degrees) if degree.symbols <= degrees.keys() else 1
        for symbol in size.symbols:
            cuts[symbol] = lcm(cuts.get(symbol, 1), times)
    return cuts


def _degrees(types: tuple[Typing, Typing], number: int) -> Mapping[str, int] | None:
    """Degrees at which both sides have the same types; None if none as small are found.

    Free degrees of operators are 2 and 3 by turns, beginning with ``number``. One free degree of an
    input, the first for 2 and the last for 3, is ``5 - number``; all others are 1.
    """
    equations = [*types[0].equations, *types[1].equations, *differences(*types)]
    whole = [*types[0].whole, *types[1].whole]
    solved = dict(Basis.of(equations).rows)
    symbols = sorted(s for s in types[0].symbols | types[1].symbols if not s.isdigit())
    free = [s for s in symbols if s not in solved]
    operators, input_symbols = [s for s in free if "." not in s], [s for s in free if "." in s]
    for cut in ((input_symbols[:1] if number == 2 else input_symbols[-1:]), []):
        values = {s: 2 + (number + i) % 2 for i, s in enumerate(operators)}
        values |= {s: 5 - number if s in cut else 1 for s in input_symbols}
        degrees = complete(values, solved, symbols)
        if degrees and _tasks(degrees) <= MAX_TASKS and all(value_of(w, degrees) for w in whole):
            return degrees
    return None


def _tasks(degrees: Mapping[str, int]) -> int:
    """A bound on the tasks: those of an input, times the largest degree of an operator."""
    return tasks(degrees) * max((1, *(v for s, v in degrees.items() if "." not in s)))


def _is_small(instance: Instance) -> bool:
    nodes = (*instance.left.nodes, *instance.right.nodes)
    return sum(map(numbers, nodes)) <= MAX_NUMBERS
