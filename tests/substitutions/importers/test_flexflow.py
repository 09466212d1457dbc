"""FlexFlow's rules, against a simulation of the table that describes them, device by device.

The simulation is written from the description alone and shares no code with the importer. It uses
concrete sizes, integer degrees and numpy arrays.
"""

import re
from itertools import product
from random import Random

import numpy as np
import pytest
from support.cases import a_third

from pcg.graph.graph import Graph
from pcg.readings.evaluate import evaluate_whole
from pcg.readings.ring import PrimeField
from substitutions.importers import flexflow
from substitutions.importers.imported import IllTypedError, UnsupportedError
from substitutions.importers.schema import read_foreign
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

FIELD = PrimeField(generic=True)
KINDS = ("PARTITION", "COMBINE", "REPLICATE", "REDUCE")


class NoMeaningError(Exception):
    pass


def need(condition):
    if not condition:
        raise NoMeaningError


class Simulated:
    """A tensor: values, a degree per dimension, and per dimension the pieces of its concats."""

    def __init__(self, values, degrees, pieces=((), (), ())):
        self.values, self.degrees, self.pieces = values, tuple(degrees), tuple(pieces)
        for size, degree in zip(values.shape, self.degrees, strict=True):
            need(size % degree == 0)


def with_entry(entries, dim, entry):
    return (*entries[:dim], entry, *entries[dim + 1 :])


def scaled(pieces, by, over):
    """Pieces (size, inner pieces) of a dimension that grew or shrank. Sizes are fractions."""
    return tuple(((n * by, d * over), scaled(inner, by, over)) for (n, d), inner in pieces)


