"""Derivations: how rules of other files follow from small ones, and which rules do not follow."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from support.paths import ROOT

from pcg.errors import InputError, NegativeAnswer
from pcg.graph.graph import Graph, leaf
from pcg.language.poly import Poly
from pcg.plan.text import parse_values
from substitutions.explain import sizes as explain_sizes
from substitutions.explain.explain import Explainer, named, skeleton
from substitutions.explain.sizes import NumberNames, typed_pairs
from substitutions.importers.operators import RuleSystem
from substitutions.importers.schema import read_foreign
from substitutions.importers.verdict import decide_foreign
from substitutions.rules import match
from substitutions.rules.rule import Rule, parse_rule, side_text
from unity.commands.rule_derivations import explain_file
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.sizes import SizeEquation

SAMPLES = ROOT.parent / "shared" / "rules"
ONE = Poly.of(1)
POINTWISE = """
relu(relu(x)) == relu(x)
add(add(x, y), z) == add(x, add(y, z))
multiply(multiply(x, y), z) == multiply(x, multiply(y, z))
multiply(x, add(y, z)) == add(multiply(x, y), multiply(x, z))
"""
MATRICES = """
matmul(matmul(x, y), z) == matmul(x, matmul(y, z))
matmul(add(x, y), z) == add(matmul(x, z), matmul(y, z))
matmul(x, add(y, z)) == add(matmul(x, y), matmul(x, z))
matmul(concat(x, y, axis=0), z) == concat(matmul(x, z), matmul(y, z), axis=0)
matmul(x, concat(y, z, axis=1)) == concat(matmul(x, y), matmul(x, z), axis=1)
"""
AXIS = """
concat(relu(x), relu(y), axis=a) == relu(concat(x, y, axis=a))
concat(add(x, y), add(z, u), axis=a) == add(concat(x, z, axis=a), concat(y, u, axis=a))
split(concat(x, y, axis=a), axis=a, at=|x.a|).0 == x
split(concat(x, y, axis=a), axis=a, at=|x.a|).1 == y
repeat_each(relu(x), axis=a, times=k) == relu(repeat_each(x, axis=a, times=k))
repeat_each(add(x, y), axis=a, times=k)
    == add(repeat_each(x, axis=a, times=k), repeat_each(y, axis=a, times=k))
sum_groups(concat(x, y, axis=a), axis=a, times=|x.a|+|y.a|) == add(x, y)
sum_groups(concat(x, y, axis=a), axis=a, times=k)
    == concat(sum_groups(x, axis=a, times=k), sum_groups(y, axis=a, times=k), axis=a)
"""
TWO_AXES = """
concat(concat(x, y, axis=a), concat(z, u, axis=a), axis=b)
    == concat(concat(x, z, axis=b), concat(y, u, axis=b), axis=a)
repeat_each(repeat_each(x, axis=a, times=k), axis=b, times=m)
    == repeat_each(repeat_each(x, axis=b, times=m), axis=a, times=k)
sum_groups(sum_groups(x, axis=a, times=k), axis=b, times=m)
    == sum_groups(sum_groups(x, axis=b, times=m), axis=a, times=k)
sum_groups(repeat_each(x, axis=a, times=k), axis=a, times=k)
    == sum_groups(repeat_each(x, axis=b, times=k), axis=b, times=k)
"""
DIFFERENT_AXES = """
sum_groups(repeat_each(x, axis=a, times=k), axis=b, times=m)
    == repeat_each(sum_groups(x, axis=b, times=m), axis=a, times=k)
sum_groups(concat(x, y, axis=a), axis=b, times=k)
    == concat(sum_groups(x, axis=b, times=k), sum_groups(y, axis=b, times=k), axis=a)
repeat_each(concat(x, y, axis=a), axis=b, times=k)
    == concat(repeat_each(x, axis=b, times=k), repeat_each(y, axis=b, times=k), axis=a)
"""
LINEAR = """
multiply(sum_groups(repeat_each(x, axis=0, times=k), axis=0, times=k), y)
    == sum_groups(repeat_each(multiply(x, y), axis=0, times=k), axis=0, times=k)
