"""Finds the rules around one operator, with up to one parallel operator on each of its edges.

Method: parallel operators never change what a tensor means. So two such graphs are equal if they
have the same types for all types of their inputs. Types are linear in logarithms, so equal types
are a question of linear algebra (``derive``). It is solved at one choice of ranks, where each run
of indices has a few *active* axes, which may carry parallel operators. A rule is then written at
other ranks: a run has the active axes that the rule uses, and a free axis before, between and after
them, which may stand for any number of axes (``verifier.trusted.sizes.runs``). An element-wise
operator has the rules of its stand-in, so only its further rules are found: that partial sums pass
through it.

A *relation* between graphs can be written as several equalities. One of them is the rule: the one
with the smallest side, with operators that cut before and operators that join after. The other
equalities follow from it in one step, up to pairs of parallel operators that cancel, and are marked
as derived.

Exact: a chain of two operators, with parallel operators before, between and after them, has no
rules of its own. Parallel operators before the first operator shift its output's type, and others
on the edge between can shift it back: that is a relation around the first operator. The rest of a
relation around the chain is then a relation around the second operator, with the edge between among
its operands. So every relation is the sum of two, one around each operator. One step of this is not
proved but tested by exhaustive enumeration: copies and partials on the edge between never have to
be removed where there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import lcm, prod
from random import Random

import numpy as np

from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.graph.pairs import GraphPair
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import stand_in
from pcg.types.operator import Call, Operator
from substitutions.generate.algebra.enumerate import (
    DEGREE,
    RankedCall,
    input_names,
    instance,
    labels,
    runs_of,
)
from substitutions.generate.cuts.chains import AROUND
from substitutions.generate.cuts.derive import (
    EdgeEntry,
    Edges,
    EntryColumn,
    Relation,
    RelationSteps,
    relations,
)
from substitutions.rules.candidate import Candidate, Enumeration
from verifier.trusted.sizes.degrees import Basis, Powers, entries, input_degrees, typings

FAMILY = "cut"
MOST_PLACES = 36
"""The most dimensions and slices of all edges with which an operator has two active axes per
run."""
MOST_CHOICES = 6
"""The most parallel operators that may stand on either side for which all equalities of a relation
are written."""
MOST_GRAPHS = 2_000_000
"""The most graphs around an operator for which graphs with active axes are counted."""

PlacePower = tuple[EdgeEntry, int]
PowerWord = tuple[PlacePower, ...]
"""The parallel operators of a graph: each as a place, and 1 or -1 if it multiplies or divides the
entry there."""


@dataclass(frozen=True)
class LinearTyping:
    """A typing of an operator as a linear system in powers of k.

    ``columns``: for each place, the shift that a parallel operator there makes. ``fixed``: the
    places whose entry has to be 1; they have no column. ``haloed``: the places on operands that
    only a partition with a halo can cut.
    """

    columns: Mapping[EdgeEntry, EntryColumn]
    fixed: frozenset[EdgeEntry]
    haloed: frozenset[EdgeEntry] = frozenset()

    def holds(self, relation: Relation) -> bool:
        """Whether both sides of a relation have the same types."""
        total: dict[int, int] = {}
        for place, power in relation:
            if place not in self.columns:
                return False
            for row, value in self.columns[place].items():
                total[row] = total.get(row, 0) + power * value
        return not any(total.values())


@dataclass(frozen=True)
class CutRelation:
    """A relation as an equality of two graphs. ``steps``: the number of steps by which it follows
    from the rules of the basis; 0 for these."""

    relation: Relation
    words: tuple[PowerWord, PowerWord]
    steps: int
    haloed: frozenset[EdgeEntry]


def cut_rules(operator: Operator) -> Enumeration:
    """The general rules around an operator, and those that follow from one of them in one step."""
    layout = OperatorCuts.of(operator) if operator.arity else None
    if layout is None:
        return Enumeration(0, 0, ())
    graphs, values = layout.count()
    candidates = dict.fromkeys(
        Candidate.of(layout.written(f), FAMILY, f.steps) for f in layout.found()
    )
    return Enumeration(graphs, values, tuple(candidates))


@dataclass(frozen=True)
class OperatorCuts:
    """An operator with a number of active axes in each run, and the relations around it."""

    operator: Operator
    lengths: tuple[tuple[str, int], ...]
    at: RankedCall

    @staticmethod
    def of(operator: Operator, active: int | None = None) -> OperatorCuts | None:
        """The operator with ``active`` axes in each run; by default two if it has few places, else
        one. None if it has no meaning at these ranks.
        """
        for number in (2, 1) if active is None else (active,):
            lengths = dict.fromkeys(runs_of(operator), number)
            at = instance(operator, lengths)
            if at and (active or number == 1 or 2 * sum(at.edges) <= MOST_PLACES):
                return OperatorCuts(operator, tuple(lengths.items()), at)
        return None

    def typings(self) -> list[LinearTyping]:
        """The typings of the operator: one for each choice of operands that carry partials, and the
        same again with each window cut that may be cut."""
        every = list(_typings(self.at, frozenset()))
        for window in self.at.call.typing(self.at.ranks).windows:
            if all(operand < self.operator.arity for operand, _ in window.places):
                every += _typings(self.at, frozenset(window.places))
        return every

    def count(self) -> tuple[int, int]:
        """The number of graphs that have types, and of their different types, summed over typings.

        If there are more than ``MOST_GRAPHS``, graphs with active axes are not counted.
        """
        typings = [typing for typing in self.typings() if not typing.haloed]
        if sum(_graphs(self.at, typing) for typing in typings) > MOST_GRAPHS:
            least = OperatorCuts.of(self.operator, 0)
            if least is None or not any(n for _, n in self.lengths):
                return 0, 0
            return least.count()
        values = sum(_values(self.at, typing) for typing in typings)
        return sum(_graphs(self.at, typing) for typing in typings), values

    def found(self) -> list[CutRelation]:
        """The rules and the derived ones, without those of the stand-in."""
        general = stand_in(self.operator)
        known: list[Relation] = []
        if general is not None:
            layout = OperatorCuts.of(general, dict(self.lengths)[runs_of(self.operator)[0]])
            assert layout is not None
            known = [f.relation for f in layout.basis([])]
        return list(self._with_derived(self.basis(known)))

    def basis(self, known: Sequence[Relation]) -> list[CutRelation]:
        """Relations that generate all others together with those in ``known``."""
        typings = self.typings()
        options: dict[tuple[PowerWord, PowerWord], tuple[Relation, LinearTyping]] = {}
        for typing in typings:
            edges = Edges(self.at.edges, typing.haloed)
            for relation in relations(typing.columns, edges):
                if typing.haloed and typing.haloed.isdisjoint(dict(relation)):
                    continue
                words = min(self._ways(relation, edges), key=self._rank)
                options.setdefault(words, (relation, typing))
        accepted = list(known)
        rules: list[CutRelation] = []
        for words in sorted(options, key=self._order):
            relation, typing = options[words]
            steps = RelationSteps(Edges(self.at.edges, typing.haloed))
            usable = [other for other in accepted if typing.holds(other)]
            if steps.distance(relation, usable) is None:
                accepted.append(relation)
                rules.append(CutRelation(relation, words, 0, typing.haloed))
        return rules

    def _with_derived(self, basis: Sequence[CutRelation]) -> Iterator[CutRelation]:
        for rule in basis:
            yield rule
            edges = Edges(self.at.edges, rule.haloed)
            for words in self._ways(rule.relation, edges):
                if words not in (rule.words, rule.words[::-1]):
                    yield CutRelation(rule.relation, words, 1, rule.haloed)

    def _ways(self, relation: Relation, edges: Edges) -> list[tuple[PowerWord, PowerWord]]:
        """The equalities that a relation can be written as, each once up to direction."""
        units = [(place, 1 if n > 0 else -1) for place, n in relation for _ in range(abs(n))]
        ways: dict[frozenset[PowerWord], tuple[PowerWord, PowerWord]] = {}
        for chosen in _choices([edges.side(*unit) for unit in units]):
            placed = list(zip(units, chosen, strict=True))
            left = tuple(sorted(unit for unit, side in placed if side > 0))
            right = tuple(sorted((place, -sign) for (place, sign), side in placed if side < 0))
            if all(len({place[0] for place, _ in word}) == len(word) for word in (left, right)):
                pair = min((left, right), (right, left), key=self._rank)
                ways[frozenset(pair)] = pair
        return list(ways.values())

    def written(self, relation: CutRelation) -> GraphPair:
        """The pair of graphs at the ranks of the rule."""
        before = labels(self.operator, dict(self.lengths))
        used: dict[str, list[int]] = {run: [] for run, _ in self.lengths}
        for (edge, entry), _ in relation.relation:
            if entry < 2 * len(before[edge]):
                run, which = before[edge][entry % len(before[edge])]
                if run and which not in used[run]:
                    used[run].append(which)
        lengths = {run: 2 * len(axes) + 1 for run, axes in used.items()}
        after = labels(self.operator, lengths)
        at = instance(self.operator, lengths)
        assert at is not None

        def moved(place: EdgeEntry) -> EdgeEntry:
            edge, entry = place
            old, new = before[edge], after[edge]
            if entry >= 2 * len(old):
                return edge, entry + 2 * (len(new) - len(old))
            run, which = old[entry % len(old)]
            label = (run, 2 * sorted(used[run]).index(which) + 1) if run else (run, which)
            return edge, new.index(label) + (entry >= len(old)) * len(new)

        haloed = frozenset(moved(place) for place in relation.haloed)
        left, right = (
            decorated(at, {moved(place): power for place, power in word}, haloed)
            for word in relation.words
        )
        return left, right

    def _order(self, words: tuple[PowerWord, PowerWord]) -> tuple[int, int, tuple[object, ...]]:
        """A sort key for equalities: first those that cut before and join after, then small
        ones."""
        rank = self._rank(words)
        return sum(n for _, n, _ in rank), sum(size for size, _, _ in rank), rank

    def _rank(self, words: tuple[PowerWord, PowerWord]) -> tuple[tuple[int, int, PowerWord], ...]:
        """A sort key for equalities: by the sizes of the sides, and among equals first those that
        apply to whole tensors, with operators that cut before and operators that join after."""
        arity = self.operator.arity
        undone = [sum((n < 0) == (edge < arity) for (edge, _), n in word) for word in words]
        return tuple((len(word), n, word) for word, n in zip(words, undone, strict=True))


def _choices(sides: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the choices of a side (1 or -1) for each unit that may stand on either (0). If there
    are more than ``MOST_CHOICES`` such units, only choices that put all but one of them on the same
    side."""
    if sides.count(0) <= MOST_CHOICES:
        yield from product(*((side,) if side else (1, -1) for side in sides))
        return
    for most in (1, -1):
        for other in range(-1, len(sides)):
            yield tuple(side or (-most if i == other else most) for i, side in enumerate(sides))