def moved(kind, x, dim, k):
    """One of the four operators with a dimension and a degree."""
    values, old, pieces = x.values, x.degrees[dim], x.pieces[dim]
    if kind == "PARTITION":
        return Simulated(values, with_entry(x.degrees, dim, old * k), x.pieces)
    if kind == "COMBINE":
        need(old % k == 0)
        return Simulated(values, with_entry(x.degrees, dim, old // k), x.pieces)
    if kind == "REPLICATE":
        values, new, pieces = np.repeat(values, k, axis=dim), old * k, scaled(pieces, k, 1)
    else:
        need(values.shape[dim] % k == 0)
        slices = [values.take(range(i, values.shape[dim], k), axis=dim) for i in range(k)]
        values, new = FIELD.total(np.stack(slices), 0), max(old // k, 1)
        pieces = scaled(pieces, 1, k)
    return Simulated(values, with_entry(x.degrees, dim, new), with_entry(x.pieces, dim, pieces))


def linear(x, w, activation):
    """Each device (channel shard, n, m) multiplies its blocks; the channel shards are R."""
    (xr, xn, xc), (wr, wm, wc) = x.degrees, w.degrees
    need(xr == wm and x.values.shape[0] == wm)
    need(wr == xn and w.values.shape[0] == xn)
    need(xc == wc and x.values.shape[2] == w.values.shape[2])
    rows, columns, channels = (
        size // degree
        for size, degree in (
            (x.values.shape[1], xn),
            (w.values.shape[1], wm),
            (x.values.shape[2], xc),
        )
    )
    out = np.zeros((xc, x.values.shape[1], w.values.shape[1]), np.int64)
    for c, n, m in product(range(xc), range(xn), range(wm)):
        at, to = slice(n * rows, (n + 1) * rows), slice(m * columns, (m + 1) * columns)
        share = slice(c * channels, (c + 1) * channels)
        a, b = x.values[m, at, share], w.values[n, to, share]
        block = np.array([[sum(map(int, r * s % FIELD.prime)) for s in b] for r in a])
        block %= FIELD.prime
        out[c, at, to] = FIELD.apply("relu", [block]) if activation == 2 else block
    return Simulated(out, (xc, xn, wm), ((), x.pieces[1], w.pieces[1]))


def elementwise(kind, x, y):
    need(x.degrees == y.degrees and x.values.shape == y.values.shape)
    combine = FIELD.plus if kind == "EW_ADD" else FIELD.times
    return Simulated(combine(x.values, y.values), x.degrees, common(x, y))


def concat(x, y, dim):
    need(x.degrees == y.degrees)
    need(all(d == dim or x.values.shape[d] == y.values.shape[d] for d in range(3)))
    sizes = x.values.shape[dim], y.values.shape[dim]
    new = tuple(((n, 1), t.pieces[dim]) for n, t in zip(sizes, (x, y), strict=True))
    others = common(x, y)
    values = np.concatenate((x.values, y.values), dim)
    return Simulated(values, x.degrees, with_entry(others, dim, new))


def common(x, y):
    pairs = zip(x.pieces, y.pieces, strict=True)
    return tuple(a if a == b else (a or b) if not (a and b) else () for a, b in pairs)


def split(x, dim):
    need(len(x.pieces[dim]) == 2)
    parts, start = [], 0
    for (n, d), inner in x.pieces[dim]:
        need(n % d == 0)
        stop = start + n // d
        values = x.values.take(range(start, stop), axis=dim)
        parts.append(Simulated(values, x.degrees, with_entry(x.pieces, dim, inner)))
        start = stop
    return parts


def simulate(side, inputs, degree):
    """The mapped tensors of a side, with ``degree`` for every parallel operator."""
    made = {}
    for number in side.order:
        operator = side.operators[number]
        given = [inputs[r.op] if r.op < 0 else made[r.op][r.port] for r in operator.inputs]
        kind, p = operator.name[3:], operator.parameters
        x, y = given[0], given[-1]
        if kind in KINDS:
            made[number] = [moved(kind, x, p["PM_PARALLEL_DIM"], degree)]
        elif kind == "LINEAR":
            made[number] = [linear(x, y, p["PM_ACTI"])]
        elif kind == "CONCAT":
            made[number] = [concat(x, y, p["PM_AXIS"])]
        elif kind == "SPLIT":
            made[number] = split(x, p["PM_AXIS"])
        elif kind == "RELU":
            made[number] = [Simulated(FIELD.apply("relu", [x.values]), x.degrees, x.pieces)]
        else:
            made[number] = [elementwise(kind, x, y)]
    return [made[r.op][r.port] for r in side.outputs]


def arrays(sizes, seed):
    """The six inputs at sizes N, M, K."""
    rng = np.random.default_rng(seed)
    n, m, k = sizes
    shapes = {op: (1, n if op >= -3 else m, k) for op in range(-1, -7, -1)}
    return {op: Simulated(rng.integers(0, FIELD.prime, s), (1, 1, 1)) for op, s in shapes.items()}


def solved(equal, known):
    """Values of all symbols at which the equations hold. None if there are none."""
    values = dict(known)
    pending = list(equal)
    while pending:
        left = []
        for a, b in pending:
            unknown = (a.symbols | b.symbols) - values.keys()
            difference = a - b
            if not unknown:
                if difference.evaluate(values):
                    return None
                continue
            (symbol, *more) = unknown
            if more:
                left.append((a, b))
                continue
            rest = difference.evaluate({**values, symbol: 0})
            slope = difference.evaluate({**values, symbol: 1}) - rest
            if slope == 0 or -rest % slope or -rest // slope < 1:
                return None
            values[symbol] = -rest // slope
        assert len(left) < len(pending), "sizes that do not follow"
        pending = left
    return values


def evaluate(imported, outputs, inputs, degree):
    """The values of one side of an imported rule at concrete inputs. None if its sizes do not
    fit."""
    (case,) = imported.cases
    known = {
        f"|{flexflow.input_name(op)}.{dim}|": size
        for op, x in inputs.items()
        for dim, size in enumerate(x.values.shape)
    }
    for symbol, op, dim in (("|N|", -1, 1), ("|M|", -4, 1), ("|K|", -1, 2)):
        known[symbol] = inputs[op].values.shape[dim]
    if imported.degree is not None:
        known[imported.degree] = degree
    values = solved(case.equal, known)
    if values is None:
        return None
    leaves = {flexflow.input_name(op): x.values for op, x in inputs.items()}
    return evaluate_whole(Graph(outputs), leaves, FIELD, values)


def random_side(random):
    """A random side in text, of up to four operators, half of them with a meaning."""
    tensors = [str(op) for op in range(-1, -7, -1)]
    made, ports = [], []
    for number in range(random.randint(1, 4)):
        # Later tensors are drawn more often, so that graphs are deep.
        x, y = random.choices(tensors + [t for t in tensors if t[0] == "t"] * 4, k=2)
        dim = random.randrange(3)
        kind = random.choice((*KINDS, *KINDS, "LINEAR", "LINEAR", "CONCAT", "SPLIT", "EW"))
        outputs = 1
        if kind in KINDS:
            text = f"{kind}({x}; PARALLEL_DIM={dim}, PARALLEL_DEGREE=2)"
        elif kind == "LINEAR":
            text = f"LINEAR({x}, {y}; ACTI={random.choice((0, 2))})"
        elif kind == "CONCAT":
            text = f"CONCAT({x}, {y}; AXIS={dim}, NUMDIM=3)"
        elif kind == "SPLIT":
            text, outputs = f"SPLIT({x}; AXIS={dim})", 2
        else:
            kind = random.choice(("EW_ADD", "EW_MUL", "RELU"))
            text = f"RELU({x})" if kind == "RELU" else f"{kind}({x}, {y})"
        made.append(text)
        new = [f"t{number}.{port}" for port in range(outputs)]
        tensors += new
        ports += new
    return f"{' '.join(made)} -> {random.choice(ports)}"


def imported_or_none(rule, symbolic):
    try:
        return flexflow.import_rule(rule, symbolic=symbolic)
    except IllTypedError:
        return None


def agrees(rule, sizes, degree, *, symbolic):
    """Whether importer and simulation agree about the left side. True if it has a meaning."""
    inputs = arrays(sizes, seed=sum(sizes))
    try:
        expected = simulate(rule.left, inputs, degree)
    except NoMeaningError:
        expected = None
    imported = imported_or_none(rule, symbolic)
    actual = imported and evaluate(imported, imported.cases[0].left, inputs, degree)
    if symbolic and imported is None:
        return False  # it may have a meaning at one degree and none at another
    assert (actual is None) == (expected is None), rule.name
    if expected is None or actual is None:
        return False
    for a, b in zip(actual, expected, strict=True):
        assert np.array_equal(a, b.values), rule.name
    return True


MARKER = "PARTITION(-1; PARALLEL_DIM=0, PARALLEL_DEGREE=2)"  # so that the file is one of FlexFlow's


@pytest.mark.parametrize("seed", a_third(range(8)))
@pytest.mark.parametrize(("symbolic", "degree"), [(False, 2), (True, 2), (True, 3)])
def test_random_graphs_agree_with_the_simulated_table(as_json, write, seed, symbolic, degree):
    random = Random(seed)
    sides = [random_side(random) for _ in range(100)]
    rules = read_foreign(write(*(as_json(side, side) for side in (*sides, MARKER)))).rules[:-1]
    with_meaning = 0
    for rule in rules:
        if symbolic and len(flexflow.stated_degrees(rule)) != 1:
            continue
        sizes = tuple(random.choice((1, 2, 3, 4, degree**2)) * degree for _ in "NMK")
        try:
            with_meaning += agrees(rule, sizes, degree, symbolic=symbolic)
        except UnsupportedError:
            continue
    assert with_meaning > 10


SIZES = ((4, 8, 12), (8, 4, 16), (12, 12, 4), (8, 12, 12), (4, 4, 4), (2, 2, 2))


def sampled(rule, degree):
    """The result of sampling a rule: true, conditional, false, or ill-typed."""
    verdicts = []
    for sizes in SIZES:
        inputs = arrays([size * degree**2 // 4 for size in sizes], seed=1)
        try:
            left, right = (simulate(side, inputs, degree) for _, side in rule.sides)
        except NoMeaningError:
            verdicts.append("ill-typed")
            continue
        alike = all(a.degrees == b.degrees for a, b in zip(left, right, strict=True))
        equal = alike and all(
            np.array_equal(a.values, b.values) for a, b in zip(left, right, strict=True)
        )
        verdicts.append("true" if equal else "false")
    generic = verdicts[:2]  # sizes with no relation to each other
    if "false" in verdicts:
        return "false"
    return "true" if "true" in generic else "conditional" if "true" in verdicts else "ill-typed"


def spelled(text):
    """``P(-1,1)`` for a partition along dimension 1, and C, R, S for combine, replicate, reduce;
    ``L(x, w)`` for linear, ``LR`` with ReLU; ``CAT(x, y, 1)``, ``SPLIT(x, 1)``."""
    for short, kind in zip("PCRS", KINDS, strict=True):
        moved = rf"{kind}(\1; PARALLEL_DIM=\2, PARALLEL_DEGREE=2)"
        text = re.sub(rf"\b{short}\(([^,()]+),(\d)\)", moved, text)
    text = re.sub(r"\bL\(([^()]*)\)", r"LINEAR(\1; ACTI=0)", text)
    text = re.sub(r"\bLR\(([^()]*)\)", r"LINEAR(\1; ACTI=2)", text)
    text = re.sub(r"\bCAT\(([^,]+),([^,]+), (\d)\)", r"CONCAT(\1,\2; AXIS=\3, NUMDIM=3)", text)
    return re.sub(r"\bSPLIT\(([^,]+),(\d)\)", r"SPLIT(\1; AXIS=\2)", text)


SUMS = "S(-1,1) S(-2,1) EW_ADD(t0, t1)"

PROVED = [
    ("P(-1,1) P(t0,2)", "P(-1,2) P(t0,1)", "all", ()),
    ("R(-1,0) S(t0,0)", "R(-1,2) S(t0,2)", "all", ()),
    ("P(-1,1) R(t0,0) S(t1,1)", "S(-1,1) R(t0,0)", "all", ()),
    ("R(-1,0) C(t0,0) S(t1,0)", "R(-1,1) S(t0,1)", "all", ()),
    ("R(-1,0) S(t0,0) L(t1, -4)", "L(-1, -4) R(t0,2) S(t1,2)", "all", ()),
    ("P(-4,1) R(-1,0) LR(t1, t0)", "L(-1, -4) P(t0,2) RELU(t1)", "all", ()),
    ("P(-1,2) P(-4,2) L(t0, t1) S(t2,0)", "L(-1, -4)", "all", ()),
    ("L(-1, -4)", "P(-1,2) P(-4,2) L(t0, t1) S(t2,0)", "all", ("D divides K",)),
    ("P(-1,1) R(-4,0) L(t0, t1) C(t2,1)", "L(-1, -4)", "all", ()),
    ("EW_ADD(-1, -2)", "CAT(-1, -2, 0) S(t0,0)", "2", ()),
    (SUMS, "CAT(-1, -2, 0) S(t0,1) S(t1,0)", "2", ()),
    ("RELU(-1) RELU(-2) -> t0, t1", "CAT(-1, -2, 1) RELU(t0) SPLIT(t1,1) -> t2.0, t2.1", "", ()),
    ("S(-1,1) S(-2,1) -> t0, t1", "CAT(-1, -2, 1) S(t0,1) SPLIT(t1,1) -> t2.0, t2.1", "all", ()),
    ("L(-1, -4) L(-1, -5) CAT(t0, t1, 2)", "CAT(-4, -5, 1) L(-1, t0)", "", ()),
    ("S(-1,1) L(t0, -4) CAT(t0, t1, 1)", "L(-1, -4) CAT(-1, t0, 1) S(t1,1)", "all", ("K = M",)),
]

ILL_TYPED = [
    ("CAT(-1, -2, 0) L(t0, -4)", "L(-1, -4)", "left: operator 1 (OP_LINEAR): R of x has size 2"),
    ("L(-1, -4)", "R(-1,0) C(t0,0) L(t1, -4)", "right: operator 2 (OP_LINEAR): R of x has size 2"),
    ("C(-1,1)", "C(-1,1)", "left: operator 0 (OP_COMBINE): dimension 1: degree 1 by 2"),
    ("P(-1,0)", "P(-1,0)", "left: operator 0 (OP_PARTITION): size: 2 in 1"),
    ("SPLIT(-1,1)", "SPLIT(-1,1)", "left: operator 0 (OP_SPLIT): no concat along this dimension"),
    ("P(-1,1) EW_ADD(t0, -2)", "EW_ADD(-1, -2)", "left: operator 1 (OP_EW_ADD): dimension 1: deg"),
    ("R(-1,1) EW_ADD(t0, -2)", "EW_ADD(-1, -2)", "left: operator 1 (OP_EW_ADD): dimension 1: deg"),
    ("CAT(-1, -1, 1) EW_ADD(t0, -2)", "EW_ADD(-1, -2)", "size: 2*N against N"),
    ("R(-1,0)", "CAT(-1, -1, 0)", "output 0, dimension 0: degree 2 on the left, 1 on the right"),
    ("CAT(-1, -2, 0) S(t0,0) SPLIT(t1,0) -> t2.0", "RELU(-1)", "OP_SPLIT): piece: 2 in 1"),
    ("RELU(-1)", "CAT(-1, -2, 1) RELU(t0) SPLIT(t1,1) -> t2.0", "input -2 stands on the right"),
]


@pytest.mark.parametrize(("left", "right", "degrees", "conditions"), PROVED)
def test_true_rules(as_json, write, left, right, degrees, conditions):
    rule = flexflow_rule(as_json, write, left, right)
    assert sampled(rule, 2) == ("conditional" if any("=" in c for c in conditions) else "true")
    if degrees != "2":
        assert sampled(rule, 4) != "false"
    decision = decide_foreign(rule)
    assert (decision.verdict, decision.reason) == (Verdict.PROVED, "")
    assert (decision.degrees, decision.conditions) == (degrees, conditions)


@pytest.mark.parametrize(("left", "right", "reason"), ILL_TYPED)
def test_rules_without_meaning(as_json, write, left, right, reason):
    rule = flexflow_rule(as_json, write, left, right)
    decision = decide_foreign(rule)
    assert decision.verdict is Verdict.ILL_TYPED
    assert reason in decision.reason


def test_sums_of_neighbours_are_not_sums_over_pieces(as_json, write):
    """The one published rule that is false. With two rows an operand it looks true."""
    rule = flexflow_rule(as_json, write, SUMS, "CAT(-1, -2, 1) S(t0,1) S(t1,1)")
    assert sampled(rule, 2) == "false"
    decision = decide_foreign(rule)
    assert (decision.verdict, decision.degrees) == (Verdict.REFUTED, "2")
    assert decision.counterexample is not None


def test_a_concat_of_two_stands_for_degree_two_only(as_json, write):
    rule = flexflow_rule(as_json, write, "EW_ADD(-1, -2)", "CAT(-1, -2, 0) S(t0,0)")
    assert sampled(rule, 2) == "true"
    assert sampled(rule, 4) == "ill-typed"


def test_several_degrees_are_not_left_open(as_json, write):
    right = "PARTITION(-1; PARALLEL_DIM=1, PARALLEL_DEGREE=3) P(t0,1)"
    rule = flexflow_rule(as_json, write, right, right)
    decision = decide_foreign(rule)
    assert (decision.verdict, decision.degrees) == (Verdict.PROVED, "2, 3")


def flexflow_rule(as_json, write, left, right):
    """A rule in the short spelling, from a file of FlexFlow's."""
    rule, marker = as_json(spelled(left), spelled(right)), as_json(MARKER, MARKER)
    return read_foreign(write(rule, marker)).rules[0]
