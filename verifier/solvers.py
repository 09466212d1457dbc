"""The solvers that check side conditions, independently of each other: Z3 and cvc5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pcg.errors import InputError
from verifier.trusted import smt

RESOURCES = 5_000_000
"""The limit at which cvc5 gives up on a condition, in its own count of steps. Unlike a time, such a
limit gives the same answer on every machine, however busy."""


def ask_cvc5(script: str) -> smt.Answer:
    """Ask cvc5 whether a script can be satisfied. The answer is unknown if cvc5 cannot read the
    script, runs out of memory or reaches its limit of steps. Raises InputError if cvc5 is not
    installed."""
    cvc5 = _cvc5()
    try:
        return _ask_cvc5(script, cvc5)
    except RuntimeError:  # The base class of cvc5's exceptions.
        return "unknown"


def _ask_cvc5(script: str, cvc5: Any) -> smt.Answer:
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("rlimit-per", str(RESOURCES))
    parser = cvc5.InputParser(solver)
    text = f"(set-logic ALL)\n{script}"
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "condition")
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, parser.getSymbolManager())
    result = solver.checkSat()
    return "sat" if result.isSat() else "unsat" if result.isUnsat() else "unknown"


def _cvc5() -> Any:
    try:
        return import_module("cvc5")
    except ImportError:
        problem = "is not installed; 'pip install cvc5', or leave it out with --solver z3"
        raise InputError("cvc5", problem) from None


SOLVERS: Mapping[str, smt.Judge] = {"z3": smt.check, "cvc5": ask_cvc5}


def require(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without repetitions. Raises InputError for an unknown solver, or one that is
    not installed."""
    for name in names:
        if name not in SOLVERS:
            raise InputError(
                "--solver", f"unknown solver {name!r}, expected {' or '.join(SOLVERS)}"
            )
        if name == "cvc5":
            _cvc5()
    return tuple(dict.fromkeys(names))
