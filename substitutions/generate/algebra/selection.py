"""Selects candidates: pairs of terms of one class that do not follow from smaller equalities.

The equality of a *reducible* term (``reduction``) with its class follows in one step from a smaller
equality, and from the equality of a lesser term with the class. So reducible terms are left out.
All pairs of irreducible terms of a class are candidates, not only the pairs with its least term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Value, tensor
from pcg.graph.pairs import GraphPair
from substitutions.generate.algebra.confirm import Confirmation
from substitutions.generate.algebra.reduction import Reduction
from substitutions.generate.algebra.table import ClassMember, ClassTable, LargeTerms
from substitutions.generate.algebra.terms import ClassTerm, TermNames, TermPart
from substitutions.rules.workers import parallel_map

NAMES = ("x", "y", "z", "w", "u", "v")


@dataclass(frozen=True)
class PlacedTerm:
    """A term with the names of its class's variables. ``size``: the number of its operators."""

    term: ClassTerm
    names: TermNames
    size: int


def _of(placed: PlacedTerm) -> tuple[ClassTerm, TermNames]:
    return placed.term, placed.names


def _texts(placed: PlacedTerm) -> dict[int, str]:
    """The names of a term's variables in graphs: those of its class in order, then further ones."""
    of_class = {v: NAMES[i] for i, v in enumerate(placed.names)}
    fresh = iter(NAMES[len(placed.names) :])
    every = sorted({v for _, names in placed.term[1] for v in names})
    return {v: of_class.get(v) or next(fresh) for v in every}


FEW_ROWS = 1 << 12
"""Up to so many terms, one process is faster than starting several."""