sliced_linear(sum_groups(repeat_each(x, axis=0, times=k), axis=0, times=k), y, shares=s)
    == sum_groups(repeat_each(sliced_linear(x, y, shares=s), axis=0, times=k), axis=0, times=k)
sliced_linear(sum_groups(repeat_each(x, axis=0, times=k), axis=0, times=k), y, shares=s)
    == sliced_linear(x, sum_groups(repeat_each(y, axis=0, times=k), axis=0, times=k), shares=s)
sliced_linear(repeat_each(x, axis=0, times=k), y, shares=s) == sliced_linear(x, y, shares=s)
sliced_linear(sum_groups(x, axis=1, times=k), y, shares=s)
    == sum_groups(sliced_linear(x, y, shares=s), axis=1, times=k)
sliced_linear(x, sum_groups(y, axis=1, times=k), shares=s)
    == sum_groups(sliced_linear(x, y, shares=s), axis=2, times=k)
"""
JOINED = """
sliced_linear(x, concat(y, z, axis=1), shares=s)
    == concat(sliced_linear(x, y, shares=s), sliced_linear(x, z, shares=s), axis=2)
"""
JOINED_EQUAL = ((Poly.of("|x.0|"), ONE),)
"""Without slices of x, because outputs are ordered by slice first."""


def as_rule(
    text: str, rank: int, *, proved: bool = True, equal: Sequence[SizeEquation] = ()
) -> Rule:
    left, right = text.split("==")
    used = dict.fromkeys(sorted(set(re.findall(r"\b[xyzu]\b(?!\.)", text))), rank)
    rule = parse_rule(text, used, left, right)
    if proved:
        assert decide(rule.left, rule.right, equal).verdict is Verdict.PROVED, text
    return rule


def texts(block, a=0, b=0):
    """The rules of a block, at an axis or two. An indented line belongs to the one before."""
    block = block.replace("axis=a", f"axis={a}").replace(".a|", f".{a}|")
    return re.split(r"\n(?=\S)", block.replace("axis=b", f"axis={b}").strip())


@cache
def small_rules():
    """Small rules, each proved: the algebra of a few operators."""
    rules = [as_rule(text, rank) for text in texts(POINTWISE) for rank in (2, 3, 4)]
    rules += [as_rule(text, 2) for text in texts(MATRICES)]
    rules += [as_rule(text, 3) for a in range(3) for text in texts(AXIS, a)]
    pairs = [(a, b) for a in range(3) for b in range(3)]
    rules += [as_rule(text, 3) for a, b in pairs if a < b for text in texts(TWO_AXES, a, b)]
    rules += [as_rule(text, 3) for a, b in pairs if a != b for text in texts(DIFFERENT_AXES, a, b)]
    rules += [as_rule(text, 3) for text in texts(LINEAR)]
    return (*rules, as_rule(JOINED, 3, equal=JOINED_EQUAL))


@cache
def explainer():
    return Explainer(small_rules(), {JOINED: JOINED_EQUAL})


def pair(inputs, left, right):
    return parse_values(left, inputs), parse_values(right, inputs)


def steps_of(attempt):
    return None if attempt.derivation is None else len(attempt.derivation.steps)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["taso_sample", "flexflow_sample"])
def test_every_proved_rule_of_a_sample_follows_in_three_steps(name):
    if not SAMPLES.exists():
        pytest.skip("the samples are not here")
    counts = dict.fromkeys(range(4), 0)
    rules = read_foreign(SAMPLES / f"{name}.json").rules
    for rule in rules:
        decision = decide_foreign(rule)
        for proof in decision.decisions if decision.verdict is Verdict.PROVED else ():
            evidence = proof.evidence
            assert evidence is not None
            attempt = explainer().attempt(*evidence.witness.pair, evidence.equal)
            assert attempt.derivation is not None, f"{rule.name}: {attempt.problem}"
            counts[len(attempt.derivation.steps)] += 1
    assert rules[0].source is RuleSystem("flexflow" if name.startswith("flexflow") else "taso")
    assert counts[2] > counts[3] > 0


def test_each_graph_of_a_derivation_is_equal_to_the_left_side():
    left, right = pair(
        dict.fromkeys("xy", 3),
        "add(relu(repeat_each(x, axis=0, times=k)), relu(repeat_each(y, axis=0, times=k)))",
        "repeat_each(add(relu(x), relu(y)), axis=0, times=k)",
    )
    equal = ((Poly.of("|x.0|"), Poly.of("|y.0|")),)
    derivation = Explainer(small_rules()).attempt(left, right, equal).derivation
    assert derivation is not None
    graphs = [named(step.graph, derivation.names) for step in derivation.steps]
    assert len(graphs) == 3
    for graph in graphs:
        assert decide(left, graph, equal).verdict is Verdict.PROVED, side_text(graph)
    assert Graph(graphs[-1]).digest == Graph(right).digest


@pytest.mark.parametrize(
    ("rank", "left", "right", "steps"),
    [
        (2, "add(x, relu(y))", "add(relu(y), x)", 0),
        (2, "matmul(relu(x), add(y, z))", "add(matmul(relu(x), z), matmul(relu(x), y))", 1),
        # The value that is used twice is replaced once.
        (2, "multiply(relu(relu(x)), relu(relu(x)))", "multiply(relu(x), relu(x))", 1),
        (2, "add(add(x, y), add(y, x))", "add(add(x, add(y, x)), y)", 1),
    ],
)
def test_numbers_of_steps(rank, left, right, steps):
    assert steps_of(explainer().attempt(*pair(dict.fromkeys("xyz", rank), left, right))) == steps


def test_no_more_steps_than_asked_for():
    sides = pair(dict.fromkeys("xyz", 2), "matmul(relu(relu(relu(x))), y)", "matmul(relu(x), y)")
    assert steps_of(explainer().attempt(*sides)) == 2
    attempt = explainer().attempt(*sides, max_steps=1)
    assert attempt.derivation is None
    assert attempt.problem == "no derivation of at most 1 steps was found"
    assert all(reached > 1 for reached in attempt.reached)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("matmul(x, y)", "matmul(y, x)"),
        ("relu(add(x, y))", "add(relu(x), relu(y))"),
        ("concat(x, y, axis=0)", "concat(y, x, axis=0)"),
        ("multiply(x, x)", "x"),
    ],
)
def test_false_pairs_are_not_explained(left, right):
    assert explainer().attempt(*pair({"x": 2, "y": 2}, left, right)).derivation is None


def test_a_rule_that_holds_at_some_sizes_only():
    left, right = pair(
        {"x": 3, "y": 3}, "sum_groups(concat(x, y, axis=0), axis=0, times=2)", "add(x, y)"
    )
    size = Poly.of("|x.0|")
    assert steps_of(explainer().attempt(left, right, ((size, ONE),))) == 1
    assert steps_of(explainer().attempt(left, right, ((size, ONE + 1),))) is None
    joined = pair(dict.fromkeys("xyz", 3), *JOINED.replace("=s", "=1").split("=="))
    assert steps_of(explainer().attempt(*joined, JOINED_EQUAL)) == 1
    assert steps_of(explainer().attempt(*joined, ((size, ONE + 1),))) is None


def test_attributes_are_solved_for():
    windows = "height=h, width=w, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1"
    rule = as_rule(
        f"conv2d(x, enlarge(y, kernel_h=a+|y.2|+b, kernel_w=c+|y.3|+d, top=a, left=c), {windows},"
        f" top=p+a, left=q+c) == conv2d(x, y, {windows}, top=p, left=q)",
        4,
    )
    inner = "enlarge(y, kernel_h=5, kernel_w=4, top=1, left=0)"
    equal = tuple((Poly.of(f"|y.{dim}|"), Poly.of(3)) for dim in (2, 3))
    left = f"conv2d(x, {inner}, {windows}, top=2, left=1)"

    def found(top):
        sides = pair({"x": 4, "y": 4}, left, f"conv2d(x, y, {windows}, top={top}, left=1)")
        return Explainer([rule]).attempt(*sides, equal).derivation

    assert found(1) is not None
    assert found(2) is None  # the outputs would be moved by a row


def test_outputs_of_several_operators_at_once():
    text = (
        "matmul(x, y), matmul(x, z) == split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).0,"
        " split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).1"
    )
    rule = as_rule(text, 2)
    joined = "split(matmul(relu(z), concat(x, y, axis=1)), axis=1, at=|x.1|)"
    sides = pair(
        dict.fromkeys("xyz", 2),
        "matmul(relu(z), x), relu(matmul(relu(z), y))",
        f"{joined}.0, relu({joined}.1)",
    )
    derivation = Explainer([rule]).attempt(*sides).derivation
    assert derivation is not None
    assert [step.forward for step in derivation.steps] == [True]


def test_parallel_operators():
    rows = "matmul(partition(x, dim=0, degree=k), replicate(y, degree=k))"
    sums = "reduce(matmul(replicate(x, degree=k), y), degree=k)"
    texts = (
        f"matmul(x, reduce(y, degree=k)) == {sums}",
        f"matmul(x, y) == combine({rows}, dim=0, degree=k)",
        "relu(combine(x, dim=0, degree=k)) == combine(relu(x), dim=0, degree=k)",
    )
    rules = [as_rule(text, 2) for text in texts]
    cut = f"combine(relu({rows}), dim=0, degree=k)"
    sides = pair({"x": 2, "y": 2}, "relu(matmul(x, y))", cut)
    assert steps_of(Explainer(rules).attempt(*sides)) == 2
    assert steps_of(Explainer(rules[:2]).attempt(*sides)) is None
    sides = pair({"x": 2, "y": 2}, "relu(matmul(x, reduce(y, degree=k)))", f"relu({sums})")
    assert steps_of(Explainer(rules).attempt(*sides)) == 1


def test_sizes_do_not_coincide_and_fit():
    left, right = pair(
        {"x": 1, "y": 1},
        "split(split(concat(x, y, axis=0), axis=0, at=m).0, axis=0, at=n).1",
        "split(split(concat(x, y, axis=0), axis=0, at=m).0, axis=0, at=n).1",
    )
    first, second = typed_pairs(left, right, ())
    types = [[t for node in p.left.nodes for t in node.types] for p in (first, second)]
    numbers = [{size for t in own for size in t.shape} for own in types]
    assert all(len(own) == 7 for own in numbers)
    assert numbers[0].isdisjoint(numbers[1])
    assert skeleton(first.left) == skeleton(second.left)


def test_steps_that_hold_at_one_choice_of_sizes_only_do_not_count(monkeypatch):
    text = "slice(x, axis=0, start=|{}.0|, size=n), y, z"
    sides = pair({"x": 1, "y": 1, "z": 1}, text.format("y"), text.format("z"))
    assert explainer().attempt(*sides).derivation is None
    equal_sizes = ((12,) * 4, explain_sizes.LADDERS[1])
    monkeypatch.setattr(explain_sizes, "LADDERS", equal_sizes)
    attempt = explainer().attempt(*sides)
    assert attempt.derivation is None
    assert attempt.problem.endswith("some hold at one choice of sizes only")


def test_walks_of_three_steps_are_found_again():
    """Three rewrites by the search's own matcher lead to rules that are explained."""
    random = Random(5)
    rules = [as_rule(text, 2, proved=False) for text in texts(POINTWISE)]
    both = [r for rule in rules for r in (rule, rule.reversed)]
    both = [r for r in both if not r.right[0].node.is_leaf and r.is_applicable]
    inputs = [leaf("input", name, (7, 5)) for name in "xyz"]
    names = dict.fromkeys("xyz", 2)
    walks = set()
    for _ in range(40):
        start = graph = Graph((_random_value(random, inputs),))
        for _ in range(3):
            options = [(r, m) for r in both for m in match.matches(r, graph)]
            if options:
                rule, place = random.choice(options)
                made = match.build(rule, place, {})
                assert made is not None
                graph = match.rewrite(graph, place, made)
        left, right = (named(g, NumberNames({}, {})) for g in (start, graph))
        assert parse_values(side_text(left), names) == left
        attempt = Explainer(rules).attempt(left, right)
        assert attempt.derivation is not None, (side_text(left), side_text(right))
        walks.add(len(attempt.derivation.steps))
    assert walks == {0, 1, 2, 3}


