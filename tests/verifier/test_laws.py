"""Each law of scalar functions is proved, or cited; and each is put to use by a rule."""

from __future__ import annotations

import z3

from verifier.trusted.laws import LAWS


def test_each_law_is_proved_or_cited():
    for law in LAWS:
        assert bool(law.formula) != bool(law.source), law.name
        if not law.formula:
            continue
        solver = z3.Solver()
        solver.from_string(
            "(declare-const a Real)(declare-const b Real)(declare-const c Real)"
            f"(assert (not {law.formula}))"
        )
        assert solver.check() == z3.unsat, law.name


def test_a_wrong_law_is_not_proved():
    solver = z3.Solver()
    solver.from_string("(declare-const a Real)(assert (not (= (ite (>= a 0.0) a 0.0) a)))")
    assert solver.check() == z3.sat


def test_names_differ():
    assert len({law.name for law in LAWS}) == len(LAWS)
