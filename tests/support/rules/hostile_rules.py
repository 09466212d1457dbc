"""Rules by an adversary, with the expected verdicts of each.

A line is ``verdicts | inputs | LEFT == RIGHT`` and perhaps ``| requires; requires``. The verdicts
are the correct ones: a false rule is never ``proved``, and ``unknown`` is listed if the answer may
take more than the budget of a rule. ``FILES`` are refused as a whole, in one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verifier.decide import Verdict

REFUTED, PROVED, UNKNOWN = Verdict.REFUTED, Verdict.PROVED, Verdict.UNKNOWN
VACUOUS, ILL_TYPED = Verdict.VACUOUS, Verdict.ILL_TYPED
FALSE = frozenset({REFUTED, UNKNOWN})
"""Verdicts of a rule with a counterexample, which may be beyond the shapes that are tried."""

Expected = frozenset[Verdict]
Rule = dict[str, Any]

INTERNAL = (
    *("o0", "o0_0", "o1", "u0", "h0", "h1", "sigma", "gamma", "kappa", "kappa0", "n0", "i", "j"),
    *(
        "k",
        "quotient",
        "rest",
        "rest0",
        "size",
        "start",
        "x",
        "p",
        "c",
        "d0",
        "value",
        "not",
        "Int",
    ),
    *("assert", "true", "ite", "or", "log", "max", "degree"),
)
"""Names that a proof might use itself."""

POOL = "height=h, width=v, kernel_h=a, kernel_w=b, stride_h=s, stride_w=t, top={0}, left=q"
HUGE = 10**18 - 1


def nested(form: str, times: int, inner: str = "x") -> str:
    """``inner`` within a form, repeatedly."""
    for _ in range(times):
        inner = form.format(inner)
    return inner


def _rule(left: str, right: str, requires: Any = (), **inputs: Any) -> Rule:
    return {"inputs": inputs, "left": left, "right": right, "requires": list(requires)}


def _captured() -> Iterator[tuple[Rule, Expected]]:
    """Rules whose attributes and inputs have the names of a proof's own symbols."""
    for name in INTERNAL:
        shifted = "slice(x, axis=0, start={}+{}, size=h)"
        yield _rule(shifted.format(name, 1), shifted.format(name, 2), x=1), FALSE
    for name in ("o0", "sigma", "h0"):
        scaled = f"scale(slice(x, axis=0, start={name}+1, size=h), factor=7.0)"
        yield _rule(f"slice(x, axis=0, start={name}+1, size=h)", scaled, x=1), FALSE
        yield _rule(f"relu(relu({name}))", f"relu({name})", **{name: 2}), frozenset({PROVED})
        yield _rule(f"relu({name})", name, **{name: 2}), frozenset({REFUTED})
        cut = f"combine(relu(partition(x, dim=0, degree={name})), dim=0, degree={name})"
        yield _rule(cut, "relu(x)", x=2), frozenset({PROVED})
        yield _rule(cut.replace("combine", "pipeline"), "relu(x)", x=2), FALSE | {VACUOUS}