def _random_value(random, inputs):
    text = random.choice(
        [
            "relu(add(x, add(y, multiply(z, x))))",
            "multiply(add(x, y), add(y, z))",
            "add(multiply(x, y), multiply(x, add(z, relu(relu(y)))))",
            "multiply(multiply(relu(x), y), multiply(z, add(x, y)))",
        ]
    )
    (value,) = parse_values(text, dict.fromkeys("xyz", 2))
    graph = Graph((value,))
    typed = {i.node.leaf.name: i for i in inputs}
    return graph.replace({n.value(): typed[n.leaf.name] for n in graph.leaves}).outputs[0]


def written(path, *rules):
    path.write_text(json.dumps({"schema_version": 1, "rules": rules}), "utf-8")
    return path


SOUND = {
    "name": "chain",
    "inputs": {"x": 2, "y": 2, "z": 2},
    "left": "matmul(matmul(x, relu(relu(y))), z)",
    "right": "matmul(x, matmul(relu(y), z))",
}
OTHER = {"name": "other", "inputs": {"x": 2}, "left": "gelu(exp(x))", "right": "gelu(exp(x))"}
FAR = {
    "name": "far",
    "inputs": {"x": 2, "y": 2},
    "left": "multiply(x, negate(y))",
    "right": "negate(multiply(x, y))",
}
FALSE = {"name": "false", "inputs": {"x": 2}, "left": "relu(x)", "right": "gelu(x)"}


