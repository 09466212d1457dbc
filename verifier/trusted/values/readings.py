"""Lists what the factors of a term read, and in which orders they may be compared.

The factors of a term are told apart by what they read, whatever the coordinates. A product does not
depend on the order of its factors, so those that read the same tensor may be in any.
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
"""Ways to order the factors of a term that read the same tensor."""


@dataclass(frozen=True)
class Reading:
    """What a factor reads: a tensor, function or number, at coordinates."""

    head: Head
    coordinates: tuple[Poly, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Sorts the factors of a term."""
        return str(self.head), *map(str, self.coordinates)


@dataclass(frozen=True)
class Read:
    """A term with what its factors read."""

    term: Term
    readings: tuple[Reading, ...]

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(r.head for r in self.readings)

    @property
    def repeats(self) -> bool:
        """Whether it reads a tensor more than once."""
        return len(set(self.heads)) < len(self.heads)


def as_sorted(read: Read) -> Iterator[Sequence[Reading]]:
    """The one order in which a term's readings are kept."""
    yield read.readings


def all_orders(read: Read) -> Iterator[Sequence[Reading]]:
    """The ways to order factors that read the same tensor."""
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


def keys_of(reads: Sequence[Read]) -> Counter[Key]:
    """How often each term is among some, whatever its own indices are called."""
    return Counter(key_of_term(read.term) for read in reads)
