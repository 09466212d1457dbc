"""Readings of a term: what each factor reads and at which coordinates, in every order.

A factor is described by its head, which is what it reads, and by coordinates, which say where. A
product does not depend on the order of its factors, so factors with the same head may be compared
in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

from pcg.language.normal import Term
from pcg.language.poly import Poly
from verifier.trusted.errors import Unproved
from verifier.trusted.values.keys import Key, key_of_term
from verifier.trusted.values.templates import Head

MAX_ORDERS = 720
"""The most orders of the factors of a term that are compared."""


@dataclass(frozen=True)
class Reading:
    """What a factor reads, and the coordinates at which it reads."""

    head: Head
    coordinates: tuple[Poly, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """The key by which the factors of a term are sorted."""
        return str(self.head), *map(str, self.coordinates)


@dataclass(frozen=True)
class TermReadings:
    """A term with the readings of its factors, sorted."""

    term: Term
    readings: tuple[Reading, ...]

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(r.head for r in self.readings)

    @property
    def repeats(self) -> bool:
        """Whether several factors have the same head."""
        return len(set(self.heads)) < len(self.heads)


def as_sorted(read: TermReadings) -> Iterator[Sequence[Reading]]:
    """Yield the readings in their sorted order only."""
    yield read.readings


def all_orders(read: TermReadings) -> Iterator[Sequence[Reading]]:
    """Yield the readings in every order of factors with the same head. Raises Unproved if there are
    more than ``MAX_ORDERS``."""
    runs: list[list[Reading]] = []
    for reading in read.readings:
        if runs and runs[-1][0].head == reading.head:
            runs[-1].append(reading)
        else:
            runs.append([reading])
    if prod(factorial(len(run)) for run in runs) > MAX_ORDERS:
        raise Unproved("too many factors read the same tensor")
    for choice in product(*(list(permutations(run)) for run in runs)):
        yield [reading for run in choice for reading in run]


def keys_of(reads: Sequence[TermReadings]) -> Counter[Key]:
    """How often each term occurs. Terms that differ only in the names of bound indices are one."""
    return Counter(key_of_term(read.term) for read in reads)