def test_printed_derivations(tmp_path, capsys):
    path = written(tmp_path / "rules.json", SOUND, OTHER, FALSE)
    explain_file(str(path), lambda _: small_rules())
    first, *steps, other, same, false, _, total = _lines(capsys)
    assert first == "chain: 2 steps"
    assert steps[0] == "  matmul(matmul(x, relu(relu(y))), z)"
    assert len(steps) == 3
    assert all(line.startswith("  == ") and "  by " in line for line in steps[1:])
    assert steps[-1].startswith("  == matmul(x, matmul(relu(y), z))  by ")
    assert (other, same) == ("other: both sides are the same graph", "  gelu(exp(x))")
    assert false == "false: refuted, so there is nothing to explain"
    assert total == "1 in 0 steps; 1 in 2 steps"


def _lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_one_rule_of_a_file_is_explained_or_a_negative_answer(tmp_path, capsys):
    path = written(tmp_path / "rules.json", SOUND, FAR, FALSE)
    explain_file(f"{path}:chain", lambda _: small_rules(), as_json=True)
    (record,) = map(json.loads, _lines(capsys))
    assert (record["rule"], record["verdict"], record["steps"]) == ("chain", "proved", 2)
    with pytest.raises(NegativeAnswer, match="1 of 1 proved rules are not explained"):
        explain_file(f"{path}:far", lambda _: small_rules())
    heading, *_, problem = _lines(capsys)
    assert heading == "far: proved, but not explained"
    assert problem.startswith("  no derivation of at most 3 steps was found: ")
    with pytest.raises(NegativeAnswer, match="none of its 1 rules is proved"):
        explain_file(f"{path}:false", lambda _: small_rules())
    with pytest.raises(InputError, match="no rule with the name nobody"):
        explain_file(f"{path}:nobody", lambda _: small_rules())


def test_a_rule_is_an_instance_of_itself_in_a_library():
    rules = small_rules()
    for rule in rules[::5]:
        equal = JOINED_EQUAL if rule.name == JOINED else ()
        renamed = replace(rule, name="other")
        assert steps_of(explainer().attempt(renamed.left, renamed.right, equal)) == 1
