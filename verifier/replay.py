"""Replays a claim in numbers before it is believed: defence in depth behind the proofs.

Problem: a proof is as good as what discharges it, and a claim that is false has, nearly always, a
small shape at which it shows.
Method: both sides are evaluated by the reference, shard by shard, at two shapes that are chosen
here and not by who claims: pairwise different sizes at degrees of 2, and sizes as near to 1 as
degrees of 3 let them be, with as many attributes of 0 as fit. Of each an input is cut, copied or
partial too, where types leave that free; real attributes are of either sign. Every number is drawn
anew from a fixed seed.
Exact: no. It can only refute; that it does not is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, combinations, count, cycle, islice
from math import lcm

from pcg.graph.pairs import GraphPair, both
from pcg.language.poly import Poly
from verifier.concrete import Origin, numbers, real_symbols, tasks
from verifier.counterexample import Counterexample, replay
from verifier.instances import OFFSETS, Instance, cuts_of, free_symbols, instantiate, sized
from verifier.trusted.sizes.degrees import Basis, Typing
from verifier.trusted.sizes.sizes import Sizes
from verifier.trusted.sizes.types import differences
from verifier.witness import complete, value_of

MAX_TASKS = 16
"""How many blocks, copies and partials an input may have, where that is for us to choose."""
MAX_NUMBERS = 1 << 21
"""That the evaluation of one operator may hold at once."""
TRIES = 8
"""Of sizes at one choice of degrees, until some are small enough."""
ALONE = 6
"""So many attributes may be 0 two at a time, where they cannot all be."""


def refutation(
    pair: GraphPair, sizes: Sizes, types: tuple[Typing, Typing] | None, degrees: Mapping[str, int]
) -> Counterexample | str | None:
    """How both sides differ at one of the shapes; None if at none of them. Where there is no shape
    to try, that is said. ``degrees``: some at which both sides are typed alike."""
    tried = 0
    for instance in shapes(pair, sizes, types, degrees):
        # Where even different sizes give few elements, they are drawn more than once.
        if refuting := replay(instance, once=tried > 0):
            return refuting
        tried += 1
    return None if tried else "no shape is small enough to replay it"


def shapes(
    pair: GraphPair, sizes: Sizes, types: tuple[Typing, Typing] | None, degrees: Mapping[str, int]
) -> Iterator[Instance]:
    """The shapes at which a claim is replayed."""
    for number, candidates in ((2, _different), (3, _least)):
        own = (_degrees(types, number) if types is not None else None) or degrees
        yield from islice(filter(_is_small, islice(candidates(pair, sizes, own), TRIES)), 1)


def _different(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> Iterator[Instance]:
    """The pair at pairwise different sizes, as small as what cuts them allows."""
    free, cuts = free_symbols(pair, sizes), _multiples(pair, sizes, degrees)
    values = {s: number * cuts.get(s, 1) for s, number in zip(free, count(2), strict=False)}
    # Of attributes that no size depends on, small ones: a window then reads what lies inside too.
    known = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    values |= dict(zip((s for s in free if s not in known), cycle(OFFSETS), strict=False))
    return chain(_typed(pair, sizes, values, degrees, sign=-1), sized(pair, sizes, degrees))


def _least(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> Iterator[Instance]:
    """The pair at sizes of 1, but for what cuts them, and with as many attributes of 0 as fit."""
    free, cuts = free_symbols(pair, sizes), _multiples(pair, sizes, degrees)
    attributes = [s for s in free if not s.startswith("|")]
    zeros = [set(attributes), *({s} for s in attributes), set[str]()]
    zeros += map(set, combinations(attributes, 2)) if len(attributes) < ALONE else ()
    for none in zeros:
        values = {s: 0 if s in none else cuts.get(s, 1) for s in free}
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
    """The pair at some values, if it has types there. ``sign``: that of all real attributes, which
    turns their order too."""
    reals = {symbol: sign * value for symbol, value in real_symbols(pair).items()}
    instance = instantiate(Origin(pair, sizes, values, degrees, reals))
    if instance is not None:
        yield instance


def _multiples(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> dict[str, int]:
    """Of what the free symbols of sizes had best be multiples: of what cuts the inputs, and of what
    both sides cut further."""
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
    """Degrees at which both sides are typed alike: those of operators are 2 and 3 by turns, from
    ``number`` on, and so is one of an input, the first of those that types leave free or the last.
    None if there are none so small."""
    equations = [*types[0].equations, *types[1].equations, *differences(*types)]
    whole = [*types[0].whole, *types[1].whole]
    solved = dict(Basis.of(equations).rows)
    symbols = sorted(s for s in types[0].symbols | types[1].symbols if not s.isdigit())
    free = [s for s in symbols if s not in solved]
    operators, own = [s for s in free if "." not in s], [s for s in free if "." in s]
    for cut in ((own[:1] if number == 2 else own[-1:]), []):
        values = {s: 2 + (number + i) % 2 for i, s in enumerate(operators)}
        values |= {s: 5 - number if s in cut else 1 for s in own}
        degrees = complete(values, solved, symbols)
        if degrees and _tasks(degrees) <= MAX_TASKS and all(value_of(w, degrees) for w in whole):
            return degrees
    return None


def _tasks(degrees: Mapping[str, int]) -> int:
    """The most pieces that an input has, or that an operator makes of one."""
    return tasks(degrees) * max((1, *(v for s, v in degrees.items() if "." not in s)))


def _is_small(instance: Instance) -> bool:
    nodes = (*instance.left.nodes, *instance.right.nodes)
    return sum(map(numbers, nodes)) <= MAX_NUMBERS
