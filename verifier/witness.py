"""Solves for concrete degrees that satisfy a typing, which shows that a rule is not vacuous.

Problem: find positive integers that satisfy equations between products of powers, and for which
given quotients are integers. Degrees of operators have to be at least 2.
Method: the equations decouple by prime: the exponents of each prime satisfy a linear system over
the natural numbers. Powers of 2 are tried first, then Z3 is asked.
Exact: solutions are solutions. Z3 may give up on a system that has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm

from pcg.language.poly import Poly
from verifier.trusted import smt
from verifier.trusted.sizes.degrees import Basis, Powers

PREFERRED = 2
"""The prime whose powers are tried first for free degrees."""
MAX_EXPONENT = 2
"""The largest exponent at first, so that solutions are small."""


def solve(
    equations: Sequence[Powers], whole: Sequence[Powers], symbols: Iterable[str]
) -> Mapping[str, int] | None:
    """Positive integers for all symbols, small ones preferred; None if none are found.

    ``equations`` have to be 1, ``whole`` have to be integers. Symbols without a dot are degrees of
    parallel operators and at least 2.
    """
    basis = Basis.of(equations)
    if basis.contradicts:
        return None
    names = frozenset(symbols) | {s for m in (*equations, *whole) for s, _ in m.powers}
    solution = _solve(basis, tuple(dict.fromkeys(map(basis.reduce, whole))), names)
    return dict(solution) if solution is not None else None


@lru_cache(maxsize=65536)
def _solve(
    basis: Basis, whole: tuple[Powers, ...], names: frozenset[str]
) -> tuple[tuple[str, int], ...] | None:
    """Find values of the symbols that the basis leaves free. The others follow from them."""
    solved = dict(basis.rows)
    unknown = sorted(s for s in names if not s.isdigit())
    free = [s for s in unknown if s not in solved]
    needed = [*whole, *(value for _, value in basis.rows)]
    tries = [dict.fromkeys(free, 1) | {s: PREFERRED for s in free if "." not in s}]
    tries[0] |= {s: PREFERRED for s in free if _divides(s, needed)}
    for values in tries:
        full = complete(values, solved, unknown)
        if full is not None and all(value_of(w, full) for w in whole):
            return tuple(sorted(full.items()))
    return _by_z3(basis, whole, unknown)


def _divides(symbol: str, needed: Iterable[Powers]) -> bool:
    quotients = (dict(m.powers) for m in needed if any(e < 0 for _, e in m.powers))
    return any(powers.get(symbol, 0) > 0 for powers in quotients)


def complete(
    values: Mapping[str, int], solved: Mapping[str, Powers], unknown: Sequence[str]
) -> dict[str, int] | None:
    """The values of all symbols, given those of the free ones. None if a value is no integer, or
    the degree of an operator is less than 2."""
    full = dict(values)
    for symbol in unknown:
        if symbol in solved:
            value = value_of(solved[symbol], values)
            if value is None or ("." not in symbol and value < 2):
                return None
            full[symbol] = value
    return full


def value_of(monomial: Powers, values: Mapping[str, int]) -> int | None:
    """The value of a monomial; None if it is no integer."""
    total = Fraction(1)
    for symbol, exponent in monomial.powers:
        base = int(symbol) if symbol.isdigit() else values[symbol]
        if exponent.denominator != 1:
            root = round(base ** (1 / exponent.denominator))
            if root**exponent.denominator != base:
                return None
            base = root
        total *= Fraction(base) ** exponent.numerator
    return total.numerator if total.denominator == 1 else None


def _by_z3(
    basis: Basis, whole: Sequence[Powers], unknown: Sequence[str]
) -> tuple[tuple[str, int], ...] | None:
    rows = [value.over(Powers.of(symbol)) for symbol, value in basis.rows]
    primes = {int(s) for m in (*rows, *whole) for s, _ in m.powers if s.isdigit()} | {PREFERRED}
    exponents = {p: {s: Poly.of(f"{s}@{p}") for s in unknown} for p in sorted(primes)}
    variables = [v for powers in exponents.values() for v in powers.values()]
    known = [smt.at_least(variable, 0) for variable in variables]
    for prime, powers in exponents.items():
        known += [smt.is_zero(_log(row, prime, powers)) for row in rows]
        known += [smt.at_least(_log(quotient, prime, powers), 0) for quotient in whole]
    for symbol in (s for s in unknown if "." not in s):
        powers_of = (powers[symbol] for powers in exponents.values())
        known.append(smt.at_least(sum(powers_of, Poly()), 1))
    small = [smt.at_least(MAX_EXPONENT - variable, 0) for variable in variables]
    solution = smt.model(smt.script([*known, *small])) or smt.model(smt.script(known))
    if solution is None:
        return None
    values = dict.fromkeys(unknown, 1)
    for prime, powers in exponents.items():
        for symbol in powers:
            values[symbol] *= prime ** solution.get(f"{symbol}@{prime}", 0)
    return tuple(sorted(values.items()))


def _log(monomial: Powers, prime: int, powers: Mapping[str, Poly]) -> Poly:
    """The exponent of ``prime`` in a monomial, times the common denominator of its powers."""
    scale = lcm(*(e.denominator for _, e in monomial.powers)) if monomial.powers else 1
    total = Poly()
    for symbol, exponent in monomial.powers:
        factor = int(exponent * scale)
        if symbol.isdigit():
            total += factor if int(symbol) == prime else 0
        else:
            total += powers[symbol] * factor
    return total