def _sizes() -> Iterator[tuple[Rule, Expected]]:
    """Sizes that are 0, 1, prime, negative, equal or contradictory."""
    piece = "slice(x, axis=0, start={}, size={})"
    yield _rule(piece.format(0, "|x.0|"), "x", x=1), frozenset({PROVED})
    yield _rule(piece.format("a", "|x.0|"), "x", x=1), FALSE
    yield _rule(piece.format("a", 1), piece.format(0, 1), x=1), FALSE
    yield _rule(piece.format(-1, "h"), piece.format(0, "h"), x=1), FALSE | {ILL_TYPED, VACUOUS}
    yield _rule(piece.format(0, 0), "x", x=1), frozenset({ILL_TYPED, VACUOUS, UNKNOWN})
    yield _rule(piece.format(0, -3), piece.format(0, -3), x=1), frozenset({ILL_TYPED, VACUOUS})
    yield _rule("relu(x)", "x", ("|x.0| = 1", "|x.0| = 2"), x=1), frozenset({ILL_TYPED, VACUOUS})
    yield _rule("relu(x)", "x", ("|x.0| = |x.0| + 1",), x=1), frozenset({ILL_TYPED, VACUOUS})
    yield _rule("relu(x)", "x", ("|x.0| = 1",), x=1), frozenset({REFUTED})
    yield _rule("max_axis(x, axis=0)", "sum_axis(x, axis=0)", x=1), frozenset({REFUTED})
    yield (
        _rule("max_axis(x, axis=0)", "sum_axis(x, axis=0)", ("|x.0| = 1",), x=1),
        frozenset({PROVED, UNKNOWN}),
    )
    half = "slice(x, axis=0, start=0, size={})"
    yield _rule(half.format("|x.0|-1"), half.format("|x.0|-2"), x=1), FALSE | {VACUOUS, ILL_TYPED}
    two = "concat(concat(x, x, axis=0), concat(x, x, axis=0), axis=0)"
    yield _rule("x", "concat(x, x, axis=0)", x=1), frozenset({VACUOUS, ILL_TYPED})
    yield (
        _rule(two, "concat(x, concat(x, concat(x, x, axis=0), axis=0), axis=0)", x=1),
        frozenset({PROVED}),
    )
    yield _rule("relu(x)", "relu(x)", x=0), frozenset({PROVED})
    yield _rule("relu(relu(x))", "relu(x)", x=0), frozenset({PROVED})
    yield _rule("relu(x)", "x", x=16), frozenset({REFUTED, UNKNOWN})
    cut = "combine(partition(x, dim=0, degree={0}), dim=0, degree={0})"
    for degree in (1_000_000_007, 1_000_000_007 * 998_244_353, HUGE, 2**40):
        yield _rule(cut.format(degree), "x", x=2), frozenset({PROVED, UNKNOWN})
        yield _rule(cut.format(degree), "relu(x)", x=2), FALSE
    for degree in (0, -2, 1.5):
        expected = frozenset({ILL_TYPED, VACUOUS, UNKNOWN})
        yield _rule(cut.format(degree), "x", x=2), expected
    yield (
        _rule("partition(x, dim=0, degree=6)", "partition(x, dim=0, degree=7)", x=1),
        frozenset({VACUOUS, REFUTED, UNKNOWN}),
    )


def _functions() -> Iterator[tuple[Rule, Expected]]:
    """Rules that hold for some numbers only: positive, finite, or of tensors that are not empty."""
    yield _rule("scale(relu(x), factor=f)", "relu(scale(x, factor=f))", x=1), FALSE
    yield _rule("relu(scale(x, factor=f))", "scale(x, factor=f)", x=1), FALSE
    yield _rule("relu(scale(x, factor=-2.0))", "scale(relu(x), factor=-2.0)", x=1), FALSE
    yield _rule("divide(x, x)", "exp(scale(x, factor=0.0))", x=1), FALSE
    yield _rule("subtract(log(x), log(x))", "scale(x, factor=0.0)", x=1), FALSE
    yield _rule("multiply(x, reciprocal(x))", "exp(scale(x, factor=0.0))", x=1), FALSE
    yield _rule("sqrt(multiply(x, x))", "x", x=1), FALSE
    yield _rule("multiply(sqrt(x), sqrt(x))", "x", x=1), FALSE
    yield _rule("exp(log(x))", "x", x=1), FALSE
    yield _rule("divide(multiply(x, y), y)", "x", x=1, y=1), FALSE
    pooled = "max_pool2d(x, " + POOL.format("0") + ")"
    # The maximum of a window that lies outside is minus infinity, and its exponential is 0.
    ratio, one = f"divide(exp({pooled}), exp({pooled}))", f"relu({pooled})"
    yield _rule(ratio, f"exp(subtract({one}, {one}))", x=4), FALSE
    yield _rule(one, pooled, x=4), FALSE
    yield (
        _rule("avg_pool2d(x, " + POOL.format("p") + ")",
              "avg_pool2d_inside(x, " + POOL.format("p") + ")", x=4),
        FALSE,
    )  # fmt: skip
    yield (
        _rule("max_pool2d(x, " + POOL.format("p") + ")",
              "max_pool2d(pad(x, axis=2, before=p, size=|x.2|+p), " + POOL.format("0") + ")", x=4),
        FALSE,
    )  # fmt: skip


