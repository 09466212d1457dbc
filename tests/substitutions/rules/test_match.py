"""Matching and rewriting, on the smallest graphs for each part."""

from __future__ import annotations

from random import Random

import pytest
from support.graphs.random_graphs import random_graph

from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from substitutions.rules.match import build, could_match, matches, matches_at, rewrite
from substitutions.rules.rule import Rule, operators_in, parse_rule, side_text
from substitutions.rules.store import load_library

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
    results: list[str] = []
    for match in matches(rule, graph):
        outputs = build(rule, match, free)
        if outputs is not None:
            results.append(side_text(rewrite(graph, match, outputs).outputs))
    return results


def test_every_place_is_found():
    assert [match.outputs[0].type.shape for match in matches(ROW_CUT, MLP)] == [(8, 4), (8, 2)]
    first, second = rewrites(ROW_CUT, MLP, k=2)
    assert "matmul(relu(combine(matmul(partition(x, dim=0, degree=2), replicate(v" in first
    assert second.startswith("combine(matmul(partition(relu(matmul(x, v)), dim=0, degree=2)")


def test_a_degree_that_does_not_divide_is_no_application():
    assert len(rewrites(ROW_CUT, MLP, k=8)) == 2
    assert rewrites(ROW_CUT, MLP, k=3) == []


def test_types_are_inferred_again():
    """A rule is not applied if its right side has no type or another one."""
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
    # At 4 both halves have equal size, at 5 the types differ.
    assert rewrites(both, parse_graph(text.format(4))) == ["y, x"]
    assert rewrites(both, parse_graph(text.format(4).replace("at=4", "at=5"))) == []


MERGE = rule(
    "matmul(x, y), matmul(x, z)",
    "split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).0,"
    " split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).1",
    x=2,
    y=2,
    z=2,
)


def test_outputs_of_different_operators_match_through_a_shared_input():
    text = """
    x = input[4, 6]
    a = weight[6, 2]
    b = weight[6, 3]
    other = weight[6, 5]
    h = relu(matmul(x, a))
    return matmul(x, b), h, matmul(relu(x), other)
    """
    rewritten = rewrites(MERGE, parse_graph(text))
    merged = "split(matmul(x, concat(b, a, axis=1)), axis=1, at=3)"
    assert f"{merged}.0, relu({merged}.1), matmul(relu(x), other)" in rewritten
    assert len(rewritten) == 2  # in either order


def test_three_operators_that_share_an_input_are_merged_in_pairs():
    text = "x = input[4, 6]\n" + "".join(f"w{i} = weight[6, {i + 2}]\n" for i in range(3))
    graph = parse_graph(f"{text}return matmul(x, w0), matmul(x, w1), matmul(x, w2)\n")
    assert len(rewrites(MERGE, graph)) == 6


def test_value_computed_from_an_output_is_no_input_of_the_match():
    """Merging a product with one of its own users would need the result to compute it."""
    graph = parse_graph("x = input[4, 4]\na = weight[4, 4]\nreturn matmul(x, relu(matmul(x, a)))\n")
    assert rewrites(MERGE, graph) == []
    apart = parse_graph(
        "x = input[4, 4]\na = weight[4, 4]\nb = weight[4, 4]\n"
        "return matmul(x, a), matmul(x, relu(matmul(x, b)))\n"
    )
    # a with b, and a with a value computed from b, each in two orders.
    assert len(rewrites(MERGE, apart)) == 4


def test_one_operator_is_not_merged_with_itself():
    graph = parse_graph("x = input[4, 6]\na = weight[6, 2]\nreturn matmul(x, a)\n")
    assert rewrites(MERGE, graph) == []


def test_an_input_may_be_an_output():
    kept = rule(
        "x, concat(x, y, axis=0)",
        "split(concat(x, y, axis=0), axis=0, at=|x.0|).0, concat(x, y, axis=0)",
        x=1,
        y=1,
    )
    graph = parse_graph("x = input[4]\ny = input[2]\nreturn relu(x), concat(x, y, axis=0)\n")
    (rewritten,) = rewrites(kept, graph)
    assert rewritten.startswith("relu(split(concat(x, y, axis=0), axis=0, at=4).0), ")


def test_outputs_that_share_nothing_are_not_looked_for():
    """There are as many of these as pairs of operators."""
    glued = rule("relu(x), exp(y)", "relu(x), exp(y)", x=1, y=1)
    graph = parse_graph("x = input[4]\ny = input[4]\nreturn relu(x), exp(y)\n")
    assert list(matches(glued, graph)) == []


