"""Solves the summed indices of a term: it becomes a coefficient where conditions hold.

Method: equations between coordinates and indices are solved for one index after the other, where
its coefficient is 1 or -1; of an index that is left, conditions are eliminated (Fourier and
Motzkin). Two indices that stand for one number as its digits are one index over all of it. Exact;
what it cannot solve is not proved. Complexity: quadratic in the conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction

from pcg.language.normal import Division, Term, stem
from pcg.language.poly import Poly, Variable
from verifier.trusted import smt
from verifier.trusted.errors import Unproved

NameDivision = Callable[[Division], Division]
"""Names for what a division defines that depend on its index and size alone."""


@dataclass(frozen=True)
class Case:
    """A coefficient where conditions on the coordinates hold.

    ``zero`` lists what has to be 0 and ``positive`` what has to be at least 0; coordinates are
    ``%u0, %u1, ...``. ``free``: the indices, with their sizes, that no coordinate determines. Where
    conditions do not bind such an index either, it counts as often as its size says.
    """

    coefficient: Fraction
    zero: tuple[Poly, ...]
    positive: tuple[Poly, ...]
    free: tuple[tuple[str, Poly], ...] = ()

    def weight(self, scale: int, sizes: AbstractSet[Poly]) -> smt.Formula:
        """The coefficient, times ``scale``, where the conditions hold, else 0. Raises Unproved
        where a condition binds an index that no coordinate determines."""
        zero, positive, bound = self._settled()
        if bound:
            raise Unproved(f"summed index {stem(bound[0])} is not determined")
        factors = [smt.integer(Poly.of(int(self.coefficient * scale)))]
        factors += [_count(size, sizes) for _, size in self.free]
        conditions = [*map(smt.is_zero, zero), *(smt.at_least(p, 0) for p in positive)]
        if not conditions:
            return smt.product(factors)
        return smt.choice(smt.conjunction(conditions), smt.product(factors), smt.integer(Poly()))

    def holds(self) -> smt.Formula:
        """Whether there is a choice of the indices for which the conditions hold."""
        zero, positive, bound = self._settled()
        for name in bound:
            if any(name in p.symbols for p in zero):
                raise Unproved(f"index {stem(name)} is not determined")
            own = (Poly.of(name), dict(self.free)[name] - 1 - Poly.of(name))
            positive = _eliminated(name, (*positive, *own))
        sizes = [smt.at_least(size, 1) for name, size in self.free if name not in bound]
        return smt.conjunction(
            [*map(smt.is_zero, zero), *(smt.at_least(p, 0) for p in positive), *sizes]
        )

    def _settled(self) -> tuple[tuple[Poly, ...], tuple[Poly, ...], list[str]]:
        """The conditions without the ranges of free indices, and which of these they bind."""
        positive = self.positive
        for name, size in self.free:
            own = (Poly.of(name), size - 1 - Poly.of(name))
            positive = tuple(p for p in positive if p not in own)
        others = [*self.zero, *positive, *(size for _, size in self.free)]
        bound = [n for n, _ in self.free if any(n in p.symbols for p in others)]
        return self.zero, positive, bound


def _count(size: Poly, sizes: AbstractSet[Poly]) -> smt.Formula:
    """How many values an index has: none where its size is negative."""
    if size in sizes:
        return smt.integer(size)
    return smt.choice(smt.at_least(size, 0), smt.integer(size), smt.integer(Poly()))


def _eliminated(name: str, positive: Sequence[Poly]) -> tuple[Poly, ...]:
    """What is left of conditions when some integer ``name`` satisfies them.

    Every lower bound is at most every upper bound: exact where the coefficients are 1 and -1
    (Fourier and Motzkin). Raises Unproved elsewhere.
    """
    left = [p for p in positive if name not in p.symbols]
    lower: list[Poly] = []
    upper: list[Poly] = []
    for condition in (p for p in positive if name in p.symbols):
        coefficient = condition.coefficient(name).constant
        if coefficient not in (1, -1) or condition.degree_in(name) != 1:
            raise Unproved(f"index {stem(name)} is not determined")
        (lower if coefficient == 1 else upper).append(condition)
    return (*left, *(a + b for a in lower for b in upper))


def any_of(cases: Iterable[Case]) -> smt.Formula:
    """Whether one of the cases holds."""
    return smt.disjunction(case.holds() for case in cases)


def solve(term: Term, coordinates: Sequence[Poly], name: NameDivision) -> Case:
    """A term as a coefficient on its coordinates ``%u0, %u1, ...``."""
    system = _System(
        zero=[Poly.of(Variable(f"%u{i}")) - value for i, value in enumerate(coordinates)],
        positive=list(term.guards),
        waiting=dict(term.binders),
        divisions=list(term.divisions),
    )
    for var, size in term.binders:
        system.positive += [Poly.of(var), size - 1 - Poly.of(var)]
    for division in term.divisions:
        rest = Poly.of(division.rest)
        system.zero.append(division.index - division.size * Poly.of(division.quotient) - rest)
        system.positive += [rest, division.size - 1 - rest]
    system.zero += _equalities(system.positive)
    system.solve()
    system.join_digits()
    system.name_divisions(name)
    return Case(
        term.coefficient,
        tuple(system.zero),
        tuple(system.positive),
        tuple(system.waiting.items()),
    )


def _equalities(positive: list[Poly]) -> list[Poly]:
    """Pairs of opposite conditions, which are equations."""
    known = set(positive)
    return [p for p in positive if -p in known and str(p) <= str(-p)]


@dataclass
class _System:
    """Equations and conditions on the indices that wait to be solved for."""

    zero: list[Poly]
    positive: list[Poly]
    waiting: dict[str, Poly]
    divisions: list[Division]

    def solve(self) -> None:
        """Solve for indices one by one, and put what is found in for them."""
        while (split := self._next()) is not None:
            var, value = split
            self.waiting.pop(var, None)
            self._replace({var: value})

    def _next(self) -> tuple[str, Poly] | None:
        defined = {n for d in self.divisions for n in (d.quotient, d.rest)}
        for equation in self.zero:
            for var in sorted(equation.symbols & (self.waiting.keys() | defined)):
                coefficient = equation.coefficient(var).constant
                if coefficient in (1, -1) and equation.degree_in(var) == 1:
                    rest = equation - Poly.of(var) * coefficient
                    return var, -rest if coefficient == 1 else rest
        return None

    def _replace(self, values: Mapping[str, Poly]) -> None:
        self.zero = [z for z in (z.substitute(values) for z in self.zero) if z.terms]
        self.positive = [p.substitute(values) for p in self.positive]
        self.waiting = {v: size.substitute(values) for v, size in self.waiting.items()}
        self.divisions = [
            replace(d, index=d.index.substitute(values), size=d.size.substitute(values))
            for d in self.divisions
        ]

    def join_digits(self) -> None:
        """Determine each index that is bound as the upper digit of a number alone.

        Of ``0 <= at < d`` just one has ``0 <= u - b*at < b``, if ``0 <= u < d*b`` and ``b >= 1``,
        and else none has. (``u - b*at`` is what the lower digit was solved for.)
        """
        for at in list(self.waiting):
            joined = self._joined(at)
            if joined is not None:
                self.positive = joined
                del self.waiting[at]

    def _joined(self, at: str) -> list[Poly] | None:
        """The conditions without an index that is such a digit; None where it is none."""
        size = self.waiting[at]
        divided = (p for d in self.divisions for p in (d.index, d.size))
        others = (*self.zero, *divided, *self.waiting.values())
        own = (Poly.of(at), size - 1 - Poly.of(at))
        binding = [p for p in self.positive if at in p.symbols and p not in own]
        if len(binding) != 2 or any(at in p.symbols for p in others):
            return None
        for low, high in (binding, binding[::-1]):
            # low = u - b*at and high = b - 1 - low.
            block = -low.coefficient(at)
            whole = low + block * Poly.of(at)
            if low.degree_in(at) == 1 and high == block - 1 - low and at not in block.symbols:
                left = [p for p in self.positive if at not in p.symbols]
                return [*left, whole, size * block - 1 - whole, block - 1, size - 1]
        return None

    def name_divisions(self, name: NameDivision) -> None:
        """Quotients and rests that nothing else determines get names that any two equal
        divisions share."""
        while self.divisions:
            division = self.divisions.pop(0)
            if not self._mentions(division):
                continue
            unknown = sorted(division.index.symbols & self.waiting.keys())
            if unknown:
                raise Unproved(f"summed index {stem(unknown[0])} is not determined")
            quotient = Poly.of(name(division).quotient)
            rest = division.index - division.size * quotient
            self._replace({division.quotient: quotient, division.rest: rest})

    def _mentions(self, division: Division) -> bool:
        """Whether what a division defines still stands in a condition."""
        names = (division.quotient, division.rest)
        values = [*self.zero, *self.positive, *(d.index for d in self.divisions)]
        return any(not value.symbols.isdisjoint(names) for value in values)
