"""Proves two values in normal form equal, for all sizes (design: "Proof, for all sizes").

Problem: are two sums of guarded products the same function of their indices, for all sizes?
Method: terms with the same factors are compared by the coefficient that they give to each choice of
elements. The coordinates of a term are the indices at which its factors read. Its summed indices
are solved for in terms of the coordinates, so that the term becomes a coefficient where some linear
conditions on the coordinates hold. Two sides are equal if, for every choice of coordinates, the
coefficients add up to the same number. Z3 decides that over all sizes at once. Maxima are compared
in the same way, by the set of values that they are taken over.
Complexity: orders of equal factors times templates, each with a few conditions for Z3.
Exact: proved values are equal. Equal values may stay unproved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from math import lcm

from pcg.language.normal import (
    Division,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
    substitute_form,
)
from pcg.language.poly import ONE, Poly, Variable
from verifier.trusted import smt
from verifier.trusted.errors import Unproved
from verifier.trusted.steps import SearchSteps, Steps
from verifier.trusted.values.cases import Case, any_of, solve
from verifier.trusted.values.domain import Domain, UndefinedPart, as_value, has_partial
from verifier.trusted.values.domain import UndefinedFactor as Undefined
from verifier.trusted.values.guards import SureGuards
from verifier.trusted.values.keys import Key, key_of_term
from verifier.trusted.values.meaning import Digit
from verifier.trusted.values.readings import Reading, TermReadings, all_orders, as_sorted, keys_of
from verifier.trusted.values.simplify import Simplifier
from verifier.trusted.values.templates import (
    Head,
    Ranges,
    Templates,
    bound_in,
    case_split,
    split_everywhere,
)


@dataclass(frozen=True)
class Proof:
    """The discharged side conditions as SMT-LIB 2 scripts, and the choices that lead to them."""

    obligations: tuple[str, ...]
    steps: tuple[str, ...] = ()

    @property
    def side_conditions(self) -> int:
        return len(self.obligations)

    @property
    def digest(self) -> str:
        """A hash of the side conditions."""
        return sha256("\n".join(self.obligations).encode()).hexdigest()[:16]


@dataclass
class Prover:
    """Proves values equal under assumptions: every polynomial in ``positive`` is at least 1, every
    one in ``naturals`` at least 0, every one in ``zeros`` is 0, and every index variable is within
    its range in ``ranges``.

    ``obligations`` collects the scripts that ``judge`` found unsatisfiable. ``steps`` says which
    way to take where there are several.
    """

    positive: tuple[Poly, ...]
    ranges: dict[str, Poly]
    obligations: list[str] = field(default_factory=list[str])
    naturals: tuple[Poly, ...] = ()
    steps: Steps = field(default_factory=SearchSteps)
    judge: smt.Judge = field(default_factory=lambda: smt.check)
    zeros: tuple[Poly, ...] = ()

    def __post_init__(self) -> None:
        self.templates = Templates(self._same_function, self.steps, self._range_of)
        self._holes: Ranges = {}
        self._sure = SureGuards(self._range_of, self._is_natural, self._is_size)
        self._divisions: dict[tuple[Poly, Poly], Division] = {}
        self._digits: dict[Digit, bool] = {}
        self._sizes = frozenset(self.positive)
        self._known = [smt.at_least(size, 1) for size in self.positive]
        self._known += [smt.at_least(value, 0) for value in self.naturals]
        self._known += [smt.is_zero(value) for value in self.zeros]

    def is_digit(self, digit: Digit) -> bool:
        """Whether ``0 <= value < size`` wherever the indices are in their ranges: by their ranges
        alone, or as a discharged condition, if ``steps`` has it so."""
        name = digit.value.symbol
        if not digit.value.terms or (name is not None and self.ranges.get(name) == digit.size):
            return True
        if digit not in self._digits:
            below = digit.size - 1 - digit.value
            sure = self._sure.are_sure(digit.value, below)
            self._digits[digit] = sure or self._choose_digit(digit)
        return self._digits[digit]

    def _choose_digit(self, digit: Digit) -> bool:
        for way in self.steps.options(("digit", "division")):
            if way == "division":
                break
            try:
                self.require(digit)
            except Unproved:
                continue
            return True
        return False

    def require(self, digit: Digit) -> None:
        """Discharge ``0 <= value < size``. Raises Unproved."""
        self._discharge(smt.within(digit.value, digit.size), f"digit {digit.value}")

    def equal(self, left: NormalForm, right: NormalForm, free: frozenset[str]) -> None:
        """Prove two values equal for all values of the index variables in ``free``. Those with a
        range of one value are 0. Raises Unproved."""
        simplifier = Simplifier(self._is_size, self._is_index)
        ones = {name: Poly() for name in free if self._range_of(name) == ONE}
        left, right = (substitute_form(side, ones) if ones else side for side in (left, right))
        left, right = (split_everywhere(self._sure.dropped(side), free) for side in (left, right))
        self._equal(simplifier.simplify(left), simplifier.simplify(right), free)
        if has_partial(left) or has_partial(right):
            self._same_domain(Domain(simplifier), left, right, free)

    def _same_domain(
        self, domain: Domain, left: NormalForm, right: NormalForm, free: frozenset[str]
    ) -> None:
        """Prove that two values are undefined at the same places. Raises Unproved."""
        factors = [tuple(domain.factors(side)) for side in (left, right)]
        listed = [_distinct(_listed(domain, side)) for side in factors]
        if listed[0].keys() == listed[1].keys():
            return
        known: dict[Key, bool] = {}
        doubtful_parts = [self._doubtful(side, known) for side in factors]
        sides = [tuple(_distinct(_listed(domain, side)).values()) for side in doubtful_parts]
        last = Unproved("where it is undefined")
        for way in self.steps.options(("alone", "along")):
            mark = self._mark()
            terms = [[part.term(along=way == "along") for part in side] for side in sides]
            try:
                for heads, (lefts, rights) in self._grouped(terms[0], terms[1], free).items():
                    what = f"where {heads[0]} is undefined"
                    self._try_orders(lefts, rights, self._same_values, what)
            except Unproved as error:
                last = error
                self._undo(mark)
            else:
                return
        raise last

    def _mark(self) -> tuple[int, int, int]:
        """The lengths of what has been recorded so far, for ``_undo``."""
        return len(self.obligations), len(self._divisions), self.templates.count

    def _undo(self, mark: tuple[int, int, int]) -> None:
        """Forget what a failed way recorded. Names and templates are numbered, and whoever follows
        the steps of the proof takes the successful way only."""
        obligations, divisions, templates = mark
        del self.obligations[obligations:]
        while len(self._divisions) > divisions:
            self._divisions.popitem()
        self.templates.forget(templates)

    def _doubtful(self, factors: Sequence[Undefined], known: dict[Key, bool]) -> list[Undefined]:
        """The factors that have parts not known to be numbers, each with these parts only."""
        doubtful: list[Undefined] = []
        for factor in factors:
            parts = tuple(part for part in factor.parts if self._may_fail(part, known))
            if parts:
                doubtful.append(replace(factor, parts=parts))
        return doubtful

    def _may_fail(self, part: UndefinedPart, known: dict[Key, bool]) -> bool:
        """Whether a part is not known to be a number. A maximum over at least one value is one."""
        if (maximum := part.maximum) is None:
            return True
        key = key_of_term(part.term(along=False))
        if key not in known:
            known[key] = self._may_be_empty(maximum, part.scope.guards)
        return known[key]

    def _may_be_empty(self, maximum: Function, guards: Sequence[Poly]) -> bool:
        """Whether a maximum is not known to be over at least one value where ``guards`` hold."""
        for way in self.steps.options(("over something", "over nothing")):
            if way == "over nothing":
                break
            mark = self._mark()
            try:
                terms = [Term(Fraction(1), a.binders, a.guards) for a in maximum.args]
                has_value = any_of(solve(term, (), self._name) for term in terms)
                is_read = smt.conjunction(smt.at_least(guard, 0) for guard in guards)
                self._discharge(smt.disjunction((smt.negation(is_read), has_value)), "a maximum")
            except Unproved:
                self._undo(mark)
                continue
            return False
        return True

    def _is_natural(self, symbol: str) -> bool:
        """Whether a symbol is known to be at least 0."""
        value = Poly.of(symbol)
        return symbol.startswith("|") or value in self._sizes or value in self.naturals

    def _is_index(self, value: Poly, size: Poly) -> bool:
        return value.symbol is not None and self._range_of(value.symbol) == size

    def _range_of(self, name: str) -> Poly | None:
        """The size of an index's or hole's range, if known. The holes of a template hide those of
        the templates around it."""
        return self._holes[name] if name in self._holes else self.ranges.get(name)

    def _divides_a_size(self, symbol: str | None) -> bool:
        """Whether a symbol of at least 0 divides a size. Then it is at least 1, as the size is."""
        if symbol is None or not self._is_natural(symbol):
            return False
        products = (size.terms[0][0] for size in self._sizes if len(size.terms) == 1)
        return any(symbol in product for product in products)

    def _is_size(self, value: Poly) -> bool:
        """Whether a value is known to be at least 1."""
        if value in self._sizes or self._divides_a_size(value.symbol):
            return True
        return bool(value.terms) and all(
            c > 0 and all(s.startswith("|") or Poly.of(s) in self._sizes for s in monomial)
            for monomial, c in value.terms
        )

    def _equal(self, left: NormalForm, right: NormalForm, free: frozenset[str]) -> None:
        for heads, (lefts, rights) in self._grouped(left, right, free).items():
            self._try_orders(lefts, rights, self._same_totals, " * ".join(map(str, heads)))

    def _grouped(
        self, left: Sequence[Term], right: Sequence[Term], free: frozenset[str]
    ) -> dict[tuple[Head, ...], tuple[list[TermReadings], list[TermReadings]]]:
        """The terms of both sides, grouped by the heads of their factors."""
        groups: dict[tuple[Head, ...], tuple[list[TermReadings], list[TermReadings]]] = {}
        for side, terms in enumerate((left, right)):
            for term in case_split(terms, free):
                read = self._read(term, free)
                groups.setdefault(read.heads, ([], []))[side].append(read)
        return groups

    def _read(self, term: Term, free: frozenset[str]) -> TermReadings:
        bound = free | bound_in(term)
        readings = sorted(
            (self._reading(factor, bound) for factor in term.factors),
            key=lambda reading: reading.order,
        )
        return TermReadings(term, tuple(readings))

    def _reading(self, factor: Factor, bound: frozenset[str]) -> Reading:
        match factor:
            case Element(tensor, index):
                return Reading(Head("element", tensor), index)
            case Number(index):
                return Reading(Head("number"), (index,))
            case Symbol(name):
                return Reading(Head("symbol", name), ())
            case Function():
                return Reading(*self.templates.abstract(factor, bound))

    def _try_orders(
        self,
        lefts: list[TermReadings],
        rights: list[TermReadings],
        same: Callable[[Sequence[Case], Sequence[Case]], smt.Formula],
        what: str,
    ) -> None:
        """Compare the terms of both sides that have the same heads. Raises Unproved.

        The ways are: with the factors of each term in sorted order; with the sum over all orders of
        factors that read the same tensor; and "identical", where both sides have the same terms and
        need no condition. A product does not depend on the order of its factors, so the sums over
        all orders are equal exactly if the sides are.
        """
        ways = ("sorted", "symmetric") if (lefts or rights)[0].repeats else ("sorted",)
        last = Unproved(what)
        for way in self.steps.options((*ways, "identical")):
            orders = as_sorted if way == "sorted" else all_orders
            mark = self._mark()
            try:
                if way == "identical":
                    if keys_of(lefts) != keys_of(rights):
                        break
                    return
                left, right = (
                    [self._case(read.term, order) for read in side for order in orders(read)]
                    for side in (lefts, rights)
                )
                self._discharge(same(left, right), what)
            except Unproved as error:
                last = error
                self._undo(mark)
            else:
                return
        raise last

    def _case(self, term: Term, readings: Sequence[Reading]) -> Case:
        return solve(term, [c for r in readings for c in r.coordinates], self._name)

    def _name(self, division: Division) -> Division:
        """The division with names of quotient and rest that depend on its index and size only."""
        key = (division.index, division.size)
        if key not in self._divisions:
            number = len(self._divisions)
            names = Variable(f"%quotient {number}"), Variable(f"%rest {number}")
            self._divisions[key] = Division(*names, *key)
        return self._divisions[key]

    def _same_totals(self, left: Sequence[Case], right: Sequence[Case]) -> smt.Formula:
        """The claim that both sides give every choice of coordinates the same coefficient."""
        scale = lcm(*(case.coefficient.denominator for case in (*left, *right)))
        return smt.same(
            *(smt.total(c.weight(scale, self._sizes) for c in side) for side in (left, right))
        )

    def _same_values(self, left: Sequence[Case], right: Sequence[Case]) -> smt.Formula:
        """The claim that both sides are taken over the same coordinates."""
        return smt.same(any_of(left), any_of(right))

    def _discharge(self, claim: smt.Formula, what: str) -> None:
        """Show that the claim holds under the assumptions. Raises Unproved."""
        symbols = set(claim.symbols)
        facts: list[smt.Formula] = []
        for division in reversed(self._divisions.values()):
            if division.quotient in symbols:
                rest = division.index - division.size * Poly.of(division.quotient)
                facts.append(smt.within(rest, division.size))
                symbols |= rest.symbols
        # A summed index has been solved for, or has its range in the claim. So the indices of
        # ``ranges`` that are left here are the free ones.
        for name in sorted(symbols):
            if (size := self._range_of(name)) is not None:
                facts.append(smt.within(Poly.of(name), size))
        text = smt.script([*self._known, *facts, smt.negation(claim)])
        if (result := self.judge(text)) != "unsat":
            raise Unproved(f"{what or 'constants'}: z3 says {result}", text)
        self.obligations.append(text)

    def _same_function(self, left: Function, right: Function, holes: Ranges) -> bool:
        """Whether two functions are proved to have equal arguments for all values of their
        holes, whose ranges are ``holes``."""
        if left.name != right.name:
            return False
        mark, outer_holes = self._mark(), self._holes
        self._holes = holes
        names = frozenset(holes)
        try:
            if left.name == "max":
                self._same_maxima(left, right, names)
            elif len(left.args) != len(right.args):
                return False
            else:
                for a, b in zip(left.args, right.args, strict=True):
                    self._equal(a.form, b.form, names)
        except Unproved:
            self._undo(mark)
            return False
        finally:
            self._holes = outer_holes
        return True

    def _same_maxima(self, left: Function, right: Function, holes: frozenset[str]) -> None:
        """Prove that two maxima are over the same set of values. Raises Unproved."""
        groups = self._grouped(_values(left), _values(right), holes)
        for heads, (lefts, rights) in groups.items():
            self._try_orders(lefts, rights, self._same_values, f"max of {heads[0]}")


def _distinct(parts: Iterable[UndefinedPart]) -> dict[Key, UndefinedPart]:
    return {key_of_term(part.term(along=False)): part for part in parts}


def _listed(domain: Domain, factors: Iterable[Undefined]) -> Iterator[UndefinedPart]:
    """The parts that may be undefined, and the rests of the factors around them. Both sides have to
    agree in all of them."""
    for factor in factors:
        yield from factor.parts
        yield from domain.around(factor)


def _values(function: Function) -> list[Term]:
    """The arguments of a maximum, each as the one factor of a term."""
    return [Term(Fraction(1), a.binders, a.guards, (as_value(a.form),)) for a in function.args]
