"""Direction and use: the conditions of each direction, and how a rule rearranges weights."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from support.cases import each
from support.graphs.instances import FIELD
from support.graphs.strategies import applied, parts_of_leaves, seeds

from pcg.graph.graph import Graph
from pcg.plan.text import parse_values
from pcg.readings.evaluate import evaluate_whole
from substitutions.rules.origins import kind_of
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import load_library
from substitutions.rules.uses import directions


def rule(left: str, right: str, **inputs: int) -> Rule:
    return parse_rule("rule", inputs, left, right)


MERGED = "split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|)"


def made(rule: Rule) -> dict[str, str]:
    """The values that reading from left to right creates, as text, with their kinds."""
    return {str(c.value.node.call.name): c.kind for c in directions(rule)[0].created}


def test_a_cut_can_be_made_and_undone():
    forth, back = directions(
        rule(
            "matmul(x, y)",
            "reduce(matmul(partition(x, dim=1, degree=k), partition(y, dim=0, degree=k)),"
            " degree=k)",
            x=2,
            y=2,
        )
    )
    assert (forth.applicable, forth.free, forth.unbound) == (True, ("k",), ())
    assert (back.applicable, back.free, back.unbound) == (True, (), ())
    assert forth.created == back.created == ()  # cuts of weights do not count


def test_an_input_of_the_new_side_alone_is_not_determined():
    forth, back = directions(rule("split(concat(x, y, axis=0), axis=0, at=|x.0|).0", "x", x=1, y=1))
    assert (forth.applicable, forth.unbound) == (True, ())
    assert (back.applicable, back.unbound) == (False, ("y",))


def test_a_symbol_that_the_old_side_has_in_a_product_alone_is_free():
    forth, back = directions(
        rule("scale(scale(x, factor=a), factor=b)", "scale(x, factor=a*b)", x=1)
    )
    assert (forth.applicable, forth.free) == (True, ())
    assert (back.applicable, back.free) == (False, ("a", "b"))


def test_each_direction_has_its_own_conditions():
    forth, back = directions(
        rule("partition(combine(x, dim=0, degree=k2), dim=0, degree=k)", "x", x=1)
    )
    assert forth.conditions != back.conditions
    kept, dropped = directions(rule("matmul(x, y)", "matmul(add(x, z), y)", x=2, y=2, z=2))
    assert kept.conditions
    assert not dropped.conditions


def test_conditions_are_those_that_the_proof_finds():
    rules = [r for r in load_library().rules if r.conditions][:40]
    assert rules
    for known in rules:
        assert directions(known)[0].conditions == known.conditions, known.text


def test_merged_weights_are_rearranged():
    both = rule("matmul(x, y), matmul(x, z)", f"{MERGED}.0, {MERGED}.1", x=2, y=2, z=2)
    assert made(both) == {"concat": "rearranged"}
    # Each product reads one of the weights.
    assert made(both.reversed) == {"matmul": "computed"}


@each(
    ("value", "kind"),
    [
        ("transpose(y, dim0=0, dim1=1)", "rearranged"),
        ("flatten(y, axis=0)", "rearranged"),
        ("unflatten(y, axis=1, outer=3, inner=2)", "rearranged"),
        ("split(y, axis=1, at=2).1", "rearranged"),
        ("slice(y, axis=0, start=1, size=2)", "rearranged"),
        ("concat(y, transpose(z, dim0=0, dim1=1), axis=0)", "rearranged"),
        ("matmul(identity_matrix(size=4), y)", "rearranged"),
        ("scale(y, factor=1.0)", "rearranged"),
        ("partition(y, dim=0, degree=2)", "rearranged"),
        ("pad(y, axis=0, before=1, size=6)", "padded"),
        ("slice(y, axis=0, start=3, size=3)", "padded"),
        ("concat(y, ones2(size0=1, size1=6), axis=0)", "padded"),
        ("multiply(y, identity_matrix(size=6))", "padded"),
        ("expand(y, axis=0, size=1)", "rearranged"),
        ("expand(y, axis=0, size=2)", "computed"),
        ("concat(y, y, axis=0)", "computed"),
        ("scale(y, factor=2.0)", "computed"),
        ("scale(y, factor=c)", "computed"),
        ("add(y, y)", "computed"),
        ("relu(y)", "computed"),
        ("maximum(y, y)", "computed"),
        ("sum_axis(y, axis=0)", "computed"),
        ("max_axis(y, axis=0)", "computed"),
        ("matmul(y, z)", "computed"),
        ("ones2(size0=2, size1=3)", "constant"),
        ("exp(lower_triangle(rows=3, columns=3))", "constant"),
        ("scale(slice(y, axis=0, start=4, size=2), factor=3.0)", "constant"),
    ],
)
def test_kind_of_a_value_follows_from_its_elements(value, kind):
    shapes = {"y": (4, 6), "z": (6, 4)}
    if "multiply" in value:
        shapes["y"] = (6, 6)
    (parsed,) = parse_values(value, dict.fromkeys(shapes, 2))
    assert kind_of(parsed, shapes, {}) == kind


def test_maximum_of_one_element_is_that_element():
    (value,) = parse_values("max_axis(y, axis=0)", {"y": 2})
    assert kind_of(value, {"y": (1, 3)}, {}) == "rearranged"


@settings(max_examples=50, deadline=None)
@given(case=applied(cut=False), seed=seeds)
def test_marks_agree_with_values(case, seed):
    """An element of an operand by the marks is one for numbers, and a constant by the marks does
    not depend on the operands."""
    first, second = (parts_of_leaves(case.graph, s, FIELD) for s in (seed, seed + 1))
    shapes = {node.leaf.name: node.types[0].shape for node in case.graph.leaves}
    for value in case.graph.outputs:
        kind = kind_of(value, shapes, {})
        outputs = [
            evaluate_whole(Graph((value,)), {n: v[0] for n, v in parts.items()}, FIELD)[0]
            for parts in (first, second)
        ]
        given = {int(number) for parts in first.values() for number in parts.flat}
        if kind == "rearranged":
            assert {int(number) for number in np.asarray(outputs[0]).flat} <= given
        elif kind == "constant":
            assert np.array_equal(*outputs)
        event(kind)
