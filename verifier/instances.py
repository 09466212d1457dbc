"""Chooses small sizes and degrees at which both sides of a pair have types.

Problem: equal sizes hide differences, and most sizes fit no types. Method: a guess of sizes that
are pairwise different serves most pairs; where they have to satisfy more, as pieces of pieces and
halos do, Z3 is asked. Complexity: a few dozen typings of both graphs. Exact: each instance is one;
that there are no others is not said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import lcm, prod

from pcg.graph.graph import Graph, Leaf
from pcg.graph.pairs import Outputs, both, symbolic_attributes
from pcg.language.poly import Poly
from verifier.concrete import GraphPair, Origin, degree_choices, fixed_sizes, real_symbols
from verifier.trusted import smt
from verifier.trusted.errors import Unsolvable
from verifier.trusted.sizes.sizes import Sizes, input_size

BASES = (
    (2, 3, 5, 7, 11, 13, 4, 6, 8, 9, 10, 12),
    (1, 2, 3, 5, 7, 4, 6, 8, 9, 10, 11, 12),
    (3, 2, 1, 4, 5, 7, 6, 8, 9, 10, 11, 12),
    (4, 3, 2, 1, 6, 5, 7, 8, 9, 10, 11, 12),
)
TRIES_OF_DEGREES = 2
"""How many sizes are tried at each further choice of degrees."""
OFFSETS = (1, 2, 3)
"""Values of attributes that no size depends on, such as strides: with larger ones, windows read
little but what lies outside."""
LEAST_SIZES = (1, 2, 3)
"""How small the sizes may be that Z3 is asked for."""
MAX_FACTOR = 24
"""By how much such a size may exceed what cuts it."""
FEW = 4
"""By how much it may where products of sizes are equal, at first."""
OPEN_RESOURCES = 500_000
"""Steps of Z3 for sizes where products are equal: it finds them soon or hardly ever."""


@dataclass(frozen=True)
class Instance:
    """A pair of graphs at concrete types."""

    left: Graph
    right: Graph
    symbols: Mapping[str, float]
    """The values of its sizes and attributes, as far as they were symbols."""
    origin: Origin | None = None
    """What it was made from, if that is known."""

    @property
    def leaves(self) -> dict[str, Leaf]:
        nodes = {*self.left.leaves, *self.right.leaves}
        return {node.leaf.name: node.leaf for node in sorted(nodes, key=lambda n: n.leaf.name)}


def instances(
    left: Outputs,
    right: Outputs,
    sizes: Sizes,
    degrees: Mapping[str, int],
    fixed: Mapping[str, int] | None = None,
) -> Iterator[Instance]:
    """The pair at small, pairwise different sizes, where it has types.

    The smallest at the given degrees comes first: one replay of it is cheap, and most false pairs
    end there. Then come other degrees at which the sides are typed alike, pairwise different
    where possible, then further sizes. In most, sizes are multiples of what cuts them. ``fixed``:
    values that symbols of sizes have to have.
    """
    try:
        sizes = fixed_sizes(sizes, fixed or {})
    except Unsolvable:
        return
    pair = (left, right)
    given = sized(pair, sizes, degrees)
    yield from islice(given, 1)
    for other in degree_choices(left, right, degrees):
        yield from islice(sized(pair, sizes, other), TRIES_OF_DEGREES)
    yield from given


def sized(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> Iterator[Instance]:
    """The pair at small sizes and the given degrees, where it has types."""
    free = free_symbols(pair, sizes)
    reals = real_symbols(pair)
    cuts = cuts_of(pair, sizes, degrees)
    attributes = [v for s, v in degrees.items() if "." not in s]
    most = prod(attributes)
    sized = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    offsets = [s for s in free if s not in sized]
    for number, base in enumerate(BASES):
        # What holds only for positive real attributes, or for some order of them, is false.
        ordered = list(reals.values())[:: -1 if number > 1 else 1]
        signed = {s: -v if number % 2 else v for s, v in zip(reals, ordered, strict=True)}
        for factor in dict.fromkeys((0, 1, lcm(*attributes), most, most * most)):
            values = {
                s: base[i % len(base)] * (cuts.get(s, 1) * factor if factor else 1)
                for i, s in enumerate(free)
            }
            values |= {s: OFFSETS[(i + number) % len(OFFSETS)] for i, s in enumerate(offsets)}
            instance = instantiate(Origin(pair, sizes, values, degrees, signed))
            if instance is not None:
                yield instance
    # What is said of halos holds for few guesses.
    ways = [(1, MAX_FACTOR), *product((1, lcm(*attributes)), (2, 4))] if sizes.least else []
    tries = list(product(LEAST_SIZES, ways or [(1, MAX_FACTOR)]))
    if sizes.zeros:
        tries = [(2, (1, FEW)), (1, (1, FEW)), (1, (1, MAX_FACTOR))]
    for least, (factor, largest) in tries:
        multiples = {s: cut * factor for s, cut in cuts.items()}
        values = _solved(free, sizes, multiples, least, largest)
        if values and (instance := instantiate(Origin(pair, sizes, values, degrees, reals))):
            yield instance


def _solved(
    free: Sequence[str], sizes: Sizes, cuts: Mapping[str, int], least: int, largest: int
) -> dict[str, int] | None:
    """Sizes from Z3 where guesses fail, as for a piece of a piece: every size of a tensor is at
    least ``least``, and what is cut a multiple of its degrees, at most ``largest`` times."""
    parts = {s: Poly.of(s) * cuts.get(s, 1) for s in free}
    known = [smt.at_least(Poly.of(s), int(s.startswith("|"))) for s in free]
    known += [smt.at_least(largest - Poly.of(s), 0) for s in free]
    known += [smt.at_least(sizes.resolve(p).substitute(parts), least) for p in sizes.positive]
    known += [smt.at_least(sizes.resolve(p).substitute(parts), 0) for p in sizes.naturals]
    known += [smt.is_zero(zero.substitute(parts)) for zero in sizes.zeros]
    solution = smt.model(smt.script(known), OPEN_RESOURCES if sizes.zeros else smt.RESOURCES)
    if solution is None:
        return None
    named = {smt.symbol_name(s): s for s in free}
    values = {named[name]: value for name, value in solution.items() if name in named}
    return {s: values.get(s, 1) * cuts.get(s, 1) for s in free}


def instantiate(origin: Origin) -> Instance | None:
    """The pair at the types that follow; None where a side has none, or tensors are too large."""
    sides = origin.typed()
    return Instance(*sides, origin.symbols, origin) if sides is not None else None


def size_attributes(pair: GraphPair) -> Iterator[Poly]:
    """The sizes among the attributes of both sides."""
    attributes = symbolic_attributes(both(pair))
    return (value for call, name, value in attributes if name in call.operator.sizes)


def free_symbols(pair: GraphPair, sizes: Sizes) -> list[str]:
    """The symbols of sizes and of whole attributes that do not follow from others."""
    known = (*sizes.positive, *sizes.naturals, *size_attributes(pair))
    return sorted({s for size in known for s in sizes.resolve(size).symbols})


def cuts_of(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> dict[str, int]:
    """Of what the free symbols in the sizes of inputs have to be multiples."""
    cuts: dict[str, int] = {}
    for leaf in {node.leaf for node in both(pair).leaves}:
        for dim in range(leaf.rank):
            cut = prod(degrees.get(f"{leaf.name}.{kind}{dim}", 1) for kind in "dt")
            for symbol in sizes.resolve(Poly.of(input_size(leaf.name, dim))).symbols:
                cuts[symbol] = lcm(cuts.get(symbol, 1), cut)
    return cuts
