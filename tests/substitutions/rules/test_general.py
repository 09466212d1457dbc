"""General rules: the most general form, one text for equal rules, and instances."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import check_each, each
from support.rules.rule_files import lines, parse

from pcg.graph.graph import Graph, Node, Value
from pcg.plan.text import parse_values
from pcg.types.operator import Call
from substitutions.rules.general import (
    GeneralForm,
    at_counts,
    canonical,
    general,
    is_instance,
    most_general,
)
from substitutions.rules.rule import input_ranks
from substitutions.rules.store import load_library
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.runs import free_runs

SUMS = ("|+2*a*b)", "|+a+b)")
"""Ends of sizes that are sums. No instance of these is recognised."""
SOUND = sorted(set(lines("sound")))
RECOGNISED = [line for line in SOUND if not any(end in line for end in SUMS)]


def form(text: str) -> GeneralForm:
    """The pair of a line such as ``x:2 | LEFT == RIGHT``, with all its runs."""
    left, right = parse(text)
    return GeneralForm(left, right, free_runs(left, right))


def widest(text: str) -> GeneralForm:
    return canonical(general(*parse(text)))


def ranks(rule: GeneralForm) -> dict[str, int]:
    return dict(input_ranks((*rule.left, *rule.right)))


# -- the most general form --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "inputs"),
    [
        ("x:2 | relu(relu(x)) == relu(x)", "relu(relu(x)) == relu(x)", {"x": 1}),
        (
            "x:1 | combine(exp(partition(x, dim=0, degree=k)), dim=0, degree=k) == exp(x)",
            "combine(exp(partition(x, dim=1, degree=k)), dim=1, degree=k) == exp(x)",
            {"x": 3},
        ),
        (
            (
                "x:2 y:2 w:2 | matmul(concat(x, y, axis=0), w)"
                " == concat(matmul(x, w), matmul(y, w), axis=0)"
            ),
            "concat(matmul(x, y), matmul(z, y), axis=1) == matmul(concat(x, z, axis=1), y)",
            {"x": 4, "y": 2, "z": 4},
        ),
        (
            "x:2 | exp(transpose(x, dim0=0, dim1=1)) == transpose(exp(x), dim0=0, dim1=1)",
            "exp(transpose(x, dim0=1, dim1=3)) == transpose(exp(x), dim0=1, dim1=3)",
            {"x": 5},
        ),
        (
            "x:2 | exp(flatten(x, axis=0)) == flatten(exp(x), axis=0)",
            "exp(flatten(x, axis=1)) == flatten(exp(x), axis=1)",
            {"x": 4},
        ),
        (
            (
                "x:1 | unflatten(exp(x), axis=0, outer=n, inner=m)"
                " == exp(unflatten(x, axis=0, outer=n, inner=m))"
            ),
            (
                "exp(unflatten(x, axis=1, outer=outer, inner=inner))"
                " == unflatten(exp(x), axis=1, outer=outer, inner=inner)"
            ),
            {"x": 3},
        ),
        (
            "x:0 | sum_axis(expand(x, axis=0, size=s), axis=0) == scale(x, factor=s)",
            "sum_axis(expand(x, axis=1, size=size), axis=1) == scale(x, factor=size)",
            {"x": 2},
        ),
        (
            "x:3 y:3 | batch_matmul(exp(x), y) == batch_matmul(exp(x), y)",
            "batch_matmul(exp(x), y) == batch_matmul(exp(x), y)",
            {"x": 3, "y": 3},
        ),
        (
            "x:2 | multiply(x, ones2(size0=n, size1=m)) == x",
            "multiply(x, ones2(size0=size, size1=size2)) == x",
            {"x": 2},
        ),
        (
            "x:2 | matmul(x, identity_matrix(size=n)) == x",
            "matmul(x, identity_matrix(size=size)) == x",
            {"x": 2},
        ),
        (
            "x:2 | split(concat(x, x, axis=1), axis=1, at=|x.1|).0 == x",
            "split(concat(x, x, axis=1), axis=1, at=|x.1|).0 == x",
            {"x": 3},
        ),
    ],
)
def test_an_axis_is_inserted_wherever_one_may_be(text: str, expected: str, inputs: dict[str, int]):
    actual = widest(text)
    assert (actual.text, ranks(actual)) == (expected, inputs)


@each("text", RECOGNISED)
def test_a_pair_is_an_instance_of_its_general_form(text: str):
    pair = parse(text)
    general_form = general(*pair)
    assert general_form.runs == free_runs(*general_form.pair)
    assert is_instance(GeneralForm(*pair), general_form)
    assert all(node.ranks for node in Graph((*general_form.left, *general_form.right)).nodes)


@each("count", [0, 2])
@pytest.mark.parametrize(
    "numbers", [range(0, 1000, 160), pytest.param(range(0, 1000, 40), marks=pytest.mark.soak)]
)
def test_rules_of_the_library_are_proved_at_other_ranks(numbers: range, count: int):
    check_each(numbers, lambda number: proved_at_other_ranks(number, count))


def proved_at_other_ranks(number: int, count: int):
    rules = load_library().rules
    rule = rules[number % len(rules)]
    if rule.requires:
        wider = rule.at([count] * len(rule.runs))
        assert wider is not None
        decision = decide(wider.left, wider.right, wider.requirements)
    else:
        general_form = general(rule.left, rule.right)
        pair = at_counts(general_form, (count,) * len(general_form.runs))
        assert pair is not None
        decision = decide(*pair)
    if decision.reason != "no small sizes fit the degrees":
        assert decision.verdict is Verdict.PROVED, decision.reason


@each("text", SOUND[::3])
@settings(max_examples=7, deadline=None)
@given(data=st.data())
def test_all_instances_of_a_form_have_the_same_general_form(text: str, data: st.DataObject):
    """The form does not depend on the ranks at which a rule was found."""
    general_form = general(*parse(text))
    counts = tuple(data.draw(st.integers(0, 2)) for _ in general_form.runs)
    pair = at_counts(general_form, counts)
    if pair is not None:
        assert canonical(general(*pair)) == canonical(general_form)


# -- one text for equal rules -----------------------------------------------------------------


def shuffled(pair: GeneralForm, data: st.DataObject) -> GeneralForm:
    """The same rule with other names, orders of operands and directions."""
    names = list(ranks(pair))
    renamed = dict(
        zip(names, data.draw(st.permutations(["p", "x", "q", "y", "r", "s"])), strict=False)
    )
    made: dict[Node, Node] = {}
    for node in Graph((*pair.left, *pair.right)).nodes:
        if node.is_leaf:
            leaf = node.leaf
            made[node] = type(node)(type(leaf)(leaf.kind, renamed[leaf.name], leaf.rank))
            continue
        inputs = tuple(Value(made[v.node], v.port) for v in node.inputs)
        if node.operator_call.operator.commutative and data.draw(st.booleans()):
            inputs = inputs[::-1]
        made[node] = Node(node.call, inputs)
    sides = [tuple(Value(made[v.node], v.port) for v in side) for side in pair.pair]
    order = data.draw(st.permutations(range(len(sides[0]))))
    sides = [tuple(side[place] for place in order) for side in sides]
    if data.draw(st.booleans()):
        sides.reverse()
    return GeneralForm(sides[0], sides[1], pair.runs)


NAMED = [line for line in SOUND if "|x." not in line.split(" | ")[1]]
COMMUTING = (
    "x:1 y:1 z:1 | add(x, add(y, z)) == add(add(x, z), y)",
    "x:1 y:1 z:1 | multiply(add(x, y), add(y, z)) == multiply(add(z, y), add(x, y))",
    "x:1 y:1 | add(multiply(x, y), multiply(x, x)) == multiply(add(y, x), x)",
    (
        "x:2 y:2 | split(concat(x, y, axis=0), axis=0, at=at).0,"
        " split(concat(x, y, axis=0), axis=0, at=at).1 == x, y"
    ),
)


@each("text", [*NAMED[::4], *COMMUTING])
@settings(max_examples=7, deadline=None)
@given(data=st.data())
def test_names_orders_and_directions_make_no_other_rule(text: str, data: st.DataObject):
    rule = form(text)
    same = canonical(rule)
    assert canonical(shuffled(rule, data)).text == same.text
    assert canonical(same).text == same.text


def test_canonical_symbols_are_named_after_their_attribute():
    left = "partition(partition(split(x, axis=0, at=b).0, dim=0, degree=c), dim=0, degree=a)"
    right = "partition(partition(split(x, axis=0, at=b).0, dim=0, degree=a), dim=0, degree=c)"
    text = canonical(form(f"x:1 | {left} == {right}")).text
    assert "at=at)" in text
    assert "degree=k)" in text
    assert "degree=k2)" in text
    assert "degree=a)" not in text


def test_sizes_are_renamed_with_their_inputs():
    text = "y:1 | split(concat(y, y, axis=0), axis=0, at=|y.0|).0 == y"
    assert "at=|x.0|" in canonical(form(text)).text


def test_left_side_is_the_larger_one_and_has_all_inputs():
    assert canonical(form("x:1 | x == relu(exp(x))")).text == "relu(exp(x)) == x"
    text = "x:1 y:1 | exp(exp(split(concat(x, y, axis=0), axis=0, at=a).0)) == exp(exp(x))"
    assert canonical(form(text)).text.endswith("== exp(exp(x))")
    text = "x:1 y:1 | exp(exp(exp(x))) == split(concat(x, y, axis=0), axis=0, at=a).0"
    assert canonical(form(text)).text.startswith("split")


# -- instances --------------------------------------------------------------------------------


@each(
    ("special", "of"),
    [
        ("x:1 | relu(exp(x)) == exp(x)", "y:1 | relu(exp(y)) == exp(y)"),
        ("x:1 | exp(exp(x)) == relu(exp(exp(x)))", "y:1 | relu(exp(y)) == exp(y)"),
        ("x:3 | relu(relu(x)) == relu(x)", "x:1 | relu(relu(x)) == relu(x)"),
        ("x:0 | relu(relu(x)) == relu(x)", "x:1 | relu(relu(x)) == relu(x)"),
        (
            "x:1 | combine(partition(exp(x), dim=0, degree=2), dim=0, degree=2) == exp(x)",
            "x:3 | combine(partition(x, dim=1, degree=k), dim=1, degree=k) == x",
        ),
        (
            (
                "x:2 | transpose(scale(x, factor=c), dim0=0, dim1=1)"
                " == scale(transpose(x, dim0=0, dim1=1), factor=c)"
            ),
            (
                "x:5 | pointwise(transpose(x, dim0=1, dim1=3))"
                " == transpose(pointwise(x), dim0=1, dim1=3)"
            ),
        ),
        (
            (
                "x:2 y:2 | transpose(add(x, y), dim0=0, dim1=1)"
                " == add(transpose(y, dim0=0, dim1=1), transpose(x, dim0=0, dim1=1))"
            ),
            (
                "x:5 y:5 | transpose(pointwise2(x, y), dim0=1, dim1=3)"
                " == pointwise2(transpose(x, dim0=1, dim1=3), transpose(y, dim0=1, dim1=3))"
            ),
        ),
        (
            "x:1 y:1 | add(multiply(y, x), add(exp(x), y)) == add(add(y, multiply(x, y)), exp(x))",
            "x:1 y:1 z:1 | add(x, add(y, z)) == add(add(x, z), y)",
        ),
        (
            (
                "x:2 y:2 | y, x == split(concat(x, y, axis=0), axis=0, at=n).1,"
                " split(concat(x, y, axis=0), axis=0, at=n).0"
            ),
            (
                "x:3 y:3 | split(concat(x, y, axis=1), axis=1, at=n).0,"
                " split(concat(x, y, axis=1), axis=1, at=n).1 == x, y"
            ),
        ),
        (
            "x:2 | scale(scale(x, factor=2), factor=3) == scale(x, factor=6)",
            "x:1 | scale(scale(x, factor=a), factor=b) == scale(x, factor=a*b)",
        ),
        (
            "x:1 y:1 | split(concat(relu(x), y, axis=0), axis=0, at=|x.0|).0 == relu(x)",
            "x:3 y:3 | split(concat(x, y, axis=1), axis=1, at=|x.1|).0 == x",
        ),
        (
            "x:1 | pad(x, axis=0, before=2, size=|x.0|+7) == x",
            "x:3 | pad(x, axis=1, before=a, size=|x.1|+a+b) == x",
        ),
    ],
)
def test_special_rule_is_an_instance_of_its_general_form(special: str, of: str):
    assert is_instance(form(special), form(of))
    same = canonical(general(*form(special).pair)) == canonical(general(*form(of).pair))
    assert same or not is_instance(form(of), form(special))


@pytest.mark.parametrize(
    ("other", "of"),
    [
        ("x:1 | relu(exp(x)) == exp(x)", "x:1 | relu(relu(x)) == relu(x)"),
        ("x:1 y:1 | add(x, y) == add(x, x)", "x:1 | add(x, x) == add(x, x)"),
        (
            "x:2 | transpose(exp(x), dim0=0, dim1=1) == log(transpose(x, dim0=0, dim1=1))",
            (
                "x:5 | transpose(pointwise(x), dim0=1, dim1=3)"
                " == pointwise(transpose(x, dim0=1, dim1=3))"
            ),
        ),
        (
            (
                "x:2 | transpose(scale(x, factor=2), dim0=0, dim1=1)"
                " == scale(transpose(x, dim0=0, dim1=1), factor=3)"
            ),
            (
                "x:5 | transpose(pointwise(x), dim0=1, dim1=3)"
                " == pointwise(transpose(x, dim0=1, dim1=3))"
            ),
        ),
        (
            "x:1 | scale(scale(x, factor=2), factor=3) == scale(x, factor=7)",
            "x:1 | scale(scale(x, factor=a), factor=b) == scale(x, factor=a*b)",
        ),
        (
            "x:2 | partition(combine(x, dim=0, degree=k), dim=1, degree=k) == x",
            "x:3 | partition(combine(x, dim=1, degree=k), dim=1, degree=k) == x",
        ),
        (
            "x:1 | partition(combine(x, dim=0, degree=2), dim=0, degree=3) == x",
            "x:3 | partition(combine(x, dim=1, degree=k), dim=1, degree=k) == x",
        ),
        (
            "x:1 | split(concat(x, x, axis=0), axis=0, at=|x.0|).0 == x",
            "x:1 | split(concat(x, x, axis=0), axis=0, at=1).0 == x",
        ),
        (
            "x:1 | pad(x, axis=0, before=2, size=|x.0|+1) == x",
            "x:3 | pad(x, axis=1, before=a, size=|x.1|+a+b) == x",
        ),
        (
            "x:2 y:2 | split(concat(x, y, axis=1), axis=1, at=1).0 == x",
            "x:2 y:2 | split(concat(x, y, axis=0), axis=0, at=n).0 == x",
        ),
    ],
)
def test_pair_that_is_no_instance_is_told_apart(other: str, of: str):
    assert not is_instance(form(other), form(of))


def test_a_rule_for_all_ranks_is_no_instance_of_one_for_a_rank():
    wide = form("x:1 | relu(relu(x)) == relu(x)")
    narrow = GeneralForm(wide.left, wide.right)
    assert is_instance(narrow, wide)
    assert not is_instance(wide, narrow)


def test_an_operand_that_matches_in_one_order_only_is_found():
    """The first order of the inner sum fits. Only the outer operand shows that it is wrong."""
    general_rule = form("x:1 y:1 | multiply(add(x, y), exp(x)) == exp(multiply(x, y))")
    special = form("p:1 q:1 | multiply(add(q, p), exp(q)) == exp(multiply(p, q))")
    assert is_instance(special, general_rule)
    assert is_instance(canonical(special), general_rule)


def test_the_most_general_are_kept_and_the_first_of_equals():
    rules = [
        form("x:2 | relu(exp(x)) == exp(x)"),
        form("x:1 | relu(relu(exp(x))) == relu(exp(x))"),
        form("x:1 | relu(relu(x)) == relu(x)"),
        form("x:1 | relu(relu(x)) == relu(x)"),
        form("x:1 y:1 | add(x, y) == relu(add(y, x))"),
        form("x:1 | add(x, x) == relu(add(x, x))"),
        form("x:1 y:1 | relu(pointwise2(x, y)) == pointwise2(x, y)"),
    ]
    assert most_general(rules) == [rules[0], rules[2], rules[6]]


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_most_general_do_not_depend_on_the_order(data: st.DataObject):
    rules = [canonical(general(*parse(line))) for line in SOUND[::5]]
    kept = most_general(rules)
    assert {*most_general(data.draw(st.permutations(rules)))} == {*kept}
    assert all(any(is_instance(rule, other) for other in kept) for rule in rules)
    assert not [(a, b) for a in kept for b in kept if a != b and is_instance(a, b)]


def test_calls_of_a_general_form_print_and_parse():
    for line in SOUND[::2]:
        form = canonical(general(*parse(line)))
        sides = tuple(parse_values(side, ranks(form)) for side in form.text.split(" == "))
        assert sides == form.pair
        assert all(isinstance(n.call, Call) or n.is_leaf for n in Graph(sides[0]).nodes)
