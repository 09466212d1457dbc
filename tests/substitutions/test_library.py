"""The committed library: every rule holds under the reference evaluation, and can be applied."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.cases import a_third
from support.graphs.instances import agree, agree_nearly, random_instance

from pcg.graph.graph import Graph, Value
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS, stand_in
from substitutions.rules.match import build, matches, rewrite
from substitutions.rules.rule import Rule, attribute_symbols, open_call, parse_rule, variables
from substitutions.rules.store import load_library
from verifier.instances import Instance

RULES = load_library().rules
CHUNK = 100
PART = 4
"""One in this many rules is tried in each run, chosen at random. `make soak` tries all."""
TRIES = 24


def typed(rule: Rule, random: Random) -> Instance:
    """A rule at random shapes and degrees, copies and partials of inputs included."""
    for _ in range(TRIES):
        instance = random_instance(rule.left, rule.right, random, equal=rule.requirements)
        if instance is not None:
            return instance
    raise AssertionError(f"no types met for {rule.text}")


def concrete(rule: Rule, random: Random) -> Rule:
    """The rule at random numbers of axes, with random operators for its stand-ins."""
    counts = [random.choice((0, 1, 1, 2)) for _ in rule.runs]
    made = (rule.at(counts) or rule.at([1] * len(counts))) if counts else rule
    assert made is not None
    for name in made.stand_ins:
        operators = [o for o in OPERATORS.values() if stand_in(o) is STAND_INS[name]]
        taken = attribute_symbols((*made.left, *made.right))
        made = made.with_operator(open_call(random.choice(operators), taken))
    return made


def is_joined(rule: Rule) -> bool:
    """Whether several outputs on the left share inputs, so that the matcher finds them together."""
    reads = [variables((value,)) for value in rule.left]
    joined, pending = reads[0], reads[1:]
    while linked := [read for read in pending if read & joined]:
        joined = joined.union(*linked)
        pending = [read for read in pending if read not in linked]
    return not pending and not all(value.node.is_leaf for value in rule.left)


def applications(rule: Rule, host: Graph, free: dict[str, int]) -> list[tuple[Value, ...]]:
    """The outputs of a graph after any application of a rule."""
    steps: list[tuple[Value, ...]] = []
    for match in matches(rule, host):
        outputs = build(rule, match, free)
        if outputs is not None:
            steps.append(rewrite(host, match, outputs).outputs)
    return steps


@pytest.mark.parametrize("part", [PART, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("start", a_third(range(0, len(RULES), CHUNK)))
# Without shrinking: a chunk of rules takes long to try, and the message names rule and seed.
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_rules_hold_and_apply(start, part, seed):
    """At random types both sides have equal types and the same values. Each side, made concrete, is
    matched and becomes the other."""
    random = Random(seed)
    chunk = RULES[start : start + CHUNK]
    for general in random.sample(chunk, len(chunk) // part):
        rule = concrete(general, random)
        instance = typed(rule, random)
        holds = agree_nearly if rule.family == "decomposition" else agree
        assert holds(instance, seed), (rule.text, instance)
        sides = (instance.left, instance.right)
        for way, host, wanted in ((rule, *sides), (rule.reversed, *sides[::-1])):
            if not way.is_applicable or not is_joined(way):
                continue
            free = {symbol: int(instance.symbols[symbol]) for symbol in way.free_symbols}
            results = applications(way, host, free)
            assert wanted.outputs in results, (way.text, host)
            types = [value.type for value in host.outputs]
            assert all([v.type for v in outputs] == types for outputs in results)


def test_the_instances_are_not_all_alike():
    """A check of the test above: degrees, copies, partials and slices above 1 occur."""
    random = Random(1)
    met = {"dims": 0, "slices": 0, "copies": 0, "partials": 0}
    for rule in RULES[::7]:
        for leaf in typed(rule, random).leaves.values():
            assert leaf.type is not None
            degrees = leaf.type.degrees
            met["dims"] += max(degrees.dims, default=1) > 1
            met["slices"] += max(degrees.slices, default=1) > 1
            met["copies"] += degrees.copies > 1
            met["partials"] += degrees.partials > 1
    assert min(met.values()) > 5, met


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("matmul(matmul(x, y), z)", "matmul(matmul(x, z), y)"),
        (
            "matmul(reduce(x, degree=k), y)",
            "reduce(matmul(x, replicate(z, degree=k)), degree=k)",
        ),
        ("reduce(join(x, y), degree=2)", "reduce(join(x, x), degree=2)"),
    ],
)
def test_a_wrong_rule_would_be_noticed(left, right):
    """A check of the tests: rules with one operand swapped do not hold."""
    rule = parse_rule("wrong", {"x": 2, "y": 2, "z": 2}, left, right)
    assert not all(agree(typed(rule, Random(seed)), seed) for seed in range(5))


def test_names_and_rules_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert len({(rule.inputs, rule.text) for rule in RULES}) == len(RULES)


def test_every_operator_takes_part():
    used = {n.name for r in RULES for n in Graph((*r.left, *r.right)).nodes if not n.is_leaf}
    covered = {o.name for o in OPERATORS.values() if (s := stand_in(o)) and s.name in used}
    known = {operator.name for operator in OPERATORS.values() if operator.arity}
    assert known <= used | covered
