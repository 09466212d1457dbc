"""Rules as data: general rules at other ranks and with operators, and in words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from support.cases import a_third
from support.graphs.instances import agree, random_instance

from pcg.ops import OPERATORS
from substitutions.rules.rule import Rule, determined_symbols, open_call, parse_rule
from substitutions.rules.store import load_library
from verifier.trusted.sizes.runs import Group, free_runs

CUT = "combine(pointwise(partition(x, dim=1, degree=k)), dim=1, degree=k)"


def general(left: str, right: str, **inputs: int) -> Rule:
    """The rule with all its free axes as runs."""
    rule = parse_rule("rule", inputs, left, right)
    return replace(rule, runs=free_runs(rule.left, rule.right))


POINTWISE = general(CUT, "pointwise(x)", x=3)


@pytest.mark.parametrize(
    ("counts", "dim", "rank"), [((1, 1), 1, 3), ((0, 0), 0, 1), ((2, 0), 2, 3), ((0, 3), 0, 4)]
)
def test_each_run_may_be_any_number_of_axes(counts, dim, rank):
    made = POINTWISE.at(counts)
    assert made is not None
    assert made.text == f"{CUT.replace('dim=1', f'dim={dim}')} == pointwise(x)"
    assert made.inputs == (("x", rank),)
    assert made.name == f"rule[{counts[0]},{counts[1]}]"
    assert made.runs == ()


def test_rule_may_have_runs_for_some_of_its_free_axes():
    second: Group = (("x", 2),)
    made = replace(POINTWISE, runs=(second,)).at((0,))
    assert made is not None
    assert made.inputs == (("x", 2),)
    with pytest.raises(ValueError, match="1 numbers of axes for 2 runs"):
        POINTWISE.at((1,))


@pytest.mark.parametrize("number", range(3))
def test_a_form_knows_its_symbols_from_the_general_rule(number):
    rules = [rule for rule in load_library().rules if rule.runs][number::29]
    forms = [(rule, counts) for rule in rules for counts in product((0, 2), repeat=len(rule.runs))]
    made = [form for rule, counts in forms if (form := rule.at(counts)) is not None]
    assert len(made) > len(rules)
    for form in made:
        anew = replace(form)
        assert form.free_symbols == anew.free_symbols
        assert form.is_applicable == anew.is_applicable
        assert form.stand_ins == anew.stand_ins


def test_sizes_in_attributes_move_with_their_axes():
    back = general(
        "unflatten(flatten(x, axis=1), axis=1, outer=|x.1|, inner=|x.2|)", "pointwise(x)", x=4
    )
    assert list(back.runs) == [(("x", 0),), (("x", 3),)]
    made = back.at((3, 0))
    assert made is not None
    assert made.text.startswith(
        "unflatten(flatten(x, axis=3), axis=3, outer=|x.3|, inner=|x.4|) =="
    )


def test_runs_of_several_inputs_move_together():
    shared = general(
        "concat(pointwise2(x, y), pointwise2(z, w), axis=1)",
        "pointwise2(concat(x, z, axis=1), concat(y, w, axis=1))",
        x=3,
        y=3,
        z=3,
        w=3,
    )
    assert len(shared.runs) == 2
    made = shared.at((0, 2))
    assert made is not None
    assert set(made.inputs) == {(name, 3) for name in "xyzw"}
    assert "axis=0" in made.text


GENERAL = [
    POINTWISE,
    general("split(pointwise(x), axis=1, at=at).0", "pointwise(split(x, axis=1, at=at).0)", x=3),
    general(
        "concat(pointwise(x), pointwise(y), axis=1)", "pointwise(concat(x, y, axis=1))", x=3, y=3
    ),
    general(
        "transpose(transpose(x, dim0=1, dim1=3), dim0=1, dim1=3)",
        "reduce(replicate(x, degree=k), degree=k)",
        x=5,
    ),
    general(
        "reduce(matmul(partition(x, dim=1, degree=k), partition(y, dim=0, degree=k)), degree=k)",
        "matmul(x, y)",
        x=2,
        y=2,
    ),
]


@pytest.mark.parametrize("rule", a_third(GENERAL[:3] + GENERAL[4:]), ids=lambda rule: rule.text)
@pytest.mark.parametrize("operator", ["relu", "scale"])
def test_every_concrete_rule_holds(rule, operator):
    """At random types, values and degrees, at all small numbers of axes."""
    met = 0
    for counts in product(range(3), repeat=len(rule.runs)):
        made = rule.at(counts)
        assert made is not None
        if made.stand_ins:
            made = made.with_operator(open_call(OPERATORS[operator], ()))
        for seed in range(3):
            instance = random_instance(made.left, made.right, Random(seed))
            if instance is not None:
                assert agree(instance, seed), made.text
                met += 1
    assert met > len(rule.runs)


def test_an_operator_takes_the_place_of_its_stand_in():
    relu = POINTWISE.with_operator(open_call(OPERATORS["relu"], ()))
    assert relu.text == CUT.replace("pointwise", "relu") + " == relu(x)"
    assert relu.name == "rule[relu]"
    made = POINTWISE.at((0, 0))
    assert made is not None
    assert made.with_operator(open_call(OPERATORS["relu"], ())).name == "rule[0,0;relu]"
    assert POINTWISE.stand_ins == ("pointwise",)
    assert relu.stand_ins == ()


def test_attributes_of_an_inserted_operator_have_their_own_symbols():
    scaled = general(
        "scale(pointwise(x), factor=factor)", "scale(pointwise(x), factor=factor)", x=1
    )
    made = scaled.with_operator(open_call(OPERATORS["scale"], {"factor"}))
    assert made.text.startswith("scale(scale(x, factor=factor2), factor=factor) ==")


@pytest.mark.parametrize("name", ["add", "softmax", "matmul", "partition"])
def test_an_operator_of_another_kind_is_refused(name):
    names = OPERATORS[name].attributes
    call = OPERATORS[name](**dict.fromkeys(names, 0))
    with pytest.raises(ValueError, match="no stand-in"):
        POINTWISE.with_operator(call)


def test_reversed_rule_keeps_family_derivation_and_runs():
    rule = replace(POINTWISE, family="cut", derived=2)
    back = rule.reversed
    assert (back.family, back.derived, back.runs) == ("cut", 2, rule.runs)
    assert back.reversed.text == rule.text


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("slice(x, axis=0, start=s, size=n)", {"s", "n"}),
        ("slice(x, axis=0, start=s + n, size=n)", {"s", "n"}),
        ("slice(x, axis=0, start=s + t, size=n)", {"n"}),
        ("slice(x, axis=0, start=|x.0| - s, size=n)", {"s", "n"}),
        ("slice(x, axis=0, start=s*s, size=n)", {"n"}),
        ("slice(x, axis=0, start=s*n, size=n)", {"s", "n"}),
    ],
)
def test_side_determines_its_symbols(side, expected):
    rule = parse_rule("r", {"x": 1}, side, "x")
    assert determined_symbols(rule.left) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (POINTWISE, "combine(f(partition(x[a..., i, b...], i, k)), i, k) = f(x)"),
        (
            general(
                "matmul(x, y)",
                "reduce(matmul(partition(x, dim=2, degree=k), partition(y, dim=0, degree=k)),"
                " degree=k)",
                x=3,
                y=2,
            ),
            (
                "matmul(x[a..., b..., i], y[i, n])"
                " = reduce(matmul(partition(x, i, k), partition(y, i, k)), k)"
            ),
        ),
        (
            general("split(concat(x, y, axis=1), axis=1, at=|x.1|).0", "x", x=3, y=3),
            "split(concat(x[a..., s, b...], y[a..., t, b...], s)[a..., j, b...], j, |s|).0 = x",
        ),
        (
            general("sum_axis(expand(x, axis=1, size=2), axis=1)", "pointwise(x)", x=2),
            "sum_axis(expand(x[a..., b...], j, size=2)[a..., j, b...], j) = f(x)",
        ),
        (
            general("unflatten(scale(x, factor=2.0), axis=0, outer=outer, inner=3)", "x", x=1),
            "unflatten(scale(x[m], factor=2.0), m, outer, inner=3) = x",
        ),
        (
            general("transpose(x, dim0=0, dim1=1)", "add(x, x)", x=2),
            "transpose(x[i, i'], i, i') = add(x, x)",
        ),
    ],
)
def test_a_statement_names_the_axes(rule, expected):
    assert rule.statement == expected
