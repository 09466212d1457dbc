"""Finds the rules between chains of parallel operators: which cancel, commute and split.

Problem: find a few equalities of chains that generate all others.
Method: a chain means its input, so two chains are equal if they give the same type. Chains of up to
three operators are enumerated over two axes of a tensor of any rank, with equal and different
degrees. Chains of up to two operators are also enumerated with degrees that are products. In order
of size, each chain is compared with the least chain of its type. If known rules do not rewrite the
one to the other, their equality is a new rule.
Complexity: chains times the steps within ``REACH``.
Exact for chains of these lengths and derivations within ``REACH``; longer derivations are not
searched.

A partition with a halo is one of the operators; with degree 1 it changes no degree. That operators
of one kind commute follows in two steps from the splitting of degrees, but only for degrees that
are known products. So commutation is a rule too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

from pcg.graph.graph import Value, apply, tensor
from pcg.graph.pairs import GraphPair
from pcg.language.poly import Poly
from pcg.language.poly import product as product_of
from pcg.memo import Answers
from pcg.ops import OPERATORS
from substitutions.rules.candidate import Candidate, Enumeration

FAMILY = "move"
AXES = (0, 1)
SYMBOLS = ("k", "k2", "k3")
AROUND = ("halo_before", "halo_after")
"""The symbols of the widths of a halo."""
LONGEST = 3
REACH = 3
"""The most steps from each of two chains to a common chain."""

ENTRIES = {"partition": "dims", "combine": "dims", "pipeline": "slices", "batch": "slices"}
"""The names of the entries of a type that several operators change."""

DegreeProduct = tuple[str, ...]
"""A product of symbols, sorted; empty for 1."""


class ParallelOp(NamedTuple):
    """A parallel operator. ``axis``: the axis that it cuts or joins, or -1. ``haloed``: whether it
    is a partition with a halo."""

    name: str
    axis: int
    degree: DegreeProduct
    haloed: bool = False

    @property
    def entry(self) -> tuple[str, int]:
        """The entry of a type that it changes."""
        return ENTRIES.get(self.name, self.name), self.axis

    @property
    def power(self) -> int:
        """1 if it multiplies that entry by its degree, -1 if it divides it."""
        return -1 if self.name in ("combine", "batch", "reduce") else 1


Chain = tuple[ParallelOp, ...]
"""Parallel operators in the order in which they are applied."""
Type = tuple[tuple[tuple[tuple[str, int], str], int], ...]


@dataclass(frozen=True)
class Rewrite:
    """An equality of chains, used from left to right. Its symbols stand for any degrees."""

    left: Chain
    right: Chain

    @cached_property
    def axes(self) -> frozenset[int]:
        return frozenset(m.axis for m in self.left + self.right if m.axis >= 0)

    def images(self, word: Chain) -> Iterator[Chain]:
        """Yield the chains that replace ``word``, if that is an instance of the left side."""
        if len(word) != len(self.left):
            return
        for renamed in ({0: 0}, {0: 1}) if self.axes == frozenset((0,)) else ({0: 0, 1: 1},):
            for degrees in _matches(self.left, word, {**renamed, -1: -1}, {}):
                yield tuple(
                    ParallelOp(m.name, renamed.get(m.axis, -1), _image(m.degree, degrees), m.haloed)
                    for m in self.right
                )


def _matches(
    pattern: Sequence[ParallelOp],
    word: Sequence[ParallelOp],
    axes: Mapping[int, int],
    degrees: dict[str, DegreeProduct],
) -> Iterator[dict[str, DegreeProduct]]:
    """Yield the values of the pattern's symbols at which it is the word."""
    if not pattern:
        yield degrees
        return
    (first, *others), (given, *rest) = pattern, word
    if (first.name, axes[first.axis], first.haloed) != (given.name, given.axis, given.haloed):
        return
    for more in _splits(first.degree, given.degree):
        if all(degrees.get(symbol, part) == part for symbol, part in more.items()):
            yield from _matches(others, rest, axes, degrees | more)


