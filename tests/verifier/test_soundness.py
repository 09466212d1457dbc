"""Proved pairs hold: random neighbours of true rules are decided, and those that are proved are
evaluated."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs.instances import agree, agree_nearly, random_instance

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, rebuild
from pcg.graph.pairs import Outputs
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.types.operator import Call
from substitutions.rules.rule import Rule
from substitutions.rules.store import load_library
from verifier.decide import Decision, Verdict, decide

RULES = load_library().rules
INSTANCES = 3
EXAMPLES = 40
LEAST = 2
"""The least number of examples with each verdict. Usually a quarter of them have it."""
UNDECIDED = Decision(Verdict.UNKNOWN, "the types differ")


def _operators(side: Outputs) -> list[Node]:
    return [node for node in Graph(side).nodes if not node.is_leaf]


def _swap_operands(node: Node, random: Random) -> Node:
    return Node(node.call, tuple(random.sample(node.inputs, len(node.inputs))))


def _change_attribute(node: Node, random: Random) -> Node:
    call = node.operator_call
    attributes = dict(call.attributes)
    if not attributes:
        return node
    name = random.choice(sorted(attributes))
    if isinstance(attributes[name], int):
        attributes[name] = random.randrange(3)
    else:
        known = {v.symbol for v in attributes.values() if isinstance(v, Poly) and v.symbol}
        symbols = sorted(known | {"k", "k2"})
        attributes[name] = random.choice((Poly.of(random.choice(symbols)), 2, 3))
    return Node(Call(call.operator, tuple(attributes.items())), node.inputs)


def _change_operator(node: Node, random: Random) -> Node:
    call = node.operator_call
    given = dict(call.attributes)
    others = [o for o in OPERATORS.values() if o.arity == len(node.inputs)]
    other = random.choice(sorted(others, key=lambda o: o.name))
    fallback = list(given.values()) or [0]
    values = {n: given.get(n, random.choice(fallback)) for n in other.attributes}
    return Node(other(**values), node.inputs)


def _double(node: Node, random: Random) -> Node:
    at = random.randrange(len(node.inputs))
    return Node(node.call, (*node.inputs[:at], Value(node), *node.inputs[at + 1 :]))


def _mutated(side: Outputs, random: Random) -> Outputs:
    """The graph with one operator changed, dropped or doubled, or one input replaced."""
    nodes = [node for node in _operators(side) if node.inputs]
    if not nodes:
        return side
    node = random.choice(nodes)
    kind = random.randrange(6)
    if kind == 0:
        value = random.choice(node.inputs)
        return rebuild(side, {Value(node): value})
    if kind == 1:
        leaves = [Value(leaf) for leaf in Graph(side).leaves]
        if not leaves:
            # The side consists of constants, which an earlier change may have left.
            return side
        return rebuild(side, {random.choice(leaves): random.choice(leaves)})
    change = (_swap_operands, _change_attribute, _change_operator, _double)[kind - 2]
    return rebuild(side, {Value(node): Value(change(node, random))})


def _neighbour(rule: Rule, random: Random) -> tuple[Outputs, Outputs]:
    left, right = random.choice(((rule.left, rule.right), (rule.right, rule.left)))
    other = random.choice(RULES)
    if random.random() < 0.1 and dict(other.inputs) == dict(rule.inputs):
        right = other.right
    for _ in range(random.choice((1, 1, 2))):
        right = _mutated(right, random)
    return left, right


counts: Counter[str] = Counter()


def _proved_neighbours_hold(examples: int):
    counts.clear()
    tried = settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    tried(given(st.integers(0, len(RULES) - 1), st.integers(0, 2**32 - 1))(_proved_one_holds))()
    print(dict(sorted(counts.items())))


def _proved_one_holds(number: int, seed: int):
    random = Random(seed)
    try:
        left, right = _neighbour(RULES[number], random)
    except OperatorError:
        counts["no graph"] += 1
        return
    # Counterexamples need not be shrunk here: that takes far longer than to find them.
    decision = decide(left, right, brief=True)
    counts[decision.verdict] += 1
    if decision.verdict in (Verdict.REFUTED, Verdict.UNKNOWN):
        return
    for _ in range(INSTANCES):
        instance = random_instance(left, right, random)
        if instance is None:
            counts["no instance met"] += 1
            continue
        counts["instances"] += 1
        assert decision.verdict not in (Verdict.VACUOUS, Verdict.ILL_TYPED), (left, right, instance)
        if decision.verdict is Verdict.PROVED:
            # Rules by the laws of scalar functions hold in real numbers alone.
            holds = agree(instance, seed) or agree_nearly(instance, seed)
            assert holds, (left, right, instance)


def test_proved_neighbours_hold():
    """Vacuous and ill-typed pairs have no instance."""
    _proved_neighbours_hold(EXAMPLES)
    assert counts[Verdict.PROVED] >= LEAST
    assert counts[Verdict.REFUTED] >= LEAST
    assert counts["instances"] > counts[Verdict.PROVED]


def test_proved_neighbours_hold_without_replay(monkeypatch):
    """The proof alone, too, separates true rules from false ones."""
    monkeypatch.setattr("verifier.decide.replay", lambda instance, once=False: None)
    # Without replay, types that differ are reported as vacuous. This test would refuse that.
    monkeypatch.setattr("verifier.decide._types_differ", lambda *sides: UNDECIDED)
    _proved_neighbours_hold(EXAMPLES)
    assert counts[Verdict.PROVED] >= LEAST
    assert counts[Verdict.UNKNOWN] >= LEAST
    assert counts[Verdict.REFUTED] == 0


@pytest.mark.soak
def test_proved_neighbours_hold_for_many_examples():
    _proved_neighbours_hold(1200)
    assert counts[Verdict.PROVED] > 200
