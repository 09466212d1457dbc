"""Concrete rules for a graph: their ranks and operators, and the rules that are left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from substitutions.rules.concrete.expand import Expander
from substitutions.rules.concrete.rooted import ListedRules, RootedRules, is_parallel, root_of
from substitutions.rules.match import build, matches, rewrite
from substitutions.rules.rule import Rule, parse_rule, side_text
from substitutions.rules.store import Library, load_library
from verifier.trusted.sizes.runs import free_runs


def general(name: str, left: str, right: str, **inputs: int) -> Rule:
    """A rule whose free axes are all runs."""
    rule = parse_rule(name, inputs, left, right)
    return replace(rule, runs=free_runs(rule.left, rule.right))


CUT = general(
    "cut", "combine(pointwise(partition(x, dim=1, degree=k)), dim=1, degree=k)", "pointwise(x)", x=3
)
CANCEL = general("cancel", "combine(partition(x, dim=1, degree=k), dim=1, degree=k)", "x", x=3)
SILU = general("silu", "silu(x)", "multiply(x, sigmoid(x))", x=1)
SPLIT = general(
    "split", "split(sigmoid(x), axis=1, at=at).0", "sigmoid(split(x, axis=1, at=at).0)", x=3
)
TWICE = general("twice", "transpose(transpose(x, dim0=1, dim1=3), dim0=1, dim1=3)", "x", x=5)
MATMUL = general(
    "matmul", "matmul(scale(x, factor=factor), y)", "matmul(x, scale(y, factor=factor))", x=2, y=2
)
RULES = (CUT, CANCEL, SILU, SPLIT, TWICE, MATMUL)
TWO = parse_graph("x = input[4, 6]\nreturn relu(scale(x, factor=2.0))\n")


def names(rules: Iterable[Rule]) -> set[str]:
    return {rule.name for rule in rules}


def test_rules_are_made_for_every_rank_and_operator_of_the_graph():
    assert names(Expander((CUT,)).concrete(TWO)) == {
        f"cut[{counts};{operator}]"
        for counts in ("0,0", "0,1", "1,0")
        for operator in ("relu", "scale")
    }
    assert names(Expander((CANCEL,)).concrete(TWO)) == {"cancel[0,0]", "cancel[0,1]", "cancel[1,0]"}


def test_no_stand_in_is_left():
    for rule in Expander(RULES).concrete(TWO):
        assert not rule.stand_ins
        assert not rule.runs


def test_intermediate_values_may_have_one_more_axis():
    wide = general("wide", "sum_axis(expand(x, axis=1, size=2), axis=1)", "add(x, x)", x=2)
    graph = parse_graph("x = input[4]\nreturn add(x, x)\n")
    assert names(Expander((wide,)).concrete(graph)) == {"wide[0,0]", "wide[0,1]", "wide[1,0]"}
    assert all(rule.inputs[0][1] <= 1 for rule in Expander((wide,)).concrete(graph))
    deep = general(
        "deep",
        "sum_axis(sum_axis(expand(expand(x, axis=1, size=2), axis=1, size=2), axis=1), axis=1)",
        "add(add(x, x), add(x, x))",
        x=2,
    )
    assert "deep[0,1]" not in names(Expander((deep,)).concrete(graph))


def test_rules_about_operators_that_are_not_reached_are_left_out():
    assert not names(Expander((SILU, SPLIT, TWICE, MATMUL)).concrete(TWO))
    graph = parse_graph("x = input[4]\nreturn silu(x)\n")
    # silu leads to sigmoid. split is not reached in any case.
    assert names(Expander((SILU, SPLIT)).concrete(graph)) == {"silu[0]", "silu[1]"}
    both = parse_graph("x = input[4]\nreturn split(silu(x), axis=0, at=2).0\n")
    assert names(Expander((SILU, SPLIT)).concrete(both)) == {"silu[0]", "silu[1]", "split[0,0]"}


def test_stand_ins_take_operators_that_rewrites_reach():
    graph = parse_graph("x = input[4]\nreturn silu(x)\n")
    expanded = names(Expander((CUT, SILU)).concrete(graph))
    assert {name for name in expanded if name.startswith("cut")} == {
        "cut[0,0;sigmoid]",
        "cut[0,0;silu]",
    }


def test_a_rule_that_starts_anywhere_brings_in_nothing_new():
    assert not names(Expander((TWICE,)).concrete(TWO))
    turned = parse_graph("x = input[4, 6]\nreturn transpose(x, dim0=0, dim1=1)\n")
    assert names(Expander((TWICE,)).concrete(turned)) == {"twice[0,0,0]"}


def test_each_rule_once():
    again = replace(CUT, name="again")
    assert names(Expander((CUT, again)).concrete(TWO)) == names(Expander((CUT,)).concrete(TWO))


def test_library_remembers_the_rules_made_for_a_graph():
    library = Library(RULES, "none")
    other = parse_graph("x = input[3, 5]\nreturn scale(relu(x), factor=3.0)\n")
    assert library.concrete(TWO) is library.concrete(other)
    assert library.concrete(TWO) is not library.concrete(parse_graph("x = input[4]\nreturn x\n"))
    assert tuple(library.concrete(TWO)) == tuple(Expander(RULES).concrete(TWO))


def check_roots(rules: RootedRules, again: RootedRules) -> None:
    """Each direction of the rules is found at its root, in order. ``again``: the same rules, of
    which none has been made yet."""
    listed = ListedRules(rules)
    roots = {root_of(way.left) for rule in listed for way in (rule, rule.reversed)}
    for root, parallel in product(sorted(roots, key=str), (False, True)):
        expected = [rule.name for rule in listed.rooted(root, parallel=parallel)]
        assert [rule.name for rule in again.rooted(root, parallel=parallel)] == expected
    assert not again.rooted("none", parallel=True)


def test_directions_are_made_by_their_root():
    check_roots(Expander(RULES).concrete(TWO), Expander(RULES).concrete(TWO))
    both = parse_graph("x = input[4, 6]\nreturn split(silu(x), axis=0, at=2).0\n")
    check_roots(Expander(RULES).concrete(both), Expander(RULES).concrete(both))


def test_directions_of_the_committed_library_are_made_by_their_root():
    library = load_library()
    check_roots(library.concrete(TWO), Library(library.rules, "again").concrete(TWO))


def test_decompositions_have_no_parallel_operators():
    """The search looks for them among the rules without."""
    rules = (rule for rule in load_library().rules if rule.family == "decomposition")
    assert not any(is_parallel(rule) for rule in rules)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_general_rule_is_applied_at_every_axis(dim):
    results = [
        side_text(rewrite(TWO, match, outputs).outputs)
        for rule in Expander((CUT,)).concrete(TWO)
        for match in matches(rule.reversed, TWO)
        if (outputs := build(rule.reversed, match, {"k": 2})) is not None
    ]
    cut = f"partition(x, dim={dim}, degree=2)"
    assert f"relu(combine(scale({cut}, factor=2.0), dim={dim}, degree=2))" in results
    assert len(results) == 4


def test_the_committed_library_for_a_graph():
    library = load_library()
    graph = Graph(TWO.outputs)
    concrete = tuple(library.concrete(graph))
    assert len(names(concrete)) == len(concrete)
    assert all(node.ranks[0] <= 3 for rule in concrete for node in Graph(rule.left).nodes)
    reached = {n.name for r in concrete for n in Graph((*r.left, *r.right)).nodes if not n.is_leaf}
    assert {"relu", "scale", "partition"} <= reached
    assert "conv2d" not in reached
