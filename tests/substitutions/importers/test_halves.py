"""Functions of both halves of a concat over a dimension of size 1, as FlexFlow has them."""

from __future__ import annotations

import pytest

from substitutions.importers.operators import Source
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

JOIN = "CONCAT({}, {}; AXIS=0, NUMDIM=3)"
SUM = "REDUCE({}; PARALLEL_DIM=0, PARALLEL_DEGREE=2)"
MOVE = "{}({}; PARALLEL_DIM=0, PARALLEL_DEGREE=2)"
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
    (BOTH, f"{JOIN.format(-1, -1)} RELU(t0) {SUM.format('t1')}", Verdict.REFUTED),
]


@pytest.mark.parametrize(("left", "right", "verdict"), CASES)
def test_halves(rule, left, right, verdict):
    read = rule(left, right)
    assert read.source is Source.FLEXFLOW
    assert decide_foreign(read).verdict is verdict
