"""Candidates: pairs of terms of one class that no smaller equality explains.

A term is *reducible* where its root, or its root with one operand opened, is an instance of a
smaller term whose class has another member that makes it less (ordered rewriting, as in
unfailing completion; Bachmair, Dershowitz and Plaisted, 1989). Its equality with the class then
follows from that of the smaller term, in one step, and from what is less. Every pair of the terms
that are left is a candidate: all of a class, not all against one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pcg.graph import Node, Value, tensor
from substitutions.confirm import Confirmation
from substitutions.table import Found, Large, Table
from substitutions.terms import Names, Part, Term, canonical, least_names

NAMES = ("x", "y", "z", "w", "u", "v")
REMEMBERED = 1 << 16
"""Terms of which forms and measures are kept: neighbours in the table ask for the same ones."""
Side = tuple[Value, ...]
Pair = tuple[Side, Side]


@dataclass(frozen=True)
class Placed:
    """A term of any size with the variables of its class. ``size``: its operators."""

    term: Term
    names: Names
    size: int


def _of(placed: Placed) -> tuple[Term, Names]:
    return placed.term, placed.names


def _texts(placed: Placed) -> dict[int, str]:
    """What the variables of a term are called: as its class names them; others are new."""
    of_class = {v: NAMES[i] for i, v in enumerate(placed.names)}
    fresh = iter(NAMES[len(placed.names) :])
    every = sorted({v for _, names in placed.term[1] for v in names})
    return {v: of_class.get(v) or next(fresh) for v in every}


class Search:
    """Looks for candidates among the terms of up to ``size`` operators."""

    def __init__(self, table: Table, size: int) -> None:
        self.table = table
        for smaller in range(1, size):
            table.grow(smaller)
        self.large: list[Large] = [table.large(batch) for batch in table.batches(size, last=True)]
        self.size = size
        self._more: dict[int, list[Found]] = {}
        self._confirmation = Confirmation(table)
        self._form = lru_cache(REMEMBERED)(self._canonical_form)
        self._measure = lru_cache(REMEMBERED)(self._measured)

    @cached_property
    def graphs(self) -> int:
        return self.table.terms + sum(len(large.keys) for large in self.large)

    @cached_property
    def distinct(self) -> int:
        """How many values there are."""
        keys = self._all_keys()
        return len(self.table.classes) + len(np.setdiff1d(keys, self._known_keys()))

    def _all_keys(self) -> np.ndarray:
        return np.unique(self._large_keys())

    def _large_keys(self) -> np.ndarray:
        """Of the terms of the greatest size, of which there may be none."""
        return np.concatenate([np.zeros(0, np.uint64), *(large.keys for large in self.large)])

    def _known_keys(self) -> np.ndarray:
        return np.array(self.table.known_keys(), np.uint64)

    def groups(self) -> Iterator[list[Placed]]:
        """The irreducible terms of each class that has several, least first."""
        gathered: dict[int, list[Placed]] = defaultdict(list)
        for number, members in enumerate(self.table.found):
            for found in members:
                if self._is_irreducible(found.term):
                    gathered[number].append(Placed(found.term, found.names, self._size(found.term)))
        large, fresh = self._large_terms()
        # What a class of smaller terms has among the large ones explains further large ones.
        for number, members in large.items():
            self._more[number] = [Found(p.term, p.names) for p in members]
        for number, members in large.items():
            gathered[number] += [p for p in members if self._is_irreducible(p.term)]
        for number, members in gathered.items():
            if self.table.classes[number].term is None:
                # The class of an input: the input itself is its least member.
                members = [Placed((-1, ((number, (0,)),)), (0,), 0), *members]
            yield from self._sorted(members)
        for members in fresh:
            yield from self._sorted([p for p in members if self._is_irreducible(p.term)])

    def _sorted(self, members: list[Placed]) -> Iterator[list[Placed]]:
        """What is confirmed to be equal."""
        if len(members) < 2:
            return
        for group in self._confirmation.agreeing([_of(p) for p in members]):
            if len(group) > 1:
                yield sorted((members[i] for i in group), key=lambda p: (p.size, p.term))

    def _large_terms(self) -> tuple[dict[int, list[Placed]], list[list[Placed]]]:
        """The terms of the greatest size that no smaller ones explain: those of known classes, and
        those that are equal to one another."""
        keys = self._large_keys()
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        wanted = ((counts > 1) | np.isin(unique, self._known_keys()))[inverse]
        ends = np.cumsum([0, *(len(large.keys) for large in self.large)])
        work = [
            (large, np.flatnonzero(wanted[start:end]))
            for large, (start, end) in zip(self.large, pairwise(ends), strict=True)
            if wanted[start:end].any()
        ]
        known: dict[int, dict[Term, Placed]] = defaultdict(dict)
        fresh: dict[int, dict[Term, Placed]] = defaultdict(dict)
        for terms in map(self._irreducible, work):
            for key, number, placed in terms:
                group = fresh[key] if number is None else known[number]
                group.setdefault(placed.term, placed)
        groups = [list(group.values()) for group in fresh.values() if len(group) > 1]
        return {number: list(group.values()) for number, group in known.items()}, groups

    def _irreducible(
        self, batch: tuple[Large, NDArray[np.intp]]
    ) -> list[tuple[int, int | None, Placed]]:
        """Of some terms of a batch, those that no smaller ones explain, each with its key and the
        class that is known to have it."""
        large, rows = batch
        step = large.batch.step
        found: list[tuple[int, int | None, Placed]] = []
        for row in rows:
            key, least = int(large.keys[row]), int(large.least[row])
            if self.table.is_zero(key, step):
                continue
            parts = self.table.parts(large.batch, int(row))
            if not self._is_irreducible((step, parts)):
                continue
            term, used = self._canonical(step, parts)
            number = self.table.class_of(key)
            if number is None:
                names: Names | None = self.table.named(least, used)
            else:
                names = self.table.names_in(number, least, used)
            if names is not None:
                found.append((key, number, Placed(term, names, self.size)))
        return found

    def several(self) -> Iterator[Pair]:
        """Operators with several outputs, each of which is less by itself: what they compute
        against the least terms of the same classes."""
        for term in list(self.table.index):
            yield from self._several(term, self.table.index.get)
        if self.large:
            yield from self._large_several()

    def _several(self, term: Term, known: Callable[[Term], Part | None]) -> Iterator[Pair]:
        step, parts = term
        if self.table.steps[step].port:
            return
        terms = [term, *((other, parts) for other in self.table.siblings(step))]
        classes = [known(t) for t in terms]
        if len(terms) < 2 or any(c is None for c in classes):
            return
        found = [c for c in classes if c is not None]
        if any(self.table.classes[c].term in terms for c, _ in found):
            return  # an output that is nothing less
        if self._operators(found) > self.size:
            return
        names = tuple(sorted({v for _, own in parts for v in own}))
        for part, other in zip(found, terms, strict=True):
            if (self._confirmation.part(part) != self._confirmation.value(other, names)).any():
                return
        text = {v: NAMES[i] for i, v in enumerate(names)}
        right = tuple(self._apply(t[0], parts, text) for t in terms)
        yield tuple(self._operand(part, text) for part in found), right

    def _large_several(self) -> Iterator[Pair]:
        """The same for the terms of the greatest size, whose classes are known by their keys."""
        rows: dict[Term, Part] = {}
        wanted = [large for large in self.large if self.table.siblings(large.batch.step)]
        known = self._known_keys()
        for large in wanted:
            for row in np.flatnonzero(np.isin(large.keys, known)):
                term, used = self._canonical(
                    large.batch.step, self.table.parts(large.batch, int(row))
                )
                number = self.table.class_of(int(large.keys[row]))
                assert number is not None
                names = self.table.names_in(number, int(large.least[row]), used)
                if names is not None:
                    rows[term] = (number, names)
        for term in rows:
            yield from self._several(term, rows.get)

    # -- reducibility -------------------------------------------------------------------------

    def mirrored(self) -> Iterator[Pair]:
        """Each irreducible term against itself with its variables changed in ways that leave its
        value as it is, but not the term: x + (y + z) against y + (x + z)."""
        for number, members in enumerate(self.table.found):
            for found in members:
                placed = Placed(found.term, found.names, self._size(found.term))
                if self._is_irreducible(found.term):
                    for other in self._mirrored(placed, number):
                        if len(self._confirmation.agreeing([_of(other), _of(placed)])) == 1:
                            yield self.pair(other, placed)

    def _mirrored(self, placed: Placed, number: int) -> Iterator[Placed]:
        mine = self._measure(placed.term)
        for option in self.table.classes[number].symmetries:
            names = tuple(placed.names[v] for v in option)
            swapped = dict(zip(placed.names, names, strict=True))
            step, parts = placed.term
            other = (step, tuple((c, tuple(swapped.get(v, v) for v in own)) for c, own in parts))
            if self._measure(other) > mine:
                yield Placed(placed.term, names, placed.size)

    def _is_irreducible(self, term: Term) -> bool:
        return not any(
            self._reduces(term, pattern, bound) for pattern, bound in self._patterns(term)
        )

    def _patterns(self, term: Term) -> Iterator[tuple[Term, list[Part]]]:
        """Smaller terms of which a term is an instance, with what their variables stand for."""
        step, parts = term
        mine = self._canonical(step, parts)[0]
        for opened in self._openings(parts):
            binding: list[Part] = []
            pattern: list[Part] = []
            for part in parts:
                inner = opened.get(part)
                made = self._opened(inner, binding) if inner else self._variable(part, binding)
                if made is not None:
                    pattern.append(made)
            if len(pattern) < len(parts):
                continue
            small, used = self._canonical(step, pattern)
            if small != mine:
                yield small, [binding[v] for v in used]

    def _openings(self, parts: Sequence[Part]) -> Iterator[dict[Part, Term]]:
        """Which operands to look into, as which of the terms of their classes: none, each one, or
        all of them."""
        yield {}
        options = {part: list(self._terms(part)) for part in parts}
        computed = {part: terms for part, terms in options.items() if terms}
        for part, terms in computed.items():
            for term in terms:
                yield {part: term}
        if len(computed) > 1:
            yield {part: terms[0] for part, terms in computed.items()}

    def _terms(self, part: Part) -> Iterator[Term]:
        """The terms of an operand's class, in the variables of the whole; the least first."""
        number, names = part
        if self.table.classes[number].term is None:
            return
        for found in self.table.found[number]:
            step, parts = found.term
            variables = {there: names[v] for v, there in enumerate(found.names)}
            if all(v in variables for _, own in parts for v in own):
                yield step, tuple((c, tuple(variables[v] for v in own)) for c, own in parts)

    def _canonical(self, step: int, parts: Sequence[Part]) -> tuple[Term, Names]:
        return self._form(step, tuple(parts))

    def _canonical_form(self, step: int, parts: tuple[Part, ...]) -> tuple[Term, Names]:
        return canonical(step, parts, self.table.steps, self.table.classes)

    def _variable(self, part: Part, binding: list[Part]) -> Part | None:
        """An input for an operand: one for equal operands."""
        part = least_names(part, self.table.classes)
        number = self.table.variable(self.table.classes[part[0]].shape)
        if number is None:
            return None
        if part not in binding:
            binding.append(part)
        return number, (binding.index(part),)

    def _opened(self, term: Term, binding: list[Part]) -> Part | None:
        step, parts = term
        inner = [self._variable(part, binding) for part in parts]
        if any(p is None for p in inner):
            return None
        return self._class(step, [p for p in inner if p is not None])

    def _class(self, step: int, parts: Sequence[Part]) -> Part | None:
        """The class of a step applied to classes, if it is known."""
        term, used = self._canonical(step, parts)
        known = self.table.index.get(term)
        if known is None:
            return None
        number, names = known
        return number, tuple(used[v] for v in names)

    def _reduces(self, term: Term, pattern: Term, bound: Sequence[Part]) -> bool:
        """Whether another member of the pattern's class makes the term less."""
        known = self.table.index.get(pattern)
        if known is None:
            return False
        number, names = known
        mine = self._measure(term)
        if self.table.classes[number].term is None:
            return True  # the pattern is one of its own inputs
        for found in (*self.table.found[number], *self._more.get(number, ())):
            for option in self.table.classes[number].symmetries:
                # Variable i of the class is names[i] of the pattern, found.names[i] of the other.
                values = {
                    there: bound[names[v]] for there, v in zip(found.names, option, strict=True)
                }
                made = self._instance(found, values)
                if made is not None and self._measure(made) < mine:
                    return True
        return False

    def _instance(self, found: Found, values: dict[int, Part]) -> Term | None:
        step, parts = found.term
        made = [self._substituted(part, values) for part in parts]
        if any(part is None for part in made):
            return None
        return step, tuple(part for part in made if part is not None)

    def _substituted(self, part: Part, values: dict[int, Part]) -> Part | None:
        number, names = part
        own = self.table.classes[number].term
        if own is None:
            return values.get(names[0])
        step, parts = own
        inner: list[Part] = []
        for c, under in parts:
            made = self._substituted((c, tuple(names[v] for v in under)), values)
            if made is None:
                return None
            inner.append(made)
        return self._class(step, inner)

    def _measured(self, term: Term) -> tuple[int, int, tuple[Part, ...]]:
        """Terms are ordered by their operators, then in a fixed way."""
        step, parts = term
        ordered = tuple(least_names(part, self.table.classes) for part in parts)
        if self.table.steps[step].call.operator.commutative:
            ordered = tuple(sorted(ordered))
        return self._size((step, ordered)), step, ordered

    def _size(self, term: Term) -> int:
        return self._operators(term[1]) + 1

    def _operators(self, parts: Sequence[Part]) -> int:
        """How many operators the first terms of some classes have, shared ones counted once."""
        seen: set[tuple[int, tuple[Part, ...]]] = set()
        pending = list(parts)
        while pending:
            number, names = pending.pop()
            own = self.table.classes[number].term
            if own is None:
                continue
            step, inner = own
            here = tuple((c, tuple(names[v] for v in under)) for c, under in inner)
            call = self.table.calls[step]
            if (call, here) not in seen:
                seen.add((call, here))
                pending += here
        return len(seen)

    # -- graphs -------------------------------------------------------------------------------

    def pair(self, left: Placed, right: Placed) -> Pair:
        """Two terms of one class as graphs over the same inputs."""
        return (self._value(left),), (self._value(right),)

    def ones(self, *terms: Placed) -> tuple[tuple[str, int], ...]:
        """The axes of the inputs of some terms of one class that have one element."""
        found: set[tuple[str, int]] = set()
        for placed in terms:
            text = _texts(placed)
            for part, names in placed.term[1]:
                for name, shape in zip(names, self.table.classes[part].variables, strict=True):
                    found |= {(text[name], dim) for dim, size in enumerate(shape) if size == 1}
        return tuple(sorted(found))

    def _value(self, placed: Placed) -> Value:
        """The graph of a term."""
        step, parts = placed.term
        text = _texts(placed)
        if step < 0:
            number, names = parts[0]
            return self._input(number, text[names[0]])
        return self._apply(step, parts, text)

    def _apply(self, step: int, parts: Sequence[Part], text: dict[int, str]) -> Value:
        made = self.table.steps[step]
        inputs = tuple(self._operand(part, text) for part in parts)
        return Value(Node(made.call, inputs), made.port)

    def _operand(self, part: Part, text: dict[int, str]) -> Value:
        number, names = part
        own = self.table.classes[number].term
        if own is None:
            return self._input(number, text[names[0]])
        step, parts = own
        return self._apply(step, parts, {i: text[v] for i, v in enumerate(names)})

    def _input(self, number: int, name: str) -> Value:
        return tensor(name, len(self.table.classes[number].shape))
