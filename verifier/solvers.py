"""The solvers that check a side condition, apart from each other: Z3 and cvc5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pcg.errors import InputError
from verifier.trusted import smt

RESOURCES = 5_000_000
"""cvc5's own count of its steps, at which it gives up on one condition: unlike a time, the same on
every machine, however busy."""


def ask_cvc5(script: str) -> smt.Answer:
    """Whether cvc5 can satisfy a script; what it cannot read or has no memory for is unknown.
    Raises InputError where it is not installed."""
    cvc5 = _cvc5()
    try:
        return _ask_cvc5(script, cvc5)
    except RuntimeError:  # of which cvc5 has further kinds
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
    """The names, each that of a solver that is there. Raises InputError."""
    for name in names:
        if name not in SOLVERS:
            raise InputError(
                "--solver", f"unknown solver {name!r}, expected {' or '.join(SOLVERS)}"
            )
        if name == "cvc5":
            _cvc5()
    return tuple(dict.fromkeys(names))