def decorated(
    at: RankedCall, powers: Mapping[EdgeEntry, int], haloed: frozenset[EdgeEntry] = frozenset()
) -> tuple[Value, ...]:
    """The outputs of an operator with a parallel operator at each place of ``powers``, at most one
    on each edge."""
    symbols = (DEGREE, *(f"{DEGREE}{i}" for i in range(2, 9)))
    degree = Poly.of(next(s for s in symbols if s not in at.call.operator.attributes))
    moves = {place[0]: _move(at, place, power, degree, haloed) for place, power in powers.items()}

    def after(edge: int, value: Value) -> Value:
        return Value(Node(moves[edge], (value,))) if edge in moves else value

    names = input_names(len(at.ranks))
    leaves = [tensor(name, rank) for name, rank in zip(names, at.ranks, strict=True)]
    node = Node(at.call, tuple(after(edge, x) for edge, x in enumerate(leaves)))
    return tuple(after(len(leaves) + i, node.value(i)) for i in range(len(at.outputs)))


def _move(
    at: RankedCall, place: EdgeEntry, power: int, degree: Poly, haloed: frozenset[EdgeEntry]
) -> Call:
    """The parallel operator that shifts an entry by a power of the degree."""
    edge, entry = place
    rank = at.edges[edge]
    if entry >= 2 * rank:
        return OPERATORS["replicate" if entry == 2 * rank else "reduce"](degree=degree)
    names = ("partition", "combine") if entry < rank else ("pipeline", "batch")
    operator = OPERATORS[names[power < 0]]
    around = {n: Poly.of(n) for n in AROUND} if place in haloed else {}
    halo = dict(zip(operator.optional, around.values(), strict=True)) if around else {}
    return operator(dim=entry % rank, degree=degree, **halo)


