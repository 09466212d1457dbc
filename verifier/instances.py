"""Chooses small sizes and degrees at which both sides of a pair have types.

Problem: equal sizes hide differences, and most sizes fit no types.
Method: first guess sizes that are pairwise different, which serves most pairs. Sizes that have to
satisfy more conditions, such as those of blocks of blocks and of halos, are solved for by Z3.
Complexity: a few dozen typings of both graphs.
Exact: each instance is typed. There may be others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import lcm, prod

from pcg.graph.graph import Graph, Leaf
from pcg.graph.pairs import Outputs, both, symbolic_attributes
from pcg.language.poly import Poly
from verifier.concrete import GraphPair, Valuation, degree_choices, fixed_sizes, real_symbols
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
"""How many instances are taken at each further choice of degrees."""
OFFSETS = (1, 2, 3)
"""Values of attributes that no size depends on, such as strides. With larger ones, most elements
that windows read would lie outside of the tensor."""
LEAST_SIZES = (1, 2, 3)
"""Lower bounds on the sizes that Z3 is asked for."""
MAX_FACTOR = 24
"""Upper bound on such a size, as a multiple of its degrees."""
FEW = 4
"""The first upper bound, instead of ``MAX_FACTOR``, if equations between products are open."""
OPEN_RESOURCES = 500_000
"""The limit of Z3's steps if equations between products are open: it finds sizes soon or hardly
ever."""


@dataclass(frozen=True)
class Instance:
    """A pair of graphs at concrete types."""

    left: Graph
    right: Graph
    symbols: Mapping[str, float]
    """The values of the sizes and attributes that were symbols."""
    valuation: Valuation | None = None
    """The symbolic pair and the values that the instance was made from, if known."""

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
    """Yield the pair at small, pairwise different sizes at which it has types.

    The smallest instance at the given degrees comes first: a replay of it is cheap and refutes most
    false pairs. Then come other degrees under the same typings, and then further sizes at the given
    degrees. ``fixed``: values that symbols of sizes have to have.
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
    """Yield the pair at small sizes and the given degrees, if it has types there."""
    free = free_symbols(pair, sizes)
    reals = real_symbols(pair)
    cuts = cuts_of(pair, sizes, degrees)
    attributes = [v for s, v in degrees.items() if "." not in s]
    most = prod(attributes)
    sized = {s for size in sizes.positive for s in sizes.resolve(size).symbols}
    offsets = [s for s in free if s not in sized]
    for number, base in enumerate(BASES):
        # A rule that holds only for positive real attributes, or for one order of them, is false.
        ordered = list(reals.values())[:: -1 if number > 1 else 1]
        signed = {s: -v if number % 2 else v for s, v in zip(reals, ordered, strict=True)}
        for factor in dict.fromkeys((0, 1, lcm(*attributes), most, most * most)):
            values = {
                s: base[i % len(base)] * (cuts.get(s, 1) * factor if factor else 1)
                for i, s in enumerate(free)
            }
            values |= {s: OFFSETS[(i + number) % len(OFFSETS)] for i, s in enumerate(offsets)}
            instance = instantiate(Valuation(pair, sizes, values, degrees, signed))
            if instance is not None:
                yield instance
    # Few guesses satisfy the conditions of halos.
    ways = [(1, MAX_FACTOR), *product((1, lcm(*attributes)), (2, 4))] if sizes.least else []
    tries = list(product(LEAST_SIZES, ways or [(1, MAX_FACTOR)]))
    if sizes.zeros:
        tries = [(2, (1, FEW)), (1, (1, FEW)), (1, (1, MAX_FACTOR))]
    for least, (factor, largest) in tries:
        multiples = {s: cut * factor for s, cut in cuts.items()}
        values = _solved(free, sizes, multiples, least, largest)
        if values and (instance := instantiate(Valuation(pair, sizes, values, degrees, reals))):
            yield instance


def _solved(
    free: Sequence[str], sizes: Sizes, cuts: Mapping[str, int], least: int, largest: int
) -> dict[str, int] | None:
    """Sizes from Z3: every size of a tensor is at least ``least``, and every symbol is a multiple
    of its degrees in ``cuts``, at most ``largest`` times. None if Z3 finds none."""
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


def instantiate(valuation: Valuation) -> Instance | None:
    """The pair at concrete types; None if a side has no type, or tensors are too large."""
    sides = valuation.typed()
    return Instance(*sides, valuation.symbols, valuation) if sides is not None else None


def size_attributes(pair: GraphPair) -> Iterator[Poly]:
    """The attributes of both sides that are symbolic sizes."""
    attributes = symbolic_attributes(both(pair))
    return (value for call, name, value in attributes if name in call.operator.sizes)


def free_symbols(pair: GraphPair, sizes: Sizes) -> list[str]:
    """The symbols of sizes and of integer attributes that do not follow from others, sorted."""
    known = (*sizes.positive, *sizes.naturals, *size_attributes(pair))
    return sorted({s for size in known for s in sizes.resolve(size).symbols})


def cuts_of(pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int]) -> dict[str, int]:
    """The numbers of which the free symbols in the sizes of inputs have to be multiples: degrees
    times slices."""
    cuts: dict[str, int] = {}
    for leaf in {node.leaf for node in both(pair).leaves}:
        for dim in range(leaf.rank):
            cut = prod(degrees.get(f"{leaf.name}.{kind}{dim}", 1) for kind in "dt")
            for symbol in sizes.resolve(Poly.of(input_size(leaf.name, dim))).symbols:
                cuts[symbol] = lcm(cuts.get(symbol, 1), cut)
    return cuts