def test_sum_of_symbols_in_an_attribute_has_to_hold():
    """No type gives the start of a slice."""
    second = rule("slice(concat(x, y, axis=0), axis=0, start=|x.0|, size=|y.0|)", "y", x=1, y=1)
    text = "x = input[3]\ny = input[3]\nreturn slice(concat(x, y, axis=0), axis=0, {})\n"
    assert rewrites(second, parse_graph(text.format("start=3, size=3"))) == ["y"]
    assert rewrites(second, parse_graph(text.format("start=0, size=3"))) == []
    joined = rule(
        "concat(slice(x, axis=0, start=s, size=t), slice(x, axis=0, start=s + t, size=u), axis=0)",
        "slice(x, axis=0, start=s, size=t + u)",
        x=1,
    )
    text = (
        "x = input[9]\na = slice(x, axis=0, start=1, size=2)\n"
        "b = slice(x, axis=0, start={}, size=4)\nreturn concat(a, b, axis=0)\n"
    )
    assert rewrites(joined, parse_graph(text.format(3))) == ["slice(x, axis=0, start=1, size=6)"]
    assert rewrites(joined, parse_graph(text.format(4))) == []


def test_one_unknown_symbol_of_a_sum_or_product_is_solved_for():
    later = rule(
        "add(slice(x, axis=0, start=s, size=n), slice(x, axis=0, start=s + 2*t, size=n))",
        "add(slice(x, axis=0, start=s, size=n), slice(x, axis=0, start=2*t + s, size=n))",
        x=1,
    )
    text = (
        "x = input[9]\na = slice(x, axis=0, start=1, size=2)\n"
        "b = slice(x, axis=0, start={}, size=2)\nreturn add(a, b)\n"
    )
    assert later.is_applicable
    solutions = {match.symbols["t"] for match in matches(later, parse_graph(text.format(5)))}
    assert solutions == {2, -2}  # either operand of an addition may be the later one
    assert list(matches(later, parse_graph(text.format(4)))) == []


def test_real_attributes_may_be_products():
    both = rule("scale(scale(x, factor=a), factor=b)", "scale(x, factor=a*b)", x=1)
    graph = parse_graph("x = input[4]\nreturn scale(scale(x, factor=3.0), factor=0.5)\n")
    assert rewrites(both, graph) == ["scale(x, factor=1.5)"]
    assert both.reversed.free_symbols == {"a", "b"}
    assert not both.reversed.is_applicable


def test_sizes_of_inputs_are_known_on_the_right():
    back = rule("x", "unflatten(flatten(x, axis=0), axis=0, outer=|x.0|, inner=|x.1|)", x=2)
    (text,) = rewrites(back, parse_graph("x = input[4, 3]\nreturn x\n"))
    assert text == "unflatten(flatten(x, axis=0), axis=0, outer=4, inner=3)"


def test_matches_at_one_operator():
    root = MLP.outputs[0].node
    (match,) = matches_at(ROW_CUT, root, MLP)
    assert match.outputs == MLP.outputs
    assert {name: value.type.shape for name, value in match.values.items()} == {
        "x": (8, 4),
        "w": (4, 2),
    }


def test_properties_of_rules():
    assert ROW_CUT.free_symbols == {"k"}
    assert ROW_CUT.is_applicable
    assert ROW_CUT.reversed.free_symbols == frozenset()
    assert operators_in(ROW_CUT.right) == 4
    assert ROW_CUT.text == f"{side_text(ROW_CUT.left)} == {side_text(ROW_CUT.right)}"
    assert not rule("x", "split(concat(x, y, axis=0), axis=0, at=|x.0|).0", x=1, y=1).is_applicable


def test_an_ill_formed_rule_is_refused_when_it_is_made():
    with pytest.raises(InputError, match="1 outputs on the left, 2 on the right"):
        rule("x", "x, x", x=1)
    with pytest.raises(InputError, match="rule rule, right: unknown value 'y'"):
        rule("x", "relu(y)", x=1)
    with pytest.raises(InputError, match="input v of rank 2 is not stated"):
        Rule("r", (("x", 1),), MLP.outputs, MLP.outputs)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(12), marks=pytest.mark.soak)])
def test_a_rule_that_matches_could_match(seeds: range):
    """The quick test by operators alone never leaves out a rule that matches."""
    library = load_library()
    told_apart = 0
    for seed in seeds:
        graph = random_graph(Random(seed), devices=1, size=6)
        for both in library.concrete(graph):
            for way in (both, both.reversed):
                for node in graph.nodes:
                    fits = next(matches_at(way, node, graph), None) is not None
                    assert not fits or could_match(way, node)
                    told_apart += not could_match(way, node)
    assert told_apart > 1000