def _typings(at: RankedCall, haloed: frozenset[EdgeEntry]) -> Iterator[LinearTyping]:
    """Yield the typings of an operator whose operands have halos at the places ``haloed``."""
    names = input_names(len(at.ranks))
    leaves = [tensor(name, rank) for name, rank in zip(names, at.ranks, strict=True)]
    inputs = list(leaves)
    for edge, dim in sorted(haloed):
        # A partition of degree 1 with a halo: it changes no degree.
        call = OPERATORS["partition"](dim=dim, degree=1, before=1, after=1)
        inputs[edge] = Value(Node(call, (inputs[edge],)))
    node = Node(at.call, tuple(inputs))
    outputs = tuple(node.value(port) for port in range(len(at.outputs)))
    for typing in typings(Graph(outputs).nodes, outputs):
        rows = Basis.of(typing.equations).rows
        reduced = [Basis(rows).reduce(entry) for t in typing.types for entry in entries(t)]
        symbols = {
            entry.powers[0][0]: (edge, n)
            for edge, (name, rank) in enumerate(zip(names, at.ranks, strict=True))
            for n, entry in enumerate(entries(input_degrees(name, rank)))
        }
        yield _linear(at, rows, reduced, symbols, haloed)


def _linear(
    at: RankedCall,
    rows: Sequence[tuple[str, Powers]],
    outputs: Sequence[Powers],
    symbols: Mapping[str, EdgeEntry],
    haloed: frozenset[EdgeEntry],
) -> LinearTyping:
    """The linear system of a typing. Its rows are the conditions ``symbol / value = 1`` and the
    entries of the outputs' types."""
    fixed = frozenset(symbols[s] for s, value in rows if s in symbols and not value.powers)
    forms = [value.over(Powers.of(symbol)) for symbol, value in rows] + list(outputs)
    columns: dict[EdgeEntry, dict[int, int]] = {place: {} for place in symbols.values()}
    for row, form in enumerate(forms):
        whole = lcm(*(power.denominator for _, power in form.powers))
        for symbol, power in form.powers:
            if symbol in symbols:
                columns[symbols[symbol]][row] = int(power * whole)
        if row >= len(rows):
            columns[_output_place(at, row - len(rows))] = {row: whole}
    kept = {place: column for place, column in sorted(columns.items()) if place not in fixed}
    return LinearTyping(kept, fixed, haloed)


