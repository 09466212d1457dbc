"""Equality of two values in normal form, for all sizes (design: "Proof, for all sizes").

Terms with the same factors are compared by what coefficient they give each choice of elements.
The coordinates of a term are the indices at which its factors read; its summed indices are solved
for in terms of them, so that the term becomes a coefficient where some linear conditions on the
coordinates hold. Two sides are equal when, for every choice of coordinates, the coefficients add
up to the same number; Z3 decides that over all sizes at once. Which factor is matched with which
is a search, and not trusted; any matching that Z3 accepts is a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from itertools import islice, permutations, product
from math import lcm

from pcg.normal import (
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
)
from pcg.poly import Poly
from verifier import smt
from verifier.errors import Unproved
from verifier.meaning import Digit
from verifier.templates import Templates, case_split

MAX_MATCHINGS = 64


@dataclass(frozen=True)
class Proof:
    """What was discharged. ``digest`` is a hash of the side conditions in SMT-LIB 2."""

    side_conditions: int
    digest: str

    @staticmethod
    def of(obligations: Sequence[str]) -> Proof:
        digest = sha256("\n".join(obligations).encode()).hexdigest()[:16]
        return Proof(len(obligations), digest)


@dataclass(frozen=True)
class Reading:
    """What a factor reads: a tensor, function or number, at coordinates."""

    head: str
    coordinates: tuple[Poly, ...]


@dataclass(frozen=True)
class Case:
    """A coefficient where conditions on the coordinates hold.

    ``zero`` lists what has to be 0 and ``positive`` what has to be at least 0; coordinates are
    ``u0, u1, ...``. ``multiplicity``: sizes of summed indices that nothing reads.
    """

    coefficient: Fraction
    multiplicity: tuple[Poly, ...]
    zero: tuple[Poly, ...]
    positive: tuple[Poly, ...]


@dataclass
class Prover:
    """Proves values equal under assumptions: every polynomial in ``positive`` is at least 1 and
    every index in ``ranges`` is in [0, size)."""

    positive: Sequence[Poly]
    ranges: Mapping[str, Poly]
    obligations: list[str] = field(default_factory=list[str])
    """The side conditions that Z3 has discharged, as scripts of SMT-LIB 2."""

    def __post_init__(self) -> None:
        self.templates = Templates(self._same_function)

    def digits(self, conditions: Iterable[Digit]) -> None:
        """Discharge the side conditions of indices that were split into digits."""
        for condition in conditions:
            claim = smt.within(condition.value, condition.size)
            self._discharge(claim, f"digit {condition.value}")

    def equal(self, left: NormalForm, right: NormalForm, free: frozenset[str]) -> None:
        """Prove two values equal; ``free`` are the index variables outside. Raises Unproved."""
        groups: dict[tuple[str, ...], tuple[list[_Read], list[_Read]]] = {}
        for side, form in enumerate((left, right)):
            for term in case_split(form, free):
                read = self._read(term, free)
                groups.setdefault(read.heads, ([], []))[side].append(read)
        for heads, (lefts, rights) in groups.items():
            self._group(heads, lefts, rights)

    def _read(self, term: Term, free: frozenset[str]) -> _Read:
        bound = free | {var for var, _ in term.binders}
        readings = sorted(
            (self._reading(factor, bound) for factor in term.factors),
            key=lambda r: (r.head, tuple(map(str, r.coordinates))),
        )
        return _Read(term, tuple(readings))

    def _reading(self, factor: Factor, bound: frozenset[str]) -> Reading:
        match factor:
            case Element(tensor, index):
                return Reading(tensor, index)
            case Number(index):
                return Reading("#", (index,))
            case Symbol(name):
                return Reading(f"${name}", ())
            case Function():
                return Reading(*self.templates.abstract(factor, bound))

    def _group(
        self,
        heads: tuple[str, ...],
        lefts: list[_Read],
        rights: list[_Read],
    ) -> None:
        matchings = [list(_orders(read)) for read in (*lefts, *rights)[1:]]
        first = [[*(lefts or rights)[0].readings]]
        last = ""
        for choice in islice(product(first, *matchings), MAX_MATCHINGS):
            cases = [
                _solve(read.term, tuple(readings))
                for read, readings in zip((*lefts, *rights), choice, strict=True)
            ]
            left, right = cases[: len(lefts)], cases[len(lefts) :]
            try:
                self._discharge(self._same_totals(left, right), " * ".join(heads))
            except Unproved as error:
                last = str(error)
            else:
                return
        raise Unproved(last)

    def _same_totals(self, left: Sequence[Case], right: Sequence[Case]) -> smt.Formula:
        """Whether two sides give every choice of coordinates the same coefficient."""
        scale = lcm(*(case.coefficient.denominator for case in (*left, *right)))
        return smt.same(
            *(smt.total(self._weight(c, scale) for c in side) for side in (left, right))
        )

    def _weight(self, case: Case, scale: int) -> smt.Formula:
        """The coefficient of a case, times ``scale``, where its conditions hold, else 0."""
        factors = [smt.integer(Poly.of(int(case.coefficient * scale)))]
        factors += [self._count(size) for size in case.multiplicity]
        conditions = [*map(smt.is_zero, case.zero), *(smt.at_least(p, 0) for p in case.positive)]
        if not conditions:
            return smt.product(factors)
        return smt.choice(smt.conjunction(conditions), smt.product(factors), smt.integer(Poly()))

    def _count(self, size: Poly) -> smt.Formula:
        """How many values an index has: none where its size is negative."""
        if size in self.positive:
            return smt.integer(size)
        return smt.choice(smt.at_least(size, 0), smt.integer(size), smt.integer(Poly()))

    def _discharge(self, claim: smt.Formula, what: str) -> None:
        """Let Z3 show that the claim holds everywhere. Raises Unproved."""
        known = [smt.at_least(size, 1) for size in self.positive]
        # A summed index has been solved for, or has its range in the claim: what is left of
        # those in ``ranges`` are the free indices.
        for name in sorted(claim.symbols & self.ranges.keys()):
            known.append(smt.within(Poly.of(name), self.ranges[name]))
        text = smt.script([*known, smt.negation(claim)])
        if (result := smt.check(text)) != "unsat":
            raise Unproved(f"{what or 'constants'}: z3 says {result}")
        self.obligations.append(text)

    def _same_function(self, left: Function, right: Function, holes: frozenset[str]) -> bool:
        """Whether two functions have equal arguments, for all values of their holes."""
        if left.name != right.name or len(left.args) != len(right.args):
            return False
        mark = len(self.obligations)
        try:
            for a, b in zip(left.args, right.args, strict=True):
                self.equal(a.form, b.form, holes)
        except Unproved:
            del self.obligations[mark:]
            return False
        return True


@dataclass(frozen=True)
class _Read:
    term: Term
    readings: tuple[Reading, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(r.head for r in self.readings)


def _orders(read: _Read) -> Iterator[list[Reading]]:
    """The ways to order factors that read the same tensor."""
    runs: list[list[Reading]] = []
    for reading in read.readings:
        if runs and runs[-1][0].head == reading.head:
            runs[-1].append(reading)
        else:
            runs.append([reading])
    for choice in product(*(list(permutations(run)) for run in runs)):
        yield [reading for run in choice for reading in run]


def _solve(term: Term, readings: tuple[Reading, ...]) -> Case:
    """A term as a coefficient on its coordinates: summed indices are solved for."""
    zero = [
        Poly.of(f"u{i}") - value
        for i, value in enumerate(v for r in readings for v in r.coordinates)
    ]
    positive = list(term.guards)
    for var, size in term.binders:
        positive += [Poly.of(var), size - 1 - Poly.of(var)]
    zero += _equalities(positive)
    waiting = dict(term.binders)
    solved: dict[str, Poly] = {}
    while True:
        found = _next_solution(zero, waiting)
        if found is None:
            break
        var, value = found
        del waiting[var]
        replaced = {var: value}
        zero = [z for z in (z.substitute(replaced) for z in zero) if z.terms]
        positive = [p.substitute(replaced) for p in positive]
        solved = {v: s.substitute(replaced) for v, s in solved.items()} | replaced
    multiplicity = [size.substitute(solved) for _, size in waiting.items()]
    for var, size in waiting.items():
        own = (Poly.of(var), size.substitute(solved) - 1 - Poly.of(var))
        positive = [p for p in positive if p not in own]
        others = [*zero, *positive, *multiplicity]
        if any(var in p.symbols for p in others):
            raise Unproved(f"summed index {var.split('~')[0]} is not determined")
    return Case(term.coefficient, tuple(multiplicity), tuple(zero), tuple(positive))


def _equalities(positive: list[Poly]) -> list[Poly]:
    """Pairs of opposite conditions, which are equations."""
    known = set(positive)
    return [p for p in positive if -p in known and str(p) <= str(-p)]


def _next_solution(zero: Sequence[Poly], waiting: Mapping[str, Poly]) -> tuple[str, Poly] | None:
    for equation in zero:
        for var in sorted(equation.symbols & waiting.keys()):
            coefficient = equation.coefficient(var).constant
            if coefficient in (1, -1) and equation.degree_in(var) == 1:
                rest = equation - Poly.of(var) * coefficient
                return var, -rest if coefficient == 1 else rest
    return None
