"""Solves for the summed indices of a term, which becomes a coefficient where conditions hold.

Method: the equations between coordinates and indices are solved for one index after the other,
where its coefficient is 1 or -1. An index that is left is eliminated from the conditions (Fourier
and Motzkin). Two indices that are the digits of one number become one index over all its values.
Exact: a term that cannot be solved raises Unproved.
Complexity: quadratic in the conditions.
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
"""Renames the quotient and rest of a division; the names depend on its index and size only."""


@dataclass(frozen=True)
class Case:
    """A coefficient where conditions on the coordinates hold.

    The polynomials in ``zero`` have to be 0, those in ``positive`` at least 0. Coordinates are
    ``%u0, %u1, ...``. ``free``: the indices that no coordinate determines, with their sizes. If no
    condition mentions such an index, it multiplies the coefficient by its size.
    """

    coefficient: Fraction
    zero: tuple[Poly, ...]
    positive: tuple[Poly, ...]
    free: tuple[tuple[str, Poly], ...] = ()

    def weight(self, scale: int, sizes: AbstractSet[Poly]) -> smt.Formula:
        """The coefficient times ``scale`` where the conditions hold, else 0. Raises Unproved if a
        condition mentions an index that no coordinate determines."""
        zero, positive, bound = self._split_conditions()
        if bound:
            raise Unproved(f"summed index {stem(bound[0])} is not determined")
        factors = [smt.integer(Poly.of(int(self.coefficient * scale)))]
        factors += [_count(size, sizes) for _, size in self.free]
        conditions = [*map(smt.is_zero, zero), *(smt.at_least(p, 0) for p in positive)]
        if not conditions:
            return smt.product(factors)
        return smt.choice(smt.conjunction(conditions), smt.product(factors), smt.integer(Poly()))

    def holds(self) -> smt.Formula:
        """Whether there are values of the free indices for which the conditions hold. Raises
        Unproved if elimination is not exact."""
        zero, positive, bound = self._split_conditions()
        for name in bound:
            if any(name in p.symbols for p in zero):
                raise Unproved(f"index {stem(name)} is not determined")
            span = (Poly.of(name), dict(self.free)[name] - 1 - Poly.of(name))
            positive = _eliminated(name, (*positive, *span))
        sizes = [smt.at_least(size, 1) for name, size in self.free if name not in bound]
        return smt.conjunction(
            [*map(smt.is_zero, zero), *(smt.at_least(p, 0) for p in positive), *sizes]
        )

    def _split_conditions(self) -> tuple[tuple[Poly, ...], tuple[Poly, ...], list[str]]:
        """The conditions without the ranges of free indices, and the free indices that these
        conditions or the sizes mention."""
        positive = self.positive
        for name, size in self.free:
            span = (Poly.of(name), size - 1 - Poly.of(name))
            positive = tuple(p for p in positive if p not in span)
        others = [*self.zero, *positive, *(size for _, size in self.free)]
        bound = [n for n, _ in self.free if any(n in p.symbols for p in others)]
        return self.zero, positive, bound


def _count(size: Poly, sizes: AbstractSet[Poly]) -> smt.Formula:
    """The number of values of an index: its size, or 0 where the size is negative."""
    if size in sizes:
        return smt.integer(size)
    return smt.choice(smt.at_least(size, 0), smt.integer(size), smt.integer(Poly()))


def _eliminated(name: str, positive: Sequence[Poly]) -> tuple[Poly, ...]:
    """The conditions under which some integer ``name`` satisfies those given (Fourier and Motzkin).

    They say that every lower bound is at most every upper bound. That is exact for integers if the
    coefficients of ``name`` are 1 and -1; raises Unproved if they are not.
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
    """Return a term as a coefficient on the coordinates ``%u0, %u1, ...``, which are equal to
    ``coordinates``. Raises Unproved if a division depends on an index that is not determined."""
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
    """The equations that follow from pairs of opposite conditions, ``p >= 0`` and ``-p >= 0``."""
    known = set(positive)
    return [p for p in positive if -p in known and str(p) <= str(-p)]


@dataclass
class _System:
    """Equations and conditions on summed indices. ``waiting``: the indices that are not solved for
    yet, with their sizes."""

    zero: list[Poly]
    positive: list[Poly]
    waiting: dict[str, Poly]
    divisions: list[Division]

    def solve(self) -> None:
        """Solve for indices one by one, and substitute their values."""
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
        """Eliminate each index whose only conditions say that it is the upper digit of a number.

        If ``0 <= u < d*b`` and ``b >= 1``, exactly one ``i`` with ``0 <= i < d`` satisfies
        ``0 <= u - b*i < b``; otherwise none does. (The lower digit, ``u - b*i``, was solved for.)
        """
        for index in list(self.waiting):
            joined = self._joined(index)
            if joined is not None:
                self.positive = joined
                del self.waiting[index]

    def _joined(self, index: str) -> list[Poly] | None:
        """The conditions without the index, if it is such a digit; else None."""
        size = self.waiting[index]
        divided = (p for d in self.divisions for p in (d.index, d.size))
        others = (*self.zero, *divided, *self.waiting.values())
        span = (Poly.of(index), size - 1 - Poly.of(index))
        binding = [p for p in self.positive if index in p.symbols and p not in span]
        if len(binding) != 2 or any(index in p.symbols for p in others):
            return None
        for low, high in (binding, binding[::-1]):
            # low = u - b*index and high = b - 1 - low.
            block = -low.coefficient(index)
            number = low + block * Poly.of(index)
            if low.degree_in(index) == 1 and high == block - 1 - low and index not in block.symbols:
                left = [p for p in self.positive if index not in p.symbols]
                return [*left, number, size * block - 1 - number, block - 1, size - 1]
        return None

    def name_divisions(self, name: NameDivision) -> None:
        """Name the quotients and rests that nothing else determines. Equal divisions get the same
        names. Raises Unproved if a division depends on an index that is not determined."""
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
        """Whether a condition, or another division, still mentions the quotient or rest."""
        names = (division.quotient, division.rest)
        values = [*self.zero, *self.positive, *(d.index for d in self.divisions)]
        return any(not value.symbols.isdisjoint(names) for value in values)