def _splits(pattern: DegreeProduct, given: DegreeProduct) -> Iterator[dict[str, DegreeProduct]]:
    """Yield all ways to distribute the factors of a degree over the symbols of another."""
    if len(pattern) < 2:
        if pattern or not given:
            yield dict.fromkeys(pattern, given)
        return
    first, *others = pattern
    for count in range(len(given) + 1):
        for places in combinations(range(len(given)), count):
            share = tuple(given[i] for i in places)
            rest = tuple(s for i, s in enumerate(given) if i not in places)
            for more in _splits(tuple(others), rest):
                yield {first: share} | more


def _image(degree: DegreeProduct, degrees: Mapping[str, DegreeProduct]) -> DegreeProduct:
    return tuple(sorted(symbol for s in degree for symbol in degrees[s]))


def chain_rules() -> Enumeration:
    """The general rules between chains of parallel operators."""
    plain = [(symbol,) for symbol in SYMBOLS]
    products = [(), SYMBOLS[:1], SYMBOLS[1:2], SYMBOLS[:2]]
    every = _classes([*_words(LONGEST, plain), *_words(2, products)])
    rules = basis(every)
    candidates = [Candidate.of(pair(*rule), FAMILY) for rule in rules]
    graphs = sum(map(len, every.values()))
    return Enumeration(graphs, len(every), tuple(candidates))


def _words(longest: int, degrees: Sequence[DegreeProduct]) -> Iterator[Chain]:
    for length in range(longest + 1):
        yield from product(_parallel_ops(degrees), repeat=length)


def _parallel_ops(degrees: Sequence[DegreeProduct]) -> list[ParallelOp]:
    """Every parallel operator at the given degrees; at degree 1, only the partition with a halo."""
    operators: list[ParallelOp] = []
    for degree in degrees:
        for axis in AXES:
            operators.append(ParallelOp("partition", axis, degree, haloed=True))
            names = ("partition", "combine", "pipeline", "batch") if degree else ()
            operators += [ParallelOp(name, axis, degree) for name in names]
        operators += [ParallelOp(name, -1, degree) for name in ("replicate", "reduce") if degree]
    return operators


def type_of(word: Chain) -> Type | None:
    """The change that a chain makes to a type without halos. None if it cuts an axis that has a
    halo."""
    halos = _halos(word)
    if halos is None:
        return None
    powers: dict[tuple[tuple[str, int], str], int] = defaultdict(int)
    for op in word:
        for symbol in op.degree:
            powers[op.entry, symbol] += op.power
    halo = [((("halo", axis), ""), 1) for axis in halos]
    return tuple(sorted([*((p, n) for p, n in powers.items() if n), *halo]))


def _halos(word: Chain) -> set[int] | None:
    """The axes that have a halo after a chain. None if it cuts an axis that has one."""
    halos: set[int] = set()
    for op in word:
        if op.name == "partition" and op.axis in halos:
            return None
        if op.haloed:
            halos.add(op.axis)
        elif op.name == "combine":
            halos.discard(op.axis)
    return halos


def _classes(words: Sequence[Chain]) -> dict[Type, list[Chain]]:
    """The chains by type, the least chain of each type first. Chains without a type are left
    out."""
    by_type: dict[Type, dict[Chain, None]] = defaultdict(dict)
    for word in words:
        key = type_of(word)
        if key is not None:
            by_type[key][word] = None
    return {key: sorted(members, key=_order) for key, members in by_type.items()}


def _order(word: Chain) -> tuple[int, int, Chain]:
    """A sort key for chains: by stage, then length. The stages are degrees of one symbol,
    partitions with a halo at degree 1, degrees that are products, and chains of three operators,
    which give few new rules."""
    degrees = [op.degree for op in word]
    is_product = max(map(len, degrees), default=1) > 1
    stage = 3 if len(word) > 2 else 2 if is_product else int(() in degrees)
    return stage, len(word), word


def basis(classes: Mapping[Type, Sequence[Chain]]) -> list[tuple[Chain, Chain]]:
    """Equalities that generate all others within the classes, each with the longer side first."""
    equalities: list[tuple[Chain, Chain]] = []
    rewriter = ChainRewriter(equalities)
    options: dict[tuple[Chain, Chain], None] = {}
    for members in classes.values():
        for least in (members[0], min(members, key=len)):
            for word in members:
                first, second = sorted((word, least), key=lambda w: (-len(w), w))
                options[first, second] = None
    wanted = [pair for pair in options if pair[0] != pair[1] and _is_wanted(pair)]
    for word, least in sorted(wanted, key=_size):
        if not rewriter.joins(word, least):
            rewriter.learn(word, least)
            equalities.append((word, least))
    return equalities