def _sides() -> Iterator[tuple[Rule, Expected]]:
    """Outputs twice, inputs as outputs, a concat of two for any degree, and no size for both."""
    yield _rule("x, x", "x, x", x=1), frozenset({PROVED})
    yield _rule("relu(x), relu(x)", "relu(x), x", x=1), frozenset({REFUTED})
    yield _rule("x, relu(x)", "relu(x), x", x=1), frozenset({REFUTED})
    yield _rule("add(x, x)", "join(x, x)", x=1), FALSE | {VACUOUS, ILL_TYPED}
    yield _rule("concat(x, x, axis=0)", "combine(x, dim=0, degree=2)", x=1), FALSE | {VACUOUS}
    yield _rule("reduce(join(x, y), degree=k)", "add(x, y)", x=1, y=1), FALSE | {VACUOUS, PROVED}
    yield (
        _rule("add(x, y)", "add(x, partition(y, dim=0, degree=k))", x=1, y=1),
        frozenset({VACUOUS, ILL_TYPED, REFUTED}),
    )
    yield _rule("split(x, axis=0, at=a)", "split(x, axis=0, at=b)", x=1), frozenset({PROVED})
    yield _rule(f"softmax(x, axis={10**17})", "softmax(x, axis=0)", x=1), frozenset({ILL_TYPED})
    yield _rule("matmul(x, x)", "matmul(x, transpose(x, dim0=0, dim1=1))", x=2), FALSE


def _large() -> Iterator[tuple[Rule, Expected]]:
    """Rules with much work for few letters. Sides that are written alike are equal at once."""
    alike = (
        (nested("softmax({}, axis=1)", 12), {"x": 2}),
        (nested("layer_norm({}, g, b, eps=0.1)", 5), {"x": 2, "g": 1, "b": 1}),
        (nested("multiply({}, x)", 12), {"x": 1}),
        (nested("multiply({}, add(x, y))", 24), {"x": 1, "y": 1}),
        (nested("max_axis(expand({}, axis=0, size=h), axis=0)", 20), {"x": 1}),
    )
    for side, inputs in alike:
        yield _rule(side, side, **inputs), frozenset({PROVED})
    softmax = alike[0][0]
    yield _rule(softmax, f"scale({softmax}, factor=2.0)", x=2), FALSE
    chain, other = nested("multiply({}, x)", 12), nested("multiply(x, {})", 12)
    yield _rule(chain, other, x=1), frozenset({PROVED, UNKNOWN})
    sums = "slice(x, axis=0, start={}, size=h)"
    terms = sums.format("+".join(["a"] * 4000))
    yield _rule(terms, sums.format("4000*a"), x=1), frozenset({PROVED})
    yield _rule(terms, sums.format("4001*a"), x=1), FALSE
    many = sums.format("+".join(f"a{i}" for i in range(1500)))
    yield _rule(many, many, x=1), frozenset({PROVED})
    yield _rule(sums.format("*".join(["a"] * 3000)), sums.format("a"), x=1), FALSE
    yield _rule(nested("relu({})", 199), "relu(x)", x=1), frozenset({PROVED, UNKNOWN})
    yield _rule(nested("add({}, x)", 180), nested("add({}, x)", 179), x=1), FALSE
    yield _rule(nested("exp({})", 40), nested("exp({})", 39), x=1), FALSE
    yield _rule(nested("divide({}, x)", 30), nested("divide({}, x)", 28), x=1), FALSE
    doubled = tuple(f"|x.{i}| = |x.{i + 1}|*|x.{i + 1}|*2" for i in range(15))
    yield _rule("relu(x)", "x", doubled, x=16), FALSE | {VACUOUS, ILL_TYPED}
    sizes = nested("flatten({}, axis=0)", 15)
    yield _rule(sizes, nested("flatten({}, axis=0)", 14), x=16), frozenset({ILL_TYPED})
    cubes = ("|x.0|*|x.0|*|x.0| + |x.1|*|x.1|*|x.1| = |x.2|*|x.2|*|x.2|",)
    yield _rule("relu(x)", "x", cubes, x=3), FALSE


def rules() -> list[tuple[Rule, Expected]]:
    """All rules, by names of their own."""
    actual = [*_captured(), *_sizes(), *_functions(), *_sides(), *_large()]
    return [
        ({"name": f"hostile {i}", **rule}, expected) for i, (rule, expected) in enumerate(actual)
    ]


def _side(left: str, right: str = "x", **more: Any) -> dict[str, Any]:
    return {"schema_version": 1, "rules": [{"name": "r", "inputs": {"x": 1}, "left": left,
                                            "right": right, **more}]}  # fmt: skip