class PairSearch:
    """Searches for candidates among the terms of up to ``size`` operators. ``jobs``: the number of
    processes that share the terms of the greatest size."""

    def __init__(self, table: ClassTable, size: int, jobs: int = 1) -> None:
        self.table, self._jobs = table, jobs
        for smaller in range(1, size):
            table.grow(smaller)
        self.large: list[LargeTerms] = list(table.large(size))
        self.size = size
        self._reduction = Reduction(table)
        self._confirmation = Confirmation(table)

    @cached_property
    def graphs(self) -> int:
        return self.table.terms + sum(len(large.keys) for large in self.large)

    @cached_property
    def distinct(self) -> int:
        """The number of different values."""
        fresh = np.setdiff1d(self._large_keys(), self._known_keys())
        return len(self.table.classes) + len(fresh)

    def _large_keys(self) -> np.ndarray:
        """The keys of the terms of the greatest size."""
        return np.concatenate([np.zeros(0, np.uint64), *(large.keys for large in self.large)])

    def _known_keys(self) -> np.ndarray:
        return np.array(list(self.table.numbers), np.uint64)

    def groups(self) -> Iterator[list[PlacedTerm]]:
        """Yield the irreducible terms of each class that has several, the least first."""
        gathered: dict[int, list[PlacedTerm]] = defaultdict(list)
        for number, members in enumerate(self.table.found):
            for member in members:
                if self._reduction.is_irreducible(member.term):
                    gathered[number].append(
                        PlacedTerm(member.term, member.names, self._reduction.size(member.term))
                    )
        large, fresh = self._large_terms()
        # Large terms of known classes make further large terms reducible.
        for number, members in large.items():
            self._reduction.more[number] = [ClassMember(p.term, p.names) for p in members]
        for number, members in large.items():
            gathered[number] += [p for p in members if self._reduction.is_irreducible(p.term)]
        for number, members in gathered.items():
            if self.table.classes[number].term is None:
                # The class of an input: the input itself is its least member.
                members = [PlacedTerm((-1, ((number, (0,)),)), (0,), 0), *members]
            yield from self._sorted(members)
        for members in fresh:
            yield from self._sorted([p for p in members if self._reduction.is_irreducible(p.term)])

    def _sorted(self, members: list[PlacedTerm]) -> Iterator[list[PlacedTerm]]:
        """Yield the groups of members that are confirmed to be equal, each sorted."""
        if len(members) < 2:
            return
        for group in self._confirmation.agreeing([_of(p) for p in members]):
            if len(group) > 1:
                yield sorted((members[i] for i in group), key=lambda p: (p.size, p.term))

    def _large_terms(self) -> tuple[dict[int, list[PlacedTerm]], list[list[PlacedTerm]]]:
        """The irreducible terms of the greatest size: those of known classes, by class, and groups
        of terms with equal values of no known class."""
        keys = self._large_keys()
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        wanted = ((counts > 1) | np.isin(unique, self._known_keys()))[inverse]
        ends = np.cumsum([0, *(len(large.keys) for large in self.large)])
        work = [
            (large, np.flatnonzero(wanted[start:end]))
            for large, (start, end) in zip(self.large, pairwise(ends), strict=True)
            if wanted[start:end].any()
        ]
        known: dict[int, dict[ClassTerm, PlacedTerm]] = defaultdict(dict)
        fresh: dict[int, dict[ClassTerm, PlacedTerm]] = defaultdict(dict)
        jobs = self._jobs if sum(len(rows) for _, rows in work) > FEW_ROWS else 1
        for terms in parallel_map(self._irreducible, work, jobs):
            for key, number, placed in terms:
                group = fresh[key] if number is None else known[number]
                group.setdefault(placed.term, placed)
        groups = [list(group.values()) for group in fresh.values() if len(group) > 1]
        return {number: list(group.values()) for number, group in known.items()}, groups

    def _irreducible(
        self, batch: tuple[LargeTerms, NDArray[np.intp]]
    ) -> list[tuple[int, int | None, PlacedTerm]]:
        """The irreducible ones of the given rows of a batch, each with its key and its known class,
        if any."""
        large, rows = batch
        step = large.batch.step
        irreducible: list[tuple[int, int | None, PlacedTerm]] = []
        for row in rows:
            key, least = int(large.keys[row]), int(large.least[row])
            if self.table.is_zero(key, step):
                continue
            parts = self.table.parts(large.batch, large.rows[row])
            if not self._reduction.is_irreducible((step, parts)):
                continue
            term, used = self._reduction.canonical(step, parts)
            number = self.table.numbers.get(key)
            if number is None:
                names: TermNames | None = self.table.named(least, used)
            else:
                names = self.table.names_in(number, least, used)
            if names is not None:
                irreducible.append((key, number, PlacedTerm(term, names, self.size)))
        return irreducible

    def several(self) -> Iterator[GraphPair]:
        """Yield pairs about operators with several outputs of which each has a lesser term: the
        operator's outputs against the least terms of their classes."""
        for term in list(self.table.index):
            yield from self._several(term, self.table.index.get)
        if self.large:
            yield from self._large_several()

    def _several(
        self, term: ClassTerm, known: Callable[[ClassTerm], TermPart | None]
    ) -> Iterator[GraphPair]:
        step, parts = term
        if self.table.steps[step].port:
            return
        terms = [term, *((other, parts) for other in self.table.siblings(step))]
        classes = [known(t) for t in terms]
        if len(terms) < 2 or any(c is None for c in classes):
            return
        operands = [c for c in classes if c is not None]
        if any(self.table.classes[c].term in terms for c, _ in operands):
            return  # An output without a lesser term.
        if self._reduction.operators(operands) > self.size:
            return
        names = tuple(sorted({v for _, own in parts for v in own}))
        for part, other in zip(operands, terms, strict=True):
            if (self._confirmation.part(part) != self._confirmation.value(other, names)).any():
                return
        text = {v: NAMES[i] for i, v in enumerate(names)}
        right = tuple(self._apply(t[0], parts, text) for t in terms)
        yield tuple(self._operand(part, text) for part in operands), right

    def _large_several(self) -> Iterator[GraphPair]:
        """The same for the terms of the greatest size, whose classes are found by their keys."""
        rows: dict[ClassTerm, TermPart] = {}
        wanted = [large for large in self.large if self.table.siblings(large.batch.step)]
        known = self._known_keys()
        for large in wanted:
            for row in np.flatnonzero(np.isin(large.keys, known)):
                parts = self.table.parts(large.batch, large.rows[row])
                term, used = self._reduction.canonical(large.batch.step, parts)
                number = self.table.numbers[int(large.keys[row])]
                names = self.table.names_in(number, int(large.least[row]), used)
                if names is not None:
                    rows[term] = (number, names)
        for term in rows:
            yield from self._several(term, rows.get)

    def mirrored(self) -> Iterator[GraphPair]:
        """Yield pairs of an irreducible term and the same term with its variables permuted, if the
        values are equal and the terms are not: x + (y + z) and y + (x + z)."""
        for number, members in enumerate(self.table.found):
            for member in members:
                placed = PlacedTerm(member.term, member.names, self._reduction.size(member.term))
                if self._reduction.is_irreducible(member.term):
                    for other in self._mirrored(placed, number):
                        if len(self._confirmation.agreeing([_of(other), _of(placed)])) == 1:
                            yield self.pair(other, placed)

    def _mirrored(self, placed: PlacedTerm, number: int) -> Iterator[PlacedTerm]:
        mine = self._reduction.measure(placed.term)
        for option in self.table.classes[number].symmetries:
            names = tuple(placed.names[v] for v in option)
            swapped = dict(zip(placed.names, names, strict=True))
            step, parts = placed.term
            other = (step, tuple((c, tuple(swapped.get(v, v) for v in own)) for c, own in parts))
            if self._reduction.measure(other) > mine:
                yield PlacedTerm(placed.term, names, placed.size)

    # -- graphs -------------------------------------------------------------------------------

    def pair(self, left: PlacedTerm, right: PlacedTerm) -> GraphPair:
        """Two terms of one class as graphs over the same inputs."""
        return (self._value(left),), (self._value(right),)

    def ones(self, *terms: PlacedTerm) -> tuple[tuple[str, int], ...]:
        """The axes of the terms' inputs that have one element."""
        axes: set[tuple[str, int]] = set()
        for placed in terms:
            text = _texts(placed)
            for part, names in placed.term[1]:
                for name, shape in zip(names, self.table.classes[part].variables, strict=True):
                    axes |= {(text[name], dim) for dim, size in enumerate(shape) if size == 1}
        return tuple(sorted(axes))

    def _value(self, placed: PlacedTerm) -> Value:
        """The graph of a term."""
        step, parts = placed.term
        text = _texts(placed)
        if step < 0:
            number, names = parts[0]
            return self._input(number, text[names[0]])
        return self._apply(step, parts, text)

    def _apply(self, step: int, parts: Sequence[TermPart], text: dict[int, str]) -> Value:
        made = self.table.steps[step]
        inputs = tuple(self._operand(part, text) for part in parts)
        return Value(Node(made.call, inputs), made.port)

    def _operand(self, part: TermPart, text: dict[int, str]) -> Value:
        number, names = part
        own = self.table.classes[number].term
        if own is None:
            return self._input(number, text[names[0]])
        step, parts = own
        return self._apply(step, parts, {i: text[v] for i, v in enumerate(names)})

    def _input(self, number: int, name: str) -> Value:
        return tensor(name, len(self.table.classes[number].shape))
