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
from itertools import islice, permutations, product

import z3

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
from verifier.meaning import Digit
from verifier.templates import Templates, case_split

TIMEOUT_MS = 2_000
MAX_MATCHINGS = 64


class Unproved(Exception):
    """The proof did not go through; the text says where."""


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
    """The side conditions that Z3 has discharged, as SMT-LIB."""

    def __post_init__(self) -> None:
        self.templates = Templates(self._same_function)

    def digits(self, conditions: Iterable[Digit]) -> None:
        """Discharge the side conditions of indices that were split into digits."""
        for condition in conditions:
            low = integer(condition.value) >= 0
            high = integer(condition.value) < integer(condition.size)
            free = condition.value.symbols | condition.size.symbols
            self._discharge(z3.And(low, high), free, f"digit {condition.value}")

    def equal(self, left: NormalForm, right: NormalForm, free: frozenset[str]) -> None:
        """Prove two values equal; ``free`` are the index variables outside. Raises Unproved."""
        groups: dict[tuple[str, ...], tuple[list[_Read], list[_Read]]] = {}
        for side, form in enumerate((left, right)):
            for term in case_split(form, free):
                read = self._read(term, free)
                groups.setdefault(read.heads, ([], []))[side].append(read)
        for heads, (lefts, rights) in groups.items():
            self._group(heads, lefts, rights, free)

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
        free: frozenset[str],
    ) -> None:
        matchings = [list(_orders(read)) for read in (*lefts, *rights)[1:]]
        first = [[*(lefts or rights)[0].readings]]
        last = ""
        for choice in islice(product(first, *matchings), MAX_MATCHINGS):
            cases = [
                _solve(read.term, tuple(readings), free)
                for read, readings in zip((*lefts, *rights), choice, strict=True)
            ]
            left, right = cases[: len(lefts)], cases[len(lefts) :]
            count = sum(len(r.coordinates) for r in choice[0])
            claim = _total(left) == _total(right)
            try:
                self._discharge(claim, free | {f"u{i}" for i in range(count)}, " * ".join(heads))
            except Unproved as error:
                last = str(error)
            else:
                return
        raise Unproved(last)

    def _discharge(self, claim: z3.BoolRef | bool, free: Iterable[str], what: str) -> None:
        """Let Z3 show that the claim holds everywhere. Raises Unproved."""
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        for size in self.positive:
            solver.add(integer(size) >= 1)
        for name in sorted(set(free) & self.ranges.keys()):
            solver.add(z3.Int(name) >= 0, z3.Int(name) < integer(self.ranges[name]))
        solver.add(z3.Not(claim))
        if (result := solver.check()) != z3.unsat:
            raise Unproved(f"{what or 'constants'}: z3 says {result}")
        self.obligations.append(solver.to_smt2())

    def _same_function(self, left: Function, right: Function, holes: frozenset[str]) -> bool:
        """Whether two functions have equal arguments, for all values of their holes."""
        if left.name != right.name or len(left.args) != len(right.args):
            return False
        mark = len(self.obligations)
        try:
            for a, b in zip(left.args, right.args, strict=True):
                self.equal(a, b, holes)
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


def _solve(term: Term, readings: tuple[Reading, ...], free: frozenset[str]) -> Case:
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


def _next_solution(
    zero: Sequence[Poly], waiting: Mapping[str, Poly]
) -> tuple[str, Poly] | None:
    for equation in zero:
        for var in sorted(equation.symbols & waiting.keys()):
            coefficient = equation.coefficient(var).constant
            if coefficient in (1, -1) and equation.degree_in(var) == 1:
                rest = equation - Poly.of(var) * coefficient
                return var, -rest if coefficient == 1 else rest
    return None


def _total(cases: Sequence[Case]) -> z3.ArithRef:
    total: z3.ArithRef = z3.RealVal(0)
    for case in cases:
        weight: z3.ArithRef = z3.Q(case.coefficient.numerator, case.coefficient.denominator)
        for size in case.multiplicity:
            weight = weight * z3.ToReal(integer(size))
        conditions = [integer(p) == 0 for p in case.zero]
        conditions += [integer(p) >= 0 for p in case.positive]
        total = total + z3.If(z3.And(conditions), weight, z3.RealVal(0))
    return total


def integer(value: Poly) -> z3.ArithRef:
    """A size or index as a Z3 term."""
    total: z3.ArithRef = z3.IntVal(0)
    for monomial, coefficient in value.terms:
        term: z3.ArithRef = z3.IntVal(coefficient)
        for symbol in monomial:
            term = term * z3.Int(symbol)
        total = total + term
    return total