def _size(pair: tuple[Chain, Chain]) -> tuple[object, ...]:
    """A sort key for pairs: small pairs first, and of equal size those with many symbols, which
    have others as instances."""
    orders = sorted(map(_order, pair), reverse=True)
    stages, sizes, _ = zip(*orders, strict=True)
    return (stages[0], sizes, -len(_symbols(pair[0] + pair[1])), orders)


def _symbols(word: Chain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(symbol for op in word for symbol in op.degree))


def _is_wanted(pair: tuple[Chain, Chain]) -> bool:
    """Whether a pair is in normal form: its symbols are numbered in order of use, one side has all
    of them, and if it uses only one axis, that is the first."""
    word, least = pair
    axes = {op.axis for op in word + least if op.axis >= 0}
    orders = (_symbols(word + least), _symbols(least + word))
    return (
        axes != {1}
        and any(names == SYMBOLS[: len(names)] for names in orders)
        and set(orders[0]) in (set(_symbols(word)), set(_symbols(least)))
    )


class ChainRewriter:
    """Rewrites chains by known rules, in both directions, except for a direction that would
    introduce a new degree."""

    def __init__(self, known: Sequence[tuple[Chain, Chain]] = ()) -> None:
        self._rules: dict[tuple[str, ...], list[Rewrite]] = defaultdict(list)
        self._images = Answers(self._image)
        self.nexts = Answers(self._stepped)
        """The chains that one step makes from a chain."""
        for left, right in known:
            self.learn(left, right)

    def learn(self, left: Chain, right: Chain) -> None:
        self._images.clear()
        self.nexts.clear()
        for a, b in ((left, right), (right, left)):
            if {s for m in b for s in m.degree} <= {s for m in a for s in m.degree} and a:
                self._rules[tuple(m.name for m in a)].append(Rewrite(a, b))

    def joins(self, first: Chain, second: Chain) -> bool:
        """Whether at most ``REACH`` steps from each of two chains lead to a common chain."""
        if first == second:
            return True
        reached = ({first}, {second})
        last = [{first}, {second}]
        for _ in range(REACH):
            for side, other in ((0, 1), (1, 0)):
                last[side] = {b for a in last[side] for b in self.nexts[a]} - reached[side]
                if not last[side].isdisjoint(reached[other]):
                    return True
                reached[side].update(last[side])
        return False

    def _stepped(self, word: Chain) -> frozenset[Chain]:
        chains: set[Chain] = set()
        for start in range(len(word)):
            for end in range(start + 1, min(start + 2, len(word)) + 1):
                for image in self._images[word[start:end]]:
                    chain = word[:start] + image + word[end:]
                    if len(chain) <= LONGEST + 1 and _halos(chain) is not None:
                        chains.add(chain)
        return frozenset(chains)

    def _image(self, part: Chain) -> frozenset[Chain]:
        rules = self._rules[tuple(op.name for op in part)]
        return frozenset(image for rule in rules for image in rule.images(part))


def pair(left: Chain, right: Chain) -> GraphPair:
    """The chains as graphs on a tensor with free axes before, between and after those that the
    chains use."""
    axes = sorted({op.axis for op in left + right if op.axis >= 0})
    dims = {axis: 2 * i + 1 for i, axis in enumerate(axes)}
    x = tensor("x", 2 * len(axes) + 1)
    return (_applied(left, x, dims),), (_applied(right, x, dims),)


def _applied(word: Chain, x: Value, dims: Mapping[int, int]) -> Value:
    for op in word:
        operator = OPERATORS[op.name]
        degree = product_of(map(Poly.of, op.degree))
        attributes = {"dim": dims[op.axis]} if op.axis >= 0 else {}
        suffix = "" if dims.get(op.axis) == 1 else "2"
        widths = zip(operator.optional, AROUND, strict=True) if op.haloed else ()
        halo = {name: Poly.of(symbol + suffix) for name, symbol in widths}
        x = apply(operator(**attributes, degree=degree, **halo), x)
    return x
