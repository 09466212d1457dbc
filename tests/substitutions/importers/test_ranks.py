"""The rank of an input of a rule of TASO's follows from its use."""

from __future__ import annotations

import pytest

from substitutions.importers.ranks import ranks_of
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

CONV = "CONV2D({}, {}; KERNEL_H=3, KERNEL_W=3, STRIDE_H=1, STRIDE_W=1, PAD=0, ACTI=0)"
JOIN = "CONCAT({}, {}; AXIS={}, NUMDIM={})"

CASES = [
    ("RELU(-1)", "RELU(-1)", {-1: 2}),
    ("MATMUL(-7, -10; ACTI=0)", "MATMUL(-7, -10; ACTI=0)", {-7: 2, -10: 2}),
    (CONV.format(-1, -4), CONV.format(-1, -4), {-1: 4, -4: 4}),
    ("EW_ADD(-4, -5)", JOIN.format(-4, -5, 0, 4), {-4: 4, -5: 4}),
    ("EW_ADD(-1, -7)", "EW_ADD(-7, -1)", {-1: 4, -7: 4}),
    ("MUL(-1, -2)", "MUL(-1, -2)", {-1: 2, -2: 0}),
    (f"EW_ADD(-4, -5) {CONV.format(-7, 't0')}", "RELU(-7)", {-4: 4, -5: 4, -7: 4}),
]


@pytest.mark.parametrize(("left", "right", "expected"), CASES)
def test_ranks_of_inputs_follow_from_use(rule, left, right, expected):
    assert ranks_of(rule(left, right)).of == expected


def test_kernels_are_the_second_operands_of_convolutions(rule):
    ranks = ranks_of(rule(f"EW_ADD(-4, -5) {CONV.format(-1, 't0')}", "RELU(-1)"))
    assert ranks.kernels == {-4, -5}


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (
            f"EW_ADD(-4, -5) {CONV.format(-7, 't0')}",
            f"{CONV.format(-7, -4)} {CONV.format(-7, -5)} EW_ADD(t0, t1)",
            Verdict.PROVED,
        ),
        (
            "EW_ADD(-10, -11) MATMUL(-1, t0; ACTI=0)",
            "MATMUL(-1, -10; ACTI=0) MATMUL(-1, -11; ACTI=0) EW_ADD(t0, t1)",
            Verdict.PROVED,
        ),
        (f"{CONV.format(-1, -4)}", f"{CONV.format(-4, -1)}", Verdict.REFUTED),
    ],
)
def test_rules_whose_ranks_follow_from_use_are_decided(rule, left, right, verdict):
    assert decide_foreign(rule(left, right)).verdict is verdict
