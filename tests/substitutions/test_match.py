"""Matching and rewriting, on the smallest graphs that show each part."""

from __future__ import annotations

import pytest

from pcg.errors import InputError
from pcg.graph import Graph
from pcg.text import parse_graph
from substitutions.match import build, matches, matches_at, rewrite
from substitutions.rule import Rule, operators_in, parse_rule, side_text

ROW_CUT = parse_rule(
    "row cut",
    {"x": 2, "w": 2},
    "matmul(x, w)",
    "combine(matmul(partition(x, dim=0, degree=k), replicate(w, degree=k)), dim=0, degree=k)",
)
MLP = parse_graph(
    """
    x = input[8, 6]
    v = weight[6, 4]
    w = weight[4, 2]
    h = relu(matmul(x, v))
    return matmul(h, w)
    """
)


def rule(left: str, right: str, **inputs: int) -> Rule:
    return parse_rule("rule", inputs, left, right)


def rewrites(rule: Rule, graph: Graph, **free: int) -> list[str]:
    found: list[str] = []
    for match in matches(rule, graph):
        outputs = build(rule, match, free)
        if outputs is not None:
            found.append(side_text(rewrite(graph, match, outputs).outputs))
    return found


def test_every_place_is_found():
    assert [match.outputs[0].type.shape for match in matches(ROW_CUT, MLP)] == [(8, 4), (8, 2)]
    first, second = rewrites(ROW_CUT, MLP, k=2)
    assert "matmul(relu(combine(matmul(partition(x, dim=0, degree=2), replicate(v" in first
    assert second.startswith("combine(matmul(partition(relu(matmul(x, v)), dim=0, degree=2)")


def test_a_degree_that_does_not_divide_is_no_application():
    assert len(rewrites(ROW_CUT, MLP, k=8)) == 2
    assert rewrites(ROW_CUT, MLP, k=3) == []


def test_types_are_inferred_again():
    """A rule is not applied where its right side has no type, or another one."""
    cut = parse_graph("x = input[8, 6/2]\nreturn relu(x)\n")
    swap = rule("relu(x)", "combine(relu(partition(x, dim=0, degree=k)), dim=0, degree=k)", x=2)
    assert len(rewrites(swap, cut, k=2)) == 1
    wrong = rule("relu(x)", "relu(partition(x, dim=0, degree=k))", x=2)
    assert list(matches(wrong, cut))
    assert rewrites(wrong, cut, k=2) == []
    softmax = parse_graph("x = input[8, 6]\nreturn softmax(x, axis=1)\n")
    refused = rule("softmax(x, axis=1)", "softmax(partition(x, dim=1, degree=k), axis=1)", x=2)
    assert rewrites(refused, softmax, k=2) == []


def test_ranks_have_to_agree():
    assert not list(matches(rule("relu(x)", "relu(x)", x=3), MLP))


def test_symbols_are_bound_once():
    same = rule("combine(combine(x, dim=0, degree=k), dim=0, degree=k)", "x", x=1)
    other = rule(
        "combine(combine(x, dim=0, degree=j), dim=0, degree=k)",
        "combine(combine(x, dim=0, degree=k), dim=0, degree=j)",
        x=1,
    )
    graph = parse_graph(
        "x = input[12/6]\nreturn combine(combine(x, dim=0, degree=3), dim=0, degree=2)\n"
    )
    assert not list(matches(same, graph))
    assert rewrites(other, graph) == ["combine(combine(x, dim=0, degree=2), dim=0, degree=3)"]


def test_an_input_read_twice_is_one_value():
    double = rule("add(x, x)", "scale(x, factor=2.0)", x=1)
    assert rewrites(double, parse_graph("x = input[4]\nreturn add(x, x)\n")) == [
        "scale(x, factor=2.0)"
    ]
    assert rewrites(double, parse_graph("x = input[4]\ny = input[4]\nreturn add(x, y)\n")) == []


def test_operands_of_commutative_operators_match_in_any_order():
    distribute = rule("add(x, scale(y, factor=a))", "add(scale(y, factor=a), x)", x=1, y=1)
    graph = parse_graph("x = input[4]\ny = input[4]\nreturn add(scale(y, factor=3.0), x)\n")
    assert len(list(matches(distribute, graph))) == 1


def test_several_outputs_of_one_operator():
    both = rule(
        "split(concat(x, y, axis=0), axis=0, at=s).0, split(concat(x, y, axis=0), axis=0, at=s).1",
        "x, y",
        x=1,
        y=1,
    )
    text = (
        "x = input[4]\ny = input[{}]\n"
        "a, b = split(concat(x, y, axis=0), axis=0, at=4)\nreturn b, a\n"
    )
    assert rewrites(both, parse_graph(text.format(2))) == ["y, x"]
    # At 4 the halves are as long, at 5 the types differ.
    assert rewrites(both, parse_graph(text.format(4))) == ["y, x"]
    assert rewrites(both, parse_graph(text.format(4).replace("at=4", "at=5"))) == []


def test_sizes_of_inputs_are_known_on_the_right():
    back = rule("x", "unflatten(flatten(x, axis=0), axis=0, outer=|x.0|, inner=|x.1|)", x=2)
    (text,) = rewrites(back, parse_graph("x = input[4, 3]\nreturn x\n"))
    assert text == "unflatten(flatten(x, axis=0), axis=0, outer=4, inner=3)"


def test_matches_at_one_operator():
    root = MLP.outputs[0].node
    (match,) = matches_at(ROW_CUT, root)
    assert match.outputs == MLP.outputs
    assert {name: value.type.shape for name, value in match.values.items()} == {
        "x": (8, 4),
        "w": (4, 2),
    }


def test_properties_of_rules():
    assert ROW_CUT.free_symbols == {"k"}
    assert ROW_CUT.is_applicable
    assert ROW_CUT.reversed.free_symbols == frozenset()
    assert not ROW_CUT.only_moves
    assert operators_in(ROW_CUT.right) == 4
    assert ROW_CUT.text == f"{side_text(ROW_CUT.left)} == {side_text(ROW_CUT.right)}"
    assert not rule("x", "split(concat(x, y, axis=0), axis=0, at=|x.0|).0", x=1, y=1).is_applicable
    assert rule("combine(x, dim=0, degree=k)", "batch(x, dim=0, degree=k)", x=1).only_moves


def test_an_ill_formed_rule_is_refused_when_it_is_made():
    with pytest.raises(InputError, match="1 outputs on the left, 2 on the right"):
        rule("x", "x, x", x=1)
    with pytest.raises(InputError, match="rule rule, right: unknown value 'y'"):
        rule("x", "relu(y)", x=1)
    with pytest.raises(InputError, match="input v of rank 2 is not stated"):
        Rule("r", (("x", 1),), MLP.outputs, MLP.outputs)
