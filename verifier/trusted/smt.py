"""Writes side conditions as SMT-LIB 2 scripts, and asks Z3 about them.

A condition is text from the start. The text that Z3 reads is the text that a certificate hashes and
that other solvers read, byte for byte the same in every run. All numbers are integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import z3

from pcg.language.poly import Poly

Answer = Literal["sat", "unsat", "unknown"]
Judge = Callable[[str], Answer]
"""A solver: whether a script can be satisfied."""
RESOURCES = 4_000_000
"""The limit at which Z3 gives up, in its own count of steps. Unlike a time, such a limit gives the
same answer on every machine."""
CACHED = 65_536
_WORDS = frozenset(
    (
        *("true", "false", "not", "and", "or", "xor", "ite", "distinct", "implies", "let", "as"),
        *("forall", "exists", "_", "par", "div", "mod", "abs", "select", "store", "concat"),
        *("is_int", "to_int", "to_real", "sin", "cos", "tan", "bag", "tuple", "exp", "sqrt"),
    )
)
"""Words that Z3 or cvc5 reserves: a constant may not have such a name."""
_QUOTED = re.compile(r"[^\x00-\x1f\x7f-\x9f|\\]+")
"""The text of a quoted symbol: any characters but the closing bar, the backslash and control
characters."""


@dataclass(frozen=True)
class Formula:
    """A term or condition, and the symbols in it."""

    text: str
    symbols: frozenset[str] = frozenset()


def integer(value: Poly) -> Formula:
    """A size or index as a term."""
    parts = [_product(monomial, coefficient) for monomial, coefficient in value.terms]
    return Formula(_joined("+", parts, "0"), value.symbols)


def _product(monomial: tuple[str, ...], coefficient: int) -> str:
    number = str(coefficient) if coefficient >= 0 else f"(- {-coefficient})"
    factors = [] if coefficient == 1 and monomial else [number]
    return _joined("*", factors + [_symbol(s) for s in monomial], "1")


def _symbol(name: str) -> str:
    return quoted(symbol_name(name))


@lru_cache(maxsize=CACHED)
def quoted(name: str) -> str:
    """Return a symbol between bars. Raises ValueError for a name that is empty, or that contains a
    bar, a backslash or a control character."""
    if not _QUOTED.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no symbol")
    return f"|{name}|"


def symbol_name(name: str) -> str:
    """The name of a symbol in scripts.

    The size ``|k|`` and the attribute ``k`` get different names. Symbols that a proof introduces
    begin with ``%``, which no other name does. Reserved words get a prefix, since solvers reserve
    them between bars too.
    """
    if name.startswith("|"):
        return f"size {name[1:-1]}"
    return f"name {name}" if name in _WORDS else name


def _joined(operator: str, parts: list[str], empty: str) -> str:
    if len(parts) < 2:
        return parts[0] if parts else empty
    return f"({operator} {' '.join(parts)})"


def _apply(operator: str, parts: Iterable[Formula], empty: str) -> Formula:
    parts = list(parts)
    symbols = frozenset[str]().union(*(p.symbols for p in parts))
    return Formula(_joined(operator, [p.text for p in parts], empty), symbols)


def total(parts: Iterable[Formula]) -> Formula:
    return _apply("+", parts, "0")


def product(parts: Iterable[Formula]) -> Formula:
    return _apply("*", parts, "1")


def conjunction(parts: Iterable[Formula]) -> Formula:
    return _apply("and", parts, "true")


def disjunction(parts: Iterable[Formula]) -> Formula:
    return _apply("or", parts, "false")


def choice(condition: Formula, then: Formula, other: Formula) -> Formula:
    return _apply("ite", (condition, then, other), "")


def same(left: Formula, right: Formula) -> Formula:
    return _apply("=", (left, right), "")


def negation(condition: Formula) -> Formula:
    return Formula(f"(not {condition.text})", condition.symbols)


def at_least(value: Poly, bound: int) -> Formula:
    return Formula(f"(>= {integer(value).text} {bound})", value.symbols)


def is_zero(value: Poly) -> Formula:
    return Formula(f"(= {integer(value).text} 0)", value.symbols)


def within(value: Poly, size: Poly) -> Formula:
    """Whether ``0 <= value < size``."""
    return conjunction((at_least(value, 0), at_least(size - value, 1)))


def divides(number: int, value: Poly) -> Formula:
    return Formula(f"(= (mod {integer(value).text} {number}) 0)", value.symbols)


def declares(text: str, symbol: str) -> bool:
    """Whether a script declares a symbol."""
    return f"(declare-const {_symbol(symbol)} Int)" in text


def script(assertions: Iterable[Formula]) -> str:
    """An SMT-LIB 2 script that declares the symbols of the assertions and asserts each once."""
    assertions = list(dict.fromkeys(assertions))
    symbols = sorted(frozenset[str]().union(*(a.symbols for a in assertions)))
    lines = [f"(declare-const {_symbol(symbol)} Int)" for symbol in symbols]
    return "\n".join([*lines, *(f"(assert {a.text})" for a in assertions)])


@lru_cache(maxsize=CACHED)
def check(text: str) -> Answer:
    """Ask Z3 whether a script can be satisfied. The answer is unknown if Z3 cannot read the script,
    runs out of memory or reaches its limit of steps."""
    try:
        result = _solver(text).check()
    except z3.Z3Exception:
        return "unknown"
    return "sat" if result == z3.sat else "unsat" if result == z3.unsat else "unknown"


def model(text: str, resources: int = RESOURCES) -> Mapping[str, int] | None:
    """Values that satisfy a script; None if Z3 finds none within ``resources`` steps."""
    solver = _solver(text, resources)
    if solver.check() != z3.sat:
        return None
    values = solver.model()
    return {symbol.name(): int(str(values[symbol])) for symbol in values.decls()}


def _solver(text: str, resources: int = RESOURCES) -> z3.Solver:
    solver = z3.Solver()
    solver.set("rlimit", resources)
    solver.from_string(text)
    return solver
