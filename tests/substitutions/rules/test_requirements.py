"""Equations of sizes that a rule requires: read, moved with runs, stored, and checked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.errors import InputError
from pcg.language.poly import Poly
from pcg.plan.text import parse_graph
from substitutions.rules.concrete.expand import Expander
from substitutions.rules.match import build, matches
from substitutions.rules.requirements import hold, parse_requirement, requirement_text
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import ProofFile, parse_entry, rule_file
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.runs import free_runs

PROOF = ProofFile(side_conditions=1, digest="0", degrees={})


LEFT = "flatten(x, axis=1)"
RIGHT = "flatten(transpose(x, dim0=1, dim1=2), axis=1)"
"""The same elements in another order, or in the same order if one of both axes has size 1."""


def swap(*requires: str) -> Rule:
    rule = parse_rule("rule", {"x": 4}, LEFT, RIGHT)
    return replace(rule, runs=free_runs(rule.left, rule.right), requires=requires)


ONE = swap("|x.2| = 1")


def applied(rule: Rule, *sizes: int) -> bool:
    """Whether the rule can be applied to a merged tensor of these sizes."""
    axis = rule.text.split("axis=")[1][0]
    shape = ", ".join(map(str, sizes))
    graph = parse_graph(f"x = input[{shape}]\nreturn flatten(x, axis={axis})\n")
    return any(build(rule, match, {}) is not None for match in matches(rule, graph))


NAMES = st.sampled_from(["k", "s2", "|x.0|", "|y.12|"])
POLYS = st.lists(
    st.tuples(st.lists(NAMES, max_size=3).map(lambda m: tuple(sorted(m))), st.integers(-9, 9)),
    max_size=4,
).map(Poly.collect)


@given(POLYS, POLYS)
def test_printed_requirements_are_read_back(left, right):
    assert parse_requirement(requirement_text((left, right))) == (left, right)


@pytest.mark.parametrize(
    "text",
    ["", "|x.0|", "|x.0| = 1 = 1", "|x.0| = ", "|x.0| = 1.5", "|x| = 1", "a b = 1", "a == 1"],
)
def test_text_that_is_no_equation_is_refused(text):
    with pytest.raises(InputError):
        parse_requirement(text)


def test_equations_hold_for_numbers():
    equations = (parse_requirement("|x.0| = 2*k - 1"),)
    assert hold(equations, {"|x.0|": 5, "k": 3})
    assert not hold(equations, {"|x.0|": 6, "k": 3})
    assert not hold(equations, {"|x.0|": 5})
    assert not hold(equations, {"|x.0|": 5, "k": 3.0})
    assert hold((), {})


def test_rule_is_refuted_without_its_requirement_and_proved_with_it():
    assert decide(ONE.left, ONE.right).verdict is Verdict.REFUTED
    assert decide(ONE.left, ONE.right, ONE.requirements).verdict is Verdict.PROVED


def test_a_rule_is_applied_only_where_it_holds():
    assert applied(ONE, 3, 4, 1, 2)
    assert not applied(ONE, 3, 1, 4, 2)
    assert not applied(ONE, 3, 4, 4, 2)
    # Only the equation prevents the application: the types are equal.
    assert applied(replace(ONE, requires=()), 3, 4, 4, 2)


def test_requirement_names_the_same_axis_at_other_ranks():
    assert ONE.runs == ((("x", 0),), (("x", 3),))
    wider, narrower = ONE.at((3, 0)), ONE.at((0, 2))
    assert wider is not None
    assert narrower is not None
    assert wider.requires == ("|x.4| = 1",)
    assert narrower.requires == ("|x.1| = 1",)
    assert applied(wider, 2, 2, 2, 5, 1)
    assert not applied(wider, 2, 2, 1, 5, 2)
    for made in (wider, narrower):
        assert decide(made.left, made.right, made.requirements).verdict is Verdict.PROVED


def test_reversed_and_expanded_rules_keep_the_requirement():
    assert ONE.reversed.requires == ONE.requires
    stands = parse_rule("f", {"x": 3}, f"pointwise({LEFT})", f"pointwise({RIGHT})")
    stands = replace(stands, requires=("|x.2| = 1",))
    relu = parse_graph("x = input[2, 3, 1]\nreturn relu(flatten(x, axis=1))\n")
    (made,) = Expander([stands]).concrete(relu)
    assert made.name == "f[relu]"
    assert made.requires == ("|x.2| = 1",)


def test_rules_that_differ_in_their_requirement_alone_are_both_kept():
    graph = parse_graph("x = input[2, 3, 1, 2]\nreturn flatten(x, axis=1)\n")
    other = replace(swap("|x.1| = 1"), name="other")
    made = tuple(Expander([ONE, other, replace(ONE, name="again")]).concrete(graph))
    names = {rule.name.split("[")[0] for rule in made}
    assert names == {"rule", "other"}
    assert len({(rule.inputs, rule.text, rule.requires) for rule in made}) == len(made)


def test_requirement_is_stored_in_a_file_and_read_back():
    entry = rule_file(ONE, PROOF)
    assert entry.requires == ("|x.2| = 1",)
    assert parse_entry(entry) == ONE


@pytest.mark.parametrize(
    ("requires", "problem"),
    [
        ("|x.2| > 1", "rule rule: expected 'SIZE = SIZE'"),
        ("|x.4| = 1", r"rule rule: requires |x.4|, which is no size of an input"),
        ("|y.0| = 1", r"rule rule: requires |y.0|, which is no size of an input"),
        ("|x.3| = 1", r"rule rule: requires |x.3|, which may be any number of axes"),
        ("s = 1", "rule rule: requires s, which no attribute has"),
    ],
)
def test_impossible_requirement_in_a_file_is_refused(requires, problem):
    entry = rule_file(ONE, PROOF).model_copy(update={"requires": (requires,)})
    with pytest.raises(InputError) as caught:
        parse_entry(entry)
    assert problem in str(caught.value)