def _output_place(at: RankedCall, number: int) -> EdgeEntry:
    """The place of entry ``number`` of the outputs' types, counted through all outputs."""
    for port, rank in enumerate(at.outputs):
        if number < 2 * rank + 2:
            return len(at.ranks) + port, number
        number -= 2 * rank + 2
    raise IndexError(number)


def _shifts(at: RankedCall, typing: LinearTyping, edge: int) -> Iterator[tuple[EdgeEntry, int]]:
    """Yield the parallel operators on an edge, as (place, power), without those that would make a
    degree a fraction of k."""
    rank = at.edges[edge]
    for entry in range(2 * rank + 2):
        place = (edge, entry)
        if entry != 2 * rank + 1 and place not in typing.fixed:
            yield place, 1
        if entry != 2 * rank:
            yield place, -1


def _graphs(at: RankedCall, typing: LinearTyping) -> int:
    """The number of graphs around an operator that have types."""
    return prod(1 + len(list(_shifts(at, typing, edge))) for edge in range(len(at.edges)))


def _values(at: RankedCall, typing: LinearTyping) -> int:
    """The number of different types of these graphs. They are told apart by a 64-bit hash that is
    linear in the powers."""
    random = Random(0)
    weights: dict[int, int] = defaultdict(lambda: random.getrandbits(64))
    others: dict[EdgeEntry, int] = defaultdict(lambda: random.getrandbits(64))
    total = np.zeros(1, np.uint64)
    for edge in range(len(at.edges)):
        options = [0]
        for place, power in _shifts(at, typing, edge):
            if place in typing.columns:
                shift = sum(weights[row] * n for row, n in typing.columns[place].items())
            else:
                shift = others[place]
            options.append(shift * power)
        shifts = np.array([option % 2**64 for option in options], np.uint64)
        total = (total[:, None] + shifts[None, :]).ravel()
    return len(np.unique(total))
