"""Whether two sides have the same types wherever both have one.

A side may be typed in several ways, one for each choice of the operands that carry partials. Types
are products of degrees: in logarithms, what one typing asks beyond another is linear algebra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from pcg.graph import Graph, Value
from verifier.degrees import ONE, Monomial, Typing, entries, typings
from verifier.witness import solve


@dataclass(frozen=True)
class Residual:
    """What one typing asks beyond another: products that have to be 1, and to be whole."""

    equations: tuple[Monomial, ...]
    whole: tuple[Monomial, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The conditions, to read."""
        whole = (f"{quotient} is whole" for quotient in self.whole)
        return (*map(_equation_text, self.equations), *whole)


@dataclass(frozen=True)
class Agreement:
    """A typing of each side, by number, under which both have the same types; ``conditions``:
    what the right one asks beyond the left."""

    numbers: tuple[int, int]
    conditions: tuple[str, ...]


WHOLE = Agreement((0, 0), ())
"""Of tensors that are neither cut nor copied."""


def agreement_script(left: Typing, right: Typing) -> str:
    """That the left typing and the residual imply the right typing and equal types: an SMT-LIB 2
    script without a solution, over the logarithms of degrees. Those of primes are unknowns too."""
    known = (*left.equations, *residual(left, right).equations)
    claims = (*right.equations, *differences(left, right))
    symbols = sorted({s for m in (*known, *claims) for s, _ in m.powers})
    lines = [f"(declare-const |log {symbol}| Real)" for symbol in symbols]
    lines += [f"(assert {_is_one(m)})" for m in known]
    lines.append(f"(assert (not (and true {' '.join(map(_is_one, claims))})))")
    return "\n".join(lines)


def _is_one(monomial: Monomial) -> str:
    """That a product of powers is 1, in logarithms and without fractions."""
    scale = lcm(*(e.denominator for _, e in monomial.powers)) if monomial.powers else 1
    parts = [f"(* {_real(int(e * scale))} |log {s}|)" for s, e in monomial.powers]
    return f"(= (+ 0.0 0.0 {' '.join(parts)}) 0.0)"


def _real(value: int) -> str:
    return f"{value}.0" if value >= 0 else f"(- {-value}.0)"


def typed_sides(
    left: tuple[Value, ...], right: tuple[Value, ...]
) -> tuple[Mapping[int, Typing], Mapping[int, Typing]]:
    """The typings of both sides that some degrees satisfy, by number.

    Raises OperatorError or ValueError where a side has no type, and Undecided.
    """
    found = [
        {n: t for n, t in enumerate(typings(Graph(side).nodes, side)) if witness([t]) is not None}
        for side in (left, right)
    ]
    return found[0], found[1]


def agree(
    lefts: Mapping[int, Typing], rights: Mapping[int, Typing]
) -> tuple[Agreement, Mapping[str, int]] | None:
    """The typings that ask for least, with degrees that satisfy them; None if there are none."""
    options = [
        (residual(a, b).texts, residual(a, b), (i, j), (a, b))
        for i, a in lefts.items()
        for j, b in rights.items()
    ]
    options.sort(key=lambda o: (len(o[1].equations), len(o[1].whole), o[0], o[2]))
    for texts, _, numbers, (a, b) in options:
        degrees = witness([a, b], differences(a, b))
        if degrees is not None:
            return Agreement(numbers, texts), degrees
    return None


def differences(a: Typing, b: Typing) -> tuple[Monomial, ...]:
    pairs = zip(a.types, b.types, strict=True)
    return tuple(
        x.over(y)
        for left, right in pairs
        for x, y in zip(entries(left), entries(right), strict=True)
        if x != y
    )


def witness(found: Sequence[Typing], extra: Sequence[Monomial] = ()) -> Mapping[str, int] | None:
    equations = [e for typing in found for e in typing.equations] + list(extra)
    whole = [w for typing in found for w in typing.whole]
    return solve(equations, whole, frozenset[str]().union(*(t.symbols for t in found)))


def residual(a: Typing, b: Typing) -> Residual:
    """What the right typing asks beyond the left one."""
    basis = a.basis
    equations: list[Monomial] = []
    for equation in (*b.equations, *differences(a, b)):
        if not basis.implies(equation):
            equations.append(basis.reduce(equation))
            basis = basis.extended(equation)
    held = [basis.reduce(w) for w in a.whole]
    whole: list[Monomial] = []
    for quotient in dict.fromkeys(basis.reduce(w) for w in b.whole):
        # A product of whole numbers is whole.
        if not any(_is_whole(quotient.over(known)) for known in (ONE, *held)):
            whole.append(quotient)
            held.append(quotient)
    return Residual(tuple(equations), tuple(whole))


def _is_whole(quotient: Monomial) -> bool:
    return all(e > 0 and e.denominator == 1 for _, e in quotient.powers)


def _equation_text(equation: Monomial) -> str:
    """``equation`` is 1, with the divisors on the other side."""
    above = Monomial(tuple((s, e) for s, e in equation.powers if e > 0))
    below = Monomial(tuple((s, -e) for s, e in equation.powers if e < 0))
    return f"{above} = {below}" if above != ONE else f"{below} = 1"
