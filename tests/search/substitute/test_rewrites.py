"""Rewrites that are made one after the other, and rewrites that pay only together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.graphs.behaviour import assert_same
from support.plans.walks import steps_from

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models.mlp import mlp
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import by_equation, evaluate_shards, evaluate_whole, meaning
from pcg.readings.ring import PrimeField
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.cost.survey import RewriteSurvey
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.substitute.algebra import Algebra
from search.substitute.rewrites import Limits, Rewriter
from substitutions.rules.match import rewrite
from substitutions.rules.store import Library, load_library

MIXED = """
x = input[65536, 4096]
y = input[65536, 4096]
a = scale(scale(scale(x, factor=-1.0), factor=0.5), factor=0.5)
b = scale(y, factor=-1.0)
return sum_loss(add(add(add(a, scale(y, factor=0.5)), b), relu(b)))
"""
"""Two tensors that are scaled and added. Their factors have to meet first."""
TOWERS = """
x = input[64, 1024]
v1 = weight[1024, 64]
v2 = weight[1024, 64]
a = relu(add(matmul(x, v1), matmul(x, v2)))
w1 = weight[1024, 64]
w2 = weight[1024, 64]
b = relu(add(matmul(x, w1), matmul(x, w2)))
return mean_loss(a), mean_loss(b)
"""

CHAIN = """
x = input[64, 1024]
w = weight[1024, 2048]
v = weight[2048, 512]
u = weight[512, 2048]
return mean_loss(relu(matmul(relu(scale(matmul(matmul(x, w), v), factor=0.5)), u)))
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def rewriter(library: Library, graph: Graph, limits: Limits) -> Rewriter:
    """The rewriter of graphs on one A100."""
    machine = load_machine("dgx-a100").with_devices(1)
    algebra = Algebra.of(library.concrete(graph))
    return Rewriter(Chooser.on(CostModel(machine), Cuts()), algebra, limits)


def rewritten(library: Library, text: str, limits: Limits) -> tuple[float, Graph]:
    """Seconds of a step of the rewritten graph, and the graph."""
    graph = parse_graph(text)
    rewrites = rewriter(library, graph, limits)
    answer = rewrites.improved(graph, Derivation.start(graph))
    best = graph if answer is None else answer[0]
    return rewrites.chooser.choose(best).seconds, best


def test_rewrites_that_pay_only_in_a_row_are_found(library):
    greedy, _ = rewritten(library, MIXED, Limits(threshold=1.0, together=False))
    patient, graph = rewritten(library, MIXED, Limits(threshold=1.05, together=False))
    assert patient < 0.6 * greedy
    assert_same(parse_graph(few(MIXED)), parse_graph(few(print_graph(graph))), by_equation)


def few(text: str) -> str:
    """The graph with few numbers, which are weights, so that gradients are compared too."""
    return text.replace("input[65536, 4096]", "weight[4, 8]")


def test_rewrites_that_gain_alone_are_made_at_once(library):
    """The first graph that is priced after the model has both towers rewritten."""
    graph = parse_graph(TOWERS)
    rewrites = rewriter(library, graph, Limits())
    rewritten = rewrites.improved(graph, Derivation.start(graph))
    assert rewritten is not None
    assert max(len(group.keys) for group in rewrites.made) > 1
    assert_same(graph, rewritten[0], by_equation)
    again = Derivation.start(graph), graph
    for group in rewrites.made:
        changed, derivation = Rewriter.everywhere(
            rewrites.algebra, group.choice, again[0], group.keys
        )
        again = derivation, changed
    assert again[1] == rewritten[0]


def test_with_a_reach_as_wide_as_the_graph_a_gain_is_that_of_all_strategies(library):
    """On four devices, so that strategies differ. The fewer strategies change, the less a rewrite
    seems to gain."""
    graph = parse_graph(CHAIN)
    rules = library.concrete(graph)
    machine = load_machine("dgx-a100").with_devices(4)
    chooser, algebra = Chooser.on(CostModel(machine), Cuts.of_rules(rules)), Algebra.of(rules)
    choice, start = chooser.choose(graph), Derivation.start(graph)
    near, wide = (Rewriter(chooser, algebra, Limits(reach=reach)) for reach in (1, 20))
    alone = [group for group in wide.groups(choice) if len(group.places) == 1]
    assert alone
    for group in alone:
        made, _ = Rewriter.everywhere(algebra, choice, start, [group.key])
        whole = choice.seconds - chooser.choose(made).seconds
        assert wide.gain(choice, group) == pytest.approx(whole, abs=1e-11)
    losses = [wide.gain(choice, group) - near.gain(choice, group) for group in alone]
    assert min(losses) > -1e-11
    assert max(losses) > 1e-6


def test_no_rewrite_is_tried_with_a_limit_of_0_tries(library):
    graph = parse_graph(MIXED)
    rewrites = rewriter(library, graph, Limits(tries=0))
    assert rewrites.improved(graph, Derivation.start(graph)) is None
    assert rewrites.tried == 0


def test_survey_counts_the_rewrites_that_were_not_tried(library):
    """Without tries, all groups of the first graph are left. With tries, the groups within the
    threshold of all graphs that were made are left."""
    graph, told = parse_graph(MIXED), list[RewriteSurvey]()
    for limits in (Limits(tries=0), Limits()):
        rewrites = rewriter(library, graph, replace(limits, tell=told.append))
        rewrites.improved(graph, Derivation.start(graph))
        assert told[-1] == rewrites.survey
    groups = list(rewrites.groups(rewrites.chooser.choose(graph)))
    assert told[0].left == told[0].matched == len(groups) > 0
    assert told[0].nearest is None
    assert told[1].left > 0
    assert told[1].matched == len(groups)
    assert told[1].nearest is not None


def test_places_that_look_alike_have_the_same_rewrites_in_another_graph(library):
    """The rewrites known from one graph are those that would be listed for the next."""
    graph = parse_graph(TOWERS)
    rewrites = rewriter(library, graph, Limits())
    rewritten = rewrites.improved(graph, Derivation.start(graph))
    assert rewritten is not None
    choice = rewrites.chooser.choose(rewritten[0])
    known = {group.key: group.places for group in rewrites.groups(choice)}
    fresh = rewriter(library, graph, Limits())
    assert known == {group.key: group.places for group in fresh.groups(choice)}


def test_survey_counts_rewrites_left_when_time_is_up(library):
    graph = parse_graph(MIXED)
    turns = iter(range(100))
    rewrites = rewriter(library, graph, Limits(is_over=lambda: next(turns) > 5))
    rewrites.improved(graph, Derivation.start(graph))
    assert rewrites.survey.left > 0


def test_every_step_keeps_the_meaning(library):
    """Rewrites by all rules, on parallel operators too."""
    graph, ring, rng = mlp(6, (6, 12, 6)), PrimeField(), np.random.default_rng(0)
    leaves = {n.leaf.name: rng.integers(0, ring.prime, n.types[0].shape) for n in graph.leaves}
    (expected,) = evaluate_whole(graph, leaves, ring)
    shards = {name: values[None] for name, values in leaves.items()}
    steps = list(steps_from(graph, library.concrete(graph), (2, 3, 6)))
    assert len(steps) > 20
    for step in steps:
        changed = rewrite(graph, step.match, step.made)
        assert changed.outputs[0].type == graph.outputs[0].type
        (actual,) = evaluate_shards(changed, shards, ring)
        assert meaning(actual, ring) == expected, step.rule.name
