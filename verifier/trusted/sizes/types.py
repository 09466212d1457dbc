"""Compares two typings: the conditions of one beyond those of the other, and equality of types.

Types are products of degrees, so in logarithms all of this is linear algebra.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from verifier.trusted import smt
from verifier.trusted.sizes.degrees import ONE, Powers, Typing, entries


@dataclass(frozen=True)
class Residual:
    """The conditions of one typing beyond those of another. ``equations`` have to be 1, ``whole``
    have to be whole numbers."""

    equations: tuple[Powers, ...]
    whole: tuple[Powers, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The conditions as text."""
        whole = (f"{quotient} is whole" for quotient in self.whole)
        return (*map(_equation_text, self.equations), *whole)


def differences(a: Typing, b: Typing) -> tuple[Powers, ...]:
    """The quotients that have to be 1 for the types to be the same."""
    pairs = zip(a.types, b.types, strict=True)
    return tuple(
        x.over(y)
        for left, right in pairs
        for x, y in zip(entries(left), entries(right), strict=True)
        if x != y
    )


def residual(a: Typing, b: Typing) -> Residual:
    """The conditions of ``b``, and of equal types, that do not follow from those of ``a``."""
    basis = a.basis
    equations: list[Powers] = []
    for equation in (*b.equations, *differences(a, b)):
        if not basis.implies(equation):
            equations.append(basis.reduce(equation))
            basis = basis.extended(equation)
    integral = [basis.reduce(w) for w in a.whole]
    whole: list[Powers] = []
    for quotient in dict.fromkeys(basis.reduce(w) for w in b.whole):
        # A product of whole numbers is whole.
        if not any(_is_whole(quotient.over(known)) for known in (ONE, *integral)):
            whole.append(quotient)
            integral.append(quotient)
    return Residual(tuple(equations), tuple(whole))


def _is_whole(quotient: Powers) -> bool:
    return all(e > 0 and e.denominator == 1 for _, e in quotient.powers)


def _equation_text(equation: Powers) -> str:
    """The statement that ``equation`` is 1, written without division."""
    above = Powers(tuple((s, e) for s, e in equation.powers if e > 0))
    below = Powers(tuple((s, -e) for s, e in equation.powers if e < 0))
    return f"{above} = {below}" if above != ONE else f"{below} = 1"


def agreement_script(left: Typing, right: Typing) -> str:
    """The SMT-LIB 2 script that is unsatisfiable if the left typing and the residual imply the
    right typing and equal types. Its unknowns are the logarithms of degrees and of primes."""
    known = (*left.equations, *residual(left, right).equations)
    claims = (*right.equations, *differences(left, right))
    symbols = sorted({s for m in (*known, *claims) for s, _ in m.powers})
    lines = [f"(declare-const {_log(symbol)} Real)" for symbol in symbols]
    lines += [f"(assert {_is_one(m)})" for m in known]
    lines.append(f"(assert (not (and true {' '.join(map(_is_one, claims))})))")
    return "\n".join(lines)


def _is_one(monomial: Powers) -> str:
    """The formula that a product of powers is 1, in logarithms and without fractions."""
    scale = lcm(*(e.denominator for _, e in monomial.powers)) if monomial.powers else 1
    parts = [f"(* {_real(int(e * scale))} {_log(s)})" for s, e in monomial.powers]
    return f"(= (+ 0.0 0.0 {' '.join(parts)}) 0.0)"


def _log(symbol: str) -> str:
    return smt.quoted(f"log {symbol}")


def _real(value: int) -> str:
    return f"{value}.0" if value >= 0 else f"(- {-value}.0)"
