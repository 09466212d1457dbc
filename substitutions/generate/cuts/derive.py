"""Derives a basis of the equalities around one operator, by linear algebra.

Problem: around one operator, a parallel operator on an edge shifts one entry of that edge's type by
log k. A *place* is such an entry, (edge, entry). A graph is a vector that counts the parallel
operators at each place. Partition and combine undo each other, so the counts of their places are
any integers. Nothing undoes replicate and reduce, so counts of copies and partials never fall below
0.

Method: graphs with the same types differ by a *relation*: an integer vector that typing maps to 0.
A positive component of it is a parallel operator on one side, or the opposite one on the other
side. If a relation is a sum of relations with the same signs, these can be applied one after the
other, and no count falls below 0. So the relations that are no such sum generate all others (a
Graver basis; Sturmfels, Gröbner Bases and Convex Polytopes, 1996, chapter 4). ``relations`` finds
them. ``RelationSteps`` finds those that follow from others in several steps, which are left out.

Complexity: exponential in the number of edges, of which an operator has few.
Exact for one parallel operator on each edge and side. Derivations of more than ``MOST_STEPS`` are
not searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

EdgeEntry = tuple[int, int]
"""(edge, entry of its type); entries are ordered as in
``verifier.trusted.sizes.degrees.entries``."""
Relation = tuple[tuple[EdgeEntry, int], ...]
"""Powers of k by place, sorted; the first one positive."""
EntryColumn = Mapping[int, int]
"""The change that one power of k at a place makes to each row: a condition of typing, or an entry
of the outputs."""

MOST_STEPS = 6
LIMIT = 2
"""States with a count above this, or below its negative, are not followed."""
WIDTH, ZERO, TOP = 5, 8, 16
"""The bits of a field of a state, the number that stands for 0, and the top bit."""


@dataclass(frozen=True)
class Edges:
    """The edges of an operator. ``ranks``: the rank of each edge. ``sided``: places, other than
    those of copies and partials, whose positive powers stand on the left only, and whose negative
    powers on the right only.
    """

    ranks: tuple[int, ...]
    sided: frozenset[EdgeEntry] = frozenset()

    def side(self, place: EdgeEntry, power: int) -> int:
        """The side on which a power has to stand: 1 left, -1 right, 0 either.

        A replicate raises copies; a reduce lowers partials. At other places, an operator that
        raises the entry on one side is equivalent to one that lowers it on the other.
        """
        edge, entry = place
        copies = 2 * self.ranks[edge]
        if entry == copies or place in self.sided:
            return 1 if power > 0 else -1
        if entry == copies + 1:
            return -1 if power > 0 else 1
        return 0

    def counted(self, place: EdgeEntry) -> bool:
        """Whether a place is that of copies or partials, whose operators nothing undoes."""
        return place[1] >= 2 * self.ranks[place[0]]

    def fit(self, powers: Mapping[EdgeEntry, int], edge: int) -> bool:
        """Whether the powers fit an edge, which has room for one parallel operator on each side."""
        sides = [
            self.side(place, power)
            for place, power in powers.items()
            if place[0] == edge
            for _ in range(abs(power))
        ]
        return len(sides) < 2 or (len(sides) == 2 and (sum(sides) == 0 or 0 in sides))


def normal(powers: Mapping[EdgeEntry, int]) -> Relation:
    """The relation with the given powers, with the first one positive: a relation and its reverse
    are the same."""
    ordered = sorted(powers.items())
    sign = 1 if ordered[0][1] > 0 else -1
    return tuple((place, sign * power) for place, power in ordered)


def relations(columns: Mapping[EdgeEntry, EntryColumn], edges: Edges) -> list[Relation]:
    """The relations between graphs with up to one parallel operator on each edge that are no sums
    of such relations with the same signs."""
    finder = _Finder(columns, edges)
    related = finder.run()
    by_size = sorted(related, key=lambda r: sum(abs(power) for _, power in r))
    kept: list[Relation] = []
    for relation in by_size:
        if not any(_is_part(other, relation) for other in kept):
            kept.append(relation)
    return kept


def _is_part(part: Relation, relation: Relation) -> bool:
    """Whether ``part``, or its reverse, is a summand of ``relation`` with the same
    signs."""
    powers = dict(relation)
    shares = [(power, powers.get(place, 0)) for place, power in part]
    return all(0 < p <= q or q <= p < 0 for p, q in shares) or all(
        0 < -p <= q or q <= -p < 0 for p, q in shares
    )


class _Finder:
    """Grows vectors power by power. Each power reduces the sum that the powers so far leave over.

    Every relation that is no sum is found: a part of it leaves something over, and the rest of it
    has a power that reduces that.
    """

    def __init__(self, columns: Mapping[EdgeEntry, EntryColumn], edges: Edges) -> None:
        self._columns, self._edges = columns, edges
        self._by_row: dict[int, list[tuple[EdgeEntry, int]]] = defaultdict(list)
        for place, column in columns.items():
            for row, value in column.items():
                self._by_row[row].append((place, value))
        self._seen: set[frozenset[tuple[EdgeEntry, int]]] = set()
        self._found: dict[Relation, None] = {}
        self._done: set[EdgeEntry] = set()

    def run(self) -> list[Relation]:
        for place, column in self._columns.items():
            self._grow({place: 1}, dict(column))
            # All relations with a power at this place have been found, up to reversal.
            self._done.add(place)
        return list(self._found)

    def _grow(self, powers: dict[EdgeEntry, int], left_over: dict[int, int]) -> None:
        key = frozenset(powers.items())
        if key in self._seen:
            return
        self._seen.add(key)
        if not left_over:
            self._found[normal(powers)] = None
            return
        options = min((self._options(powers, row, left_over[row]) for row in left_over), key=len)
        for place, sign in options:
            more = {**powers, place: powers.get(place, 0) + sign}
            if self._edges.fit(more, place[0]):
                self._grow(more, self._added(left_over, place, sign))

    def _options(
        self, powers: Mapping[EdgeEntry, int], row: int, have: int
    ) -> list[tuple[EdgeEntry, int]]:
        options: list[tuple[EdgeEntry, int]] = []
        for place, value in self._by_row[row]:
            sign = -1 if (value > 0) == (have > 0) else 1
            if place not in self._done and powers.get(place, 0) * sign >= 0:
                options.append((place, sign))
        return options

    def _added(self, left_over: Mapping[int, int], place: EdgeEntry, sign: int) -> dict[int, int]:
        total = dict(left_over)
        for row, value in self._columns[place].items():
            total[row] = total.get(row, 0) + sign * value
            if not total[row]:
                del total[row]
        return total


@dataclass(frozen=True)
class _Step:
    """A relation read in one direction, as additions to a state (see ``RelationSteps``)."""

    needed: int
    """Added to a state, it sets the top bit of each field whose count is at least the amount that
    the step takes."""
    tops: int
    change: int


class RelationSteps:
    """Relations as steps between states, and the distances between states.

    A state holds the powers of one side, with operators on the other side as negative powers. It is
    one integer with a field of ``WIDTH`` bits for each place, so that a step is one addition. A
    field holds a count plus ``ZERO``.
    """

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        places = [(e, n) for e, rank in enumerate(edges.ranks) for n in range(2 * rank + 2)]
        self._shifts = {place: WIDTH * i for i, place in enumerate(places)}
        self._top = self._fields(dict.fromkeys(places, TOP))
        # Added to a state, these set the top bit of each field above LIMIT, or of each not below
        # -LIMIT.
        self._above = self._fields(dict.fromkeys(places, TOP - ZERO - LIMIT - 1))
        self._not_below = self._fields(dict.fromkeys(places, TOP - ZERO + LIMIT))
        self._zero = self._fields(dict.fromkeys(places, ZERO))

    def distance(
        self, relation: Relation, known: Iterable[Relation], most: int = MOST_STEPS
    ) -> int | None:
        """The number of steps of the known relations by which a relation follows; None if that is
        more than ``most``."""
        steps = [step for other in known for step in self._both_ways(other)]
        left, right = (self._zero + self._fields(side) for side in self.sides(relation))
        near, frontiers = [{left}, {right}], [{left}, {right}]
        for count in range(1, most + 1):
            side = int(0 < len(frontiers[1]) < len(frontiers[0]) or not frontiers[0])
            new = {b for a in frontiers[side] for b in _next(a, steps)}
            new = {state for state in new - near[side] if self._is_small(state)}
            if not new.isdisjoint(near[1 - side]):
                return count
            near[side] |= new
            frontiers[side] = new
        return None

    def sides(self, relation: Relation) -> tuple[dict[EdgeEntry, int], dict[EdgeEntry, int]]:
        """The powers of a relation's left and right side. Powers that may stand on either are on
        the left."""
        left: dict[EdgeEntry, int] = {}
        right: dict[EdgeEntry, int] = {}
        for place, power in relation:
            if self._edges.counted(place):
                side = left if self._edges.side(place, power) > 0 else right
                side[place] = abs(power)
            else:
                left[place] = power
        return left, right

    def _fields(self, values: Mapping[EdgeEntry, int]) -> int:
        return sum(value << self._shifts[place] for place, value in values.items())

    def _both_ways(self, relation: Relation) -> Iterator[_Step]:
        left, right = self.sides(relation)
        for taken, given in ((left, right), (right, left)):
            needed = {p: TOP - ZERO - n for p, n in taken.items() if self._edges.counted(p)}
            tops = self._fields(dict.fromkeys(needed, TOP))
            change = self._fields(given) - self._fields(taken)
            yield _Step(self._fields(needed), tops, change)

    def _is_small(self, state: int) -> bool:
        low = (state + self._not_below) & self._top == self._top
        return low and not (state + self._above) & self._top


def _next(state: int, steps: Sequence[_Step]) -> Iterator[int]:
    for step in steps:
        if (state + step.needed) & step.tops == step.tops:
            yield state + step.change