FILES: dict[str, tuple[object, str]] = {
    "empty": ("", "not JSON"),
    "nothing": ("{}", "missing"),
    "a list": ([], "expected"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "deep object": ('{"rules":' * 50_000, "nested too deeply"),
    "NUL": ("\0", "not JSON"),
    "a long name": (_side("x", name="n" * (1 << 20)), "at most"),
    "a rank of 1000": (_side("x", inputs={"x": 1000}), "less than or equal to 16"),
    "a negative rank": (_side("x", inputs={"x": -1}), "greater than or equal to 0"),
    "a long side": (_side("relu(" * 10**5), "at most 10000"),
    "deep calls": (_side("relu(" * 250 + "x" + ")" * 250), "nested more than 200 deep"),
    "a huge number": (_side(f"slice(x, axis=0, start={10**30}, size=h)"), "expected a number"),
    "a huge product": (_side(f"slice(x, axis=0, start={HUGE}*{HUGE}, size=h)"), "18 digits"),
    "no such size": (_side("slice(x, axis=0, start=|y.0|, size=h)"), "|y.0|"),
    "no such dimension": (_side("slice(x, axis=0, start=|x.7|, size=h)"), "|x.7|"),
    "bad requirement": (_side("x", requires=["|x.0| = "]), ""),
    "foreign requirement": (_side("x", requires=["|y.0| = 1"]), "|y.0|"),
    "long requirement": (_side("x", requires=["|x.0| = " + "+".join(["|x.0|"] * 20_000)]), ""),
    "no name": (_side("x~1"), "'~'"),
    "bars": (_side("|x.0|"), ""),
    "two words": (_side("size x.0"), ""),
    "unknown": (_side("os_system(x)"), "unknown operator"),
    "escape": (_side("\x1b[31m(x)"), "control character U+001B"),
    "bell": (_side("x", name="\x07\r\x1b]0;owned\x07", right="y"), "control character U+0007"),
    "right to left": (_side("x\u202e"), "control character U+202E"),
    "half a letter": (_side("x\ud800"), ""),
    "one side only": (_side("relu(x)", "add(x, y)", inputs={"x": 1, "y": 1}), "right side only"),
    "more outputs": (_side("x", "x, x"), "2 on the right"),
    "twice": ({"schema_version": 1, "rules": _side("x")["rules"] * 2}, "is taken"),
}

OPERATORS: dict[str, tuple[str, str]] = {
    "redefines": ('Operator("relu", "out[i...] = x[i...]")', "relu"),
    "recursive": ('Operator("own", "out[i] = own(x[i])")', "own"),
    "moves": ('Operator("own", "out[i...] = x[i...]", parallel="bogus")', "bogus"),
    "no size": ('Operator("own", "x[n] -> out[m] = x[m]")', "does not follow"),
    "unbound": ('Operator("own", "out[i] = x[j]")', "never bound"),
    "escape": ('Operator("\\x1b[2J", "out[i] = x[i]")', "\\x1b"),
    "raises": ('1 / 0', "division by zero"),
    "exits": ('raise SystemExit(0)', ""),
    "nothing": ('x = 1', "declares no operator"),
}  # fmt: skip
"""Files of operators, each with the expected message."""

OWN_OPERATORS = """
from pcg.types.operator import Operator

over_zero = Operator("over_zero", "out[i...] = x[i...] / (x[i...] - x[i...])")
empty_sum = Operator("empty_sum", "out[i] = sum k < many: x[i] * (k == k)", sizes=("many",))
empty_max = Operator("empty_max", "out[i] = max k < many: x[i] + k - k", sizes=("many",))
sigma = Operator("sigma", "out[i...] = x[i...] * x[i...]")
"""

OWN_RULES: tuple[tuple[str, str, Expected], ...] = (
    ("over_zero(x)", "scale(x, factor=2.0)", FALSE),
    ("over_zero(x)", "over_zero(scale(x, factor=2.0))", FALSE),
    ("empty_sum(x, many=m)", "scale(empty_sum(x, many=m), factor=2.0)", FALSE),
    ("empty_sum(x, many=0)", "scale(x, factor=0.0)", frozenset({PROVED, UNKNOWN})),
    ("empty_max(x, many=m)", "x", FALSE),
    ("empty_max(x, many=1)", "x", frozenset({PROVED, UNKNOWN})),
    ("divide(exp(empty_max(x, many=m)), exp(empty_max(x, many=m)))", "exp(scale(x, factor=0.0))",
     FALSE),
    ("sigma(sigma(x))", "sigma(x)", FALSE),
    ("sigma(x)", "multiply(x, x)", frozenset({PROVED})),
)  # fmt: skip
