"""TASO's rules, against torch: the meaning of each operator is written here from the
description."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from support.cases import each
from torch.nn import functional

from pcg.graph.graph import Graph
from pcg.readings.evaluate import evaluate_whole
from pcg.readings.ring import Reals
from substitutions.importers import taso, tensors, verdict
from substitutions.importers.imported import IllTypedError, UnsupportedError
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

ACTIVATIONS = {0: lambda x: x, 1: torch.sigmoid, 2: torch.relu, 3: torch.tanh}


def padded(x, kernel, p, outside=0.0):
    """Images with the padding of a convolution or pool around them."""
    widths = []
    for size, extent, stride in zip(
        x.shape[2:], kernel, (p["PM_STRIDE_H"], p["PM_STRIDE_W"]), strict=True
    ):
        count = (size + stride - 1) // stride
        total = max((count - 1) * stride + extent - size, 0) if p["PM_PAD"] == 0 else 0
        widths = [total // 2, total - total // 2, *widths]
    return functional.pad(x, widths, value=outside)


def conv2d(p, x, k):
    strides = p["PM_STRIDE_H"], p["PM_STRIDE_W"]
    assert tuple(k.shape[2:]) == (
        p.get("PM_KERNEL_H", k.shape[2]),
        p.get("PM_KERNEL_W", k.shape[3]),
    )
    x = padded(x, k.shape[2:], p)
    result = functional.conv2d(x, k, stride=strides, groups=x.shape[1] // k.shape[1])
    return ACTIVATIONS[p["PM_ACTI"]](result)


def pool(kind, p, x):
    kernel = p["PM_KERNEL_H"], p["PM_KERNEL_W"]
    strides = p["PM_STRIDE_H"], p["PM_STRIDE_W"]
    if kind == "MAX":
        return functional.max_pool2d(padded(x, kernel, p, float("-inf")), kernel, strides)
    return functional.avg_pool2d(padded(x, kernel, p), kernel, strides)


def enlarge(p, k):
    widths = []
    for size, new in zip(k.shape[2:], (p["PM_KERNEL_H"], p["PM_KERNEL_W"]), strict=True):
        before = (new - size) // 2
        widths = [before, new - size - before, *widths]
    return functional.pad(k, widths)


def order_of(code, rank):
    return [code // rank ** (rank - 1 - i) % rank for i in range(rank)]


MEANINGS = {
    "MATMUL": lambda p, x, w: ACTIVATIONS[p["PM_ACTI"]](x @ w),
    "EW_ADD": lambda p, x, y: x + y,
    "EW_MUL": lambda p, x, y: x * y,
    "MUL": lambda p, x, s: x * s,
    "RELU": lambda p, x: torch.relu(x),
    "SIGMOID": lambda p, x: torch.sigmoid(x),
    "TANH": lambda p, x: torch.tanh(x),
    "CONCAT": lambda p, *x: torch.cat(x, p["PM_AXIS"]),
    "TRANSPOSE": lambda p, x: x.permute(order_of(p["PM_PERM"], x.dim())),
    "CONV2D": conv2d,
    "POOL2D_MAX": lambda p, x: pool("MAX", p, x),
    "POOL2D_AVG": lambda p, x: pool("AVG", p, x),
    "ENLARGE": enlarge,
}


def simulate(side, inputs, constants, pieces):
    """The mapped tensors of a side. ``constants``: by operator number. ``pieces``: the sizes of the
    outputs of a split, because the simulation does not look for concats."""
    made = {}
    for number in side.order:
        operator = side.operators[number]
        given = [inputs[r.op] if r.op < 0 else made[r.op][r.port] for r in operator.inputs]
        kind, p = operator.name[3:], operator.parameters
        if kind == "SPLIT":
            made[number] = torch.split(given[0], pieces, p["PM_AXIS"])
        else:
            made[number] = (
                (MEANINGS[kind](p, *given),) if kind in MEANINGS else (constants[number],)
            )
    return [made[r.op][r.port] for r in side.outputs]


SIZES = {
    **dict.fromkeys((-1, -2, -3), (4, 3)),
    **dict.fromkeys((-4, -5), (3, 3)),
    -6: (3, 5),
    **dict.fromkeys((-7, -8, -9), (2, 4, 7, 6)),
    **dict.fromkeys((-10, -11, -12), (4, 4, 3, 3)),
    -13: (4, 4, 1, 3),
    -14: (6, 2, 2, 3),
    -15: (4, 1, 4, 2),
    -20: (),
}
"""Sizes of inputs, if a test gives no others."""


def solved(equal, known):
    """Values of all symbols at which the equations hold. None if there are none."""
    values = dict(known)
    pending = list(equal)
    while pending:
        left = []
        for a, b in pending:
            unknown = sorted((a.symbols | b.symbols) - values.keys())
            if not unknown:
                if a.evaluate(values) != b.evaluate(values):
                    return None
            elif len(unknown) > 1:
                left.append((a, b))
            else:
                at = [(a - b).evaluate({**values, unknown[0]: i}) for i in (0, 1)]
                slope = at[1] - at[0]
                if slope == 0 or -at[0] % slope or -at[0] // slope < 1:
                    return None
                values[unknown[0]] = -at[0] // slope
        if len(left) == len(pending):  # shares of a product: any will do
            values[min((left[0][0].symbols | left[0][1].symbols) - values.keys())] = 1
        pending = left
    return values


def check(rule, side, imported, *, sizes=SIZES, constants=None, pieces=None):
    """Check that one side has the value that the simulation computes, in the one case that fits the
    sizes."""
    rng = np.random.default_rng(0)
    inputs = {op: torch.from_numpy(rng.standard_normal(shape)) for op, shape in sizes.items()}
    expected = simulate(getattr(rule, side), inputs, constants or {}, pieces)
    known = {
        f"|{tensors.input_name(op)}.{dim}|": size
        for op, shape in sizes.items()
        for dim, size in enumerate(shape)
    }
    fitting = [(case, solved(case.equal, known)) for case in imported.cases]
    ((case, values),) = [(case, values) for case, values in fitting if values is not None]
    leaves = {tensors.input_name(op): x.numpy() for op, x in inputs.items()}
    actual = evaluate_whole(Graph(getattr(case, side)), leaves, Reals(), values)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)


CONV = "CONV2D({}, {}; KERNEL_H=3, KERNEL_W=3, STRIDE_H=1, STRIDE_W=1, PAD=0, ACTI={})"
WIDE = "CONV2D({}, {}; KERNEL_H=1, KERNEL_W=3, STRIDE_H=1, STRIDE_W=1, PAD=0, ACTI={})"
POOL = "POOL2D_{}({}; KERNEL_H=3, KERNEL_W=3, STRIDE_H=1, STRIDE_W=1, PAD=0, ACTI=0)"
CHANNELS = "CONCAT({}, {}; AXIS=1, NUMDIM=4)"
OUTPUTS = "CONCAT({}, {}; AXIS=0, NUMDIM=4)"
COLUMNS = "CONCAT({}, {}; AXIS=1, NUMDIM=2)"
TURN = "TRANSPOSE({}; NUMDIM=2, PERM=2, OUTSHUFFLE=0)"


PROVED = [
    # (left, right, conditions)
    (
        "MATMUL(-1, -4; ACTI=0) MATMUL(t0, -5; ACTI=2)",
        "MATMUL(-4, -5; ACTI=0) MATMUL(-1, t0; ACTI=2)",
        (),
    ),
    ("MATMUL(-1, -4; ACTI=1)", "MATMUL(-1, -4; ACTI=0) SIGMOID(t0)", ()),
    ("MATMUL(-1, -4; ACTI=3)", "MATMUL(-1, -4; ACTI=0) TANH(t0)", ()),
    (
        f"MATMUL(-1, -4; ACTI=0) {TURN.format('t0')}",
        f"{TURN.format(-1)} {TURN.format(-4)} MATMUL(t1, t0; ACTI=0)",
        (),
    ),
    ("MATMUL(-1, -4; ACTI=0) MUL(t0, -20)", "MUL(-1, -20) MATMUL(t0, -4; ACTI=0)", ()),
    (f"{CONV.format(-7, -10, 0)} MUL(t0, -20)", f"MUL(-10, -20) {CONV.format(-7, 't0', 0)}", ()),
    (f"{CONV.format(-7, -10, 0)} RELU(t0)", CONV.format(-7, -10, 2), ()),
    (
        f"{POOL.format('MAX', -7)} {POOL.format('MAX', -8)} {CHANNELS.format('t0', 't1')}",
        f"{CHANNELS.format(-7, -8)} {POOL.format('MAX', 't0')}",
        (),
    ),
    (
        WIDE.format(-7, -13, 0),
        f"ENLARGE(-13; KERNEL_H=3, KERNEL_W=3) {CONV.format(-7, 't0', 0)}",
        (),
    ),
    (
        f"{CONV.format(-7, -10, 0)} {CONV.format(-7, -11, 0)} EW_ADD(t0, t1)",
        f"EW_ADD(-10, -11) {CONV.format(-7, 't0', 0)}",
        ("|k1.1| = |k2.1|",),
    ),
    (
        f"{CONV.format(-7, -10, 0)} {CONV.format(-8, -11, 0)} EW_ADD(t0, t1)",
        f"{CHANNELS.format(-7, -8)} {CHANNELS.format(-10, -11)} {CONV.format('t0', 't1', 0)}",
        ("|k1.1| = |i1.1|", "|k2.1| = |i2.1|"),
    ),
    (
        f"{CONV.format(-7, -10, 0)} {CONV.format(-8, -11, 0)} {CHANNELS.format('t0', 't1')}",
        f"{CHANNELS.format(-7, -8)} {OUTPUTS.format(-10, -11)} {CONV.format('t0', 't1', 0)}",
        ("|k2.0| = |k1.0|", "|k1.1| = |i1.1|", "|k2.1| = |i2.1|", "|k1.1| = |k2.1|"),
    ),
]
"""The last rule is false without groups too: the joined convolution has two, of equal size."""

ILL_TYPED = [
    (
        f"{CONV.format(-7, -10, 0)} MATMUL(-1, t0; ACTI=0)",
        "RELU(-1)",
        "left: operator 1 (OP_MATMUL): an input of rank 4",
    ),
    (
        "MATMUL(-1, -4; ACTI=0) MUL(-2, t0)",
        "RELU(-2)",
        "left: operator 1 (OP_MUL): the second input has rank 2",
    ),
    ("SPLIT(-1; AXIS=1)", "RELU(-1)", "left: operator 0 (OP_SPLIT): no concat"),
    ("TRANSPOSE(-1; PERM=3)", "RELU(-1)", "left: operator 0 (OP_TRANSPOSE): PM_PERM 3"),
    (
        f"MATMUL(-1, -4; ACTI=0) {CONV.format(-7, -10, 0)} EW_ADD(t0, t1)",
        "RELU(-2)",
        "left: operator 2 (OP_EW_ADD): ranks 2 and 4",
    ),
    ("RELU(-1)", "EW_ADD(-1, -2)", "input -2 stands on the right side only"),
    (
        "RELU(-7)",
        "TRANSPOSE(-7; NUMDIM=4, PERM=2)",
        "right: operator 0 (OP_TRANSPOSE): PM_PERM 2 is no order",
    ),
    (
        f"{WIDE.format(-7, -10, 0)}",
        f"ENLARGE(-10; KERNEL_H=3, KERNEL_W=2) {CONV.format(-7, 't0', 0)}",
        "right: operator 0 (OP_ENLARGE): a kernel of size 3 cannot be made 2",
    ),
]


@pytest.mark.parametrize(("left", "right", "conditions"), PROVED)
def test_true_rules(rule, left, right, conditions):
    decision = decide_foreign(rule(left, right))
    assert (decision.verdict, decision.reason) == (Verdict.PROVED, "")
    assert decision.conditions == conditions


@each(("left", "right"), [(left, right) for left, right, _ in PROVED])
def test_operators_of_taso_compute_as_described(rule, left, right):
    read = rule(left, right)
    try:
        imported = taso.import_rule(read)
    except UnsupportedError:
        imported = taso.import_rule(read, ungrouped=("left",), same_outputs=True)
    sizes = {op: SIZES[op] for op in read.left.inputs}
    for side in ("left", "right"):
        check(read, side, imported, sizes=sizes)


@pytest.mark.parametrize(("left", "right", "reason"), ILL_TYPED)
def test_rules_without_meaning(rule, left, right, reason):
    decision = decide_foreign(rule(left, right))
    assert decision.verdict is Verdict.ILL_TYPED
    assert reason in decision.reason


def test_false_rules(rule):
    twice = f"{POOL.format('AVG', -7)} {POOL.format('AVG', 't0')}"
    larger = POOL.format("AVG", -7).replace("=3", "=5")
    decision = decide_foreign(rule(twice, larger))
    assert decision.verdict is Verdict.REFUTED
    assert decision.counterexample is not None


def test_a_counterexample_to_the_general_rule_is_one_to_the_special(rule, monkeypatch):
    decided = []
    decide = verdict.decide_imported
    monkeypatch.setattr(verdict, "decide_imported", lambda i: decided.append(i) or decide(i))
    decision = decide_foreign(rule(CONV.format(-7, -10, 0), CONV.format(-7, -10, 2)))
    assert decision.verdict is Verdict.REFUTED
    assert len(decided) == 1


def test_splits_undo_the_last_concat(rule):
    left = f"{COLUMNS.format(-4, -6)} {COLUMNS.format('t0', -5)} {TURN.format('t1')}"
    left += " RELU(t2) SPLIT(t3; AXIS=0) SPLIT(t4.0; AXIS=0) -> t5.0, t5.1, t4.1"
    right = " ".join(f"{TURN.format(w)} RELU(t{2 * i})" for i, w in enumerate((-4, -6, -5)))
    decision = decide_foreign(rule(left, f"{right} -> t1, t3, t5"))
    assert (decision.verdict, decision.conditions) == (Verdict.PROVED, ())


def test_a_split_of_what_was_joined_elsewhere(rule):
    joined = f"{COLUMNS.format(-4, -5)} {COLUMNS.format(-5, -4)} EW_ADD(t0, t1)"
    read = rule(f"{joined} SPLIT(t2; AXIS=1)", "RELU(-4)")
    with pytest.raises(IllTypedError, match="no concat along this dimension"):
        taso.import_rule(read)


def test_pieces_of_different_sizes(rule):
    left = f"{COLUMNS.format(-4, -6)} MATMUL(-1, t0; ACTI=2) SPLIT(t1; AXIS=1) -> t2.0, t2.1"
    right = "MATMUL(-1, -4; ACTI=2) MATMUL(-1, -6; ACTI=2) -> t0, t1"
    read = rule(left, right)
    sizes = {op: SIZES[op] for op in (-1, -4, -6)}
    check(read, "left", taso.import_rule(read), sizes=sizes, pieces=[3, 5])


def test_constants_have_the_sizes_of_their_use(rule):
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones((4, 3), dtype=torch.float64)
    left = "CONSTANT_IMM() MATMUL(-1, t0; ACTI=0) CONSTANT_ONE() EW_MUL(t2, t1) EW_ADD(t3, -2)"
    read = rule(left, "EW_ADD(-1, -2)")
    sizes = {-1: (4, 3), -2: (4, 3)}
    check(read, "left", taso.import_rule(read), sizes=sizes, constants={0: eye, 2: ones})
    decision = decide_foreign(read)
    assert (decision.verdict, decision.conditions) == (Verdict.PROVED, ())


def test_the_identity_kernel_changes_nothing(rule):
    left = f"CONSTANT_ICONV(; KERNEL_H=3, KERNEL_W=3) {CONV.format(-7, 't0', 0)}"
    read = rule(left, "RELU(-7)")
    kernel = torch.zeros((4, 4, 3, 3), dtype=torch.float64)
    kernel[:, :, 1, 1] = torch.eye(4)
    check(read, "left", taso.import_rule(read), sizes={-7: SIZES[-7]}, constants={0: kernel})


def test_an_average_is_a_convolution(rule):
    conv = f"CONSTANT_POOL(; KERNEL_H=3, KERNEL_W=3) {CONV.format(-7, 't0', 0)}"
    read = rule(POOL.format("AVG", -7), conv)
    kernel = torch.full((4, 1, 3, 3), 1 / 9, dtype=torch.float64)
    imported = taso.import_rule(read)
    check(read, "left", imported, sizes={-7: SIZES[-7]})
    check(read, "right", imported, sizes={-7: SIZES[-7]}, constants={0: kernel})
    decision = decide_foreign(read)
    assert (decision.verdict, decision.conditions) == (Verdict.PROVED, ())


@each("seed", range(60))
def test_windows_of_all_sizes(rule, seed):
    """Kernels of unstated sizes, with strides and paddings of all kinds."""
    random = Random(seed)
    stride_h, stride_w = random.choices((1, 1, 2, 3), k=2)
    kind = random.choice(("CONV2D", "POOL2D_MAX", "POOL2D_AVG"))
    kernel = random.randint(1, 5), random.randint(1, 5)
    shared = f"STRIDE_H={stride_h}, STRIDE_W={stride_w}, PAD={random.choice((0, 0, 1))}, ACTI=0"
    stated = f"KERNEL_H={kernel[0]}, KERNEL_W={kernel[1]}, "
    if kind == "CONV2D":
        text = f"CONV2D(-7, -10; {random.choice((stated, ''))}{shared})"
    else:
        text = f"{kind}(-7; {stated}{shared})"
    read = rule(text, text)
    image = (2, 4, kernel[0] + random.randint(0, 5), kernel[1] + random.randint(0, 5))
    sizes = {-7: image, -10: random.choice(((4, 2, *kernel), (3, 4, *kernel), (8, 1, *kernel)))}
    sizes = {op: shape for op, shape in sizes.items() if op in read.left.inputs}
    check(read, "left", taso.import_rule(read), sizes=sizes)


def test_a_kernel_of_any_size_is_enlarged_case_by_case(rule):
    text = f"ENLARGE(-15; KERNEL_H=5, KERNEL_W=3) {CONV.replace('H=3', 'H=5').format(-7, 't0', 0)}"
    read = rule(text, text)
    imported = taso.import_rule(read)
    assert len(imported.cases) == 15
    check(read, "left", imported, sizes={-7: SIZES[-7], -15: SIZES[-15]})


def test_a_constant_behind_groups(rule):
    """It has the channels that come in, whatever the groups of the convolution before."""
    left = f"{CONV.format(-7, -14, 0)} CONSTANT_ICONV(; KERNEL_H=3, KERNEL_W=3)"
    read = rule(f"{left} {CONV.format('t0', 't1', 0)}", CONV.format(-7, -14, 0))
    kernel = torch.zeros((6, 6, 3, 3), dtype=torch.float64)
    kernel[:, :, 1, 1] = torch.eye(6)
    sizes = {-7: SIZES[-7], -14: (6, 2, 3, 3)}
    check(read, "left", taso.import_rule(read), sizes=sizes, constants={1: kernel})


@pytest.mark.parametrize(
    ("first", "more", "length"),
    [
        ("RELU(-1)", "RELU(t{0})", 900),
        ("EW_MUL(-1, -1)", "EW_MUL(t{0}, t{0})", 60),
        (COLUMNS.format(-1, -1), COLUMNS.format("t{0}", "t{0}"), 60),
    ],
)
def test_huge_rules_end_without_a_verdict(rule, first, more, length):
    chain = " ".join([first, *(more.format(i) for i in range(length))])
    assert decide_foreign(rule(chain, "RELU(-1)")).verdict is Verdict.UNKNOWN
