"""Functions of both halves of a concat over a dimension of size 1, as in FlexFlow."""

from __future__ import annotations

from support.cases import each

from substitutions.importers.operators import RuleSystem
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

JOIN = "CONCAT({}, {}; AXIS=0, NUMDIM=3)"
SUM = "REDUCE({}; PARALLEL_DIM=0, PARALLEL_DEGREE=2)"
MOVE = "{}({}; PARALLEL_DIM=0, PARALLEL_DEGREE=2)"
COPIES = "REPLICATE({}; PARALLEL_DIM=1, PARALLEL_DEGREE=2)"
SPLIT = "SPLIT(t1; AXIS=0, NUM_OUTPUTS=2)"
BOTH = "RELU(-1) RELU(-2) EW_ADD(t0, t1)"

CASES = [
    (BOTH, f"{JOIN.format(-1, -2)} RELU(t0) {SUM.format('t1')}", Verdict.PROVED),
    (
        "RELU(-1) EW_ADD(-1, t0)",
        f"RELU(-1) {JOIN.format(-1, 't0')} {SUM.format('t1')}",
        Verdict.PROVED,
    ),
    (
        f"{MOVE.format('REPLICATE', -1)} RELU(t0)",
        f"{JOIN.format(-1, -1)} RELU(t0) {MOVE.format('PARTITION', 't1')}",
        Verdict.PROVED,
    ),
    (BOTH, f"{JOIN.format(-1, -2)} {SUM.format('t0')} RELU(t1)", Verdict.REFUTED),
    (
        "EW_ADD(-1, -2) LINEAR(t0, -4; ACTI=0) RELU(t1)",
        f"{JOIN.format(-1, -2)} {SUM.format('t0')} LINEAR(t1, -4; ACTI=2)",
        Verdict.PROVED,
    ),
    (
        "EW_ADD(-1, -2) LINEAR(-4, t0; ACTI=2)",
        f"{JOIN.format(-1, -2)} {SUM.format('t0')} LINEAR(-4, t1; ACTI=0) RELU(t2)",
        Verdict.PROVED,
    ),
    (
        "EW_ADD(-1, -2) RELU(t0) LINEAR(t1, -4; ACTI=0) RELU(t2)",
        f"{JOIN.format(-2, -1)} {SUM.format('t0')} RELU(t1) LINEAR(t2, -4; ACTI=2)",
        Verdict.PROVED,
    ),
    (
        "EW_ADD(-1, -2) EW_MUL(t0, t0) RELU(t1)",
        f"{JOIN.format(-1, -2)} {SUM.format('t0')} EW_MUL(t1, t1) RELU(t2)",
        Verdict.PROVED,
    ),
    (
        "LINEAR(-1, -4; ACTI=2) LINEAR(-2, -4; ACTI=2) EW_ADD(t0, t1) RELU(t2)",
        (
            "LINEAR(-1, -4; ACTI=2) LINEAR(-2, -4; ACTI=2) "
            f"{JOIN.format('t0', 't1')} {SUM.format('t2')} RELU(t3)"
        ),
        Verdict.PROVED,
    ),
    (
        "EW_ADD(-1, -2) EW_ADD(t0, -3) LINEAR(t1, -4; ACTI=2)",
        (
            "CONCAT(-1, -2, -3; AXIS=0, NUMDIM=3) "
            "REDUCE(t0; PARALLEL_DIM=0, PARALLEL_DEGREE=3) LINEAR(t1, -4; ACTI=0) RELU(t2)"
        ),
        Verdict.PROVED,
    ),
    (
        "EW_ADD(-1, -2) LINEAR(t0, -4; ACTI=2)",
        f"{JOIN.format(-1, -1)} {SUM.format('t0')} LINEAR(t1, -4; ACTI=2)",
        Verdict.REFUTED,
    ),
    (
        "EW_ADD(-1, -2) LINEAR(t0, -4; ACTI=2)",
        f"{JOIN.format(-1, -2)} {SUM.format('t0')} LINEAR(t1, -4; ACTI=0)",
        Verdict.REFUTED,
    ),
    (
        f"RELU(-1) EW_ADD(t0, -2) {COPIES.format('t1')}",
        f"{JOIN.format(-1, -2)} RELU(t0) {SPLIT} EW_ADD(t2, -2) {COPIES.format('t3')}",
        Verdict.PROVED,
    ),
    (
        f"RELU(-1) EW_ADD(t0, -2) {COPIES.format('t1')}",
        f"{JOIN.format(-2, -1)} RELU(t0) {SPLIT} EW_ADD(t2, -2) {COPIES.format('t3')}",
        Verdict.REFUTED,
    ),
    (BOTH, f"{JOIN.format(-1, -1)} RELU(t0) {SUM.format('t1')}", Verdict.REFUTED),
]


@each(("left", "right", "verdict"), CASES)
def test_rules_of_flexflow_about_halves_have_their_verdict(rule, left, right, verdict):
    read = rule(left, right)
    assert read.source is RuleSystem.FLEXFLOW
    assert decide_foreign(read).verdict is verdict
