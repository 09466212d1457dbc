"""Losses and other reductions as graphs that can be cut along the axis that they reduce."""

from __future__ import annotations

from functools import lru_cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine, load_machine
from pcg.placement.schedule import Reshard, Schedule
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlan, HandPlanner
from search.choices import IndexRole
from search.cost.derivation import Derivation
from search.map.rules.cuts import with_unfolded
from search.map.rules.reduced import BLOCKS, ReducedAxes
from search.plan.planner import MeshPlanner
from substitutions.rules.rule import Rule
from substitutions.rules.store import load_library
from verifier.counterexample import random_leaves
from verifier.instances import Instance

LOSSES = {
    "cross_entropy": "cross_entropy(logits, labels)",
    "log_softmax": "mean_loss(multiply(log_softmax(logits, axis=1), logits))",
    "logsumexp": "mean_loss(logsumexp(logits, axis=1))",
    "max_axis": "mean_loss(max_axis(logits, axis=1))",
}


@lru_cache(maxsize=64)
def head(loss: str, rows: int, width: int, classes: int) -> Graph:
    """Logits, and a reduction of them."""
    return parse_graph(
        f"x = input[{rows}, {width}]\nw = weight[{width}, {classes}]\n"
        f"labels = input[{rows}] from -100 below {classes}\nlogits = matmul(x, w)\n"
        f"return {LOSSES[loss]}"
    )


def reducing(graph: Graph) -> Node:
    return next(n for n in graph.operators if n.name in LOSSES)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=8, deadline=None)
@given(classes=st.integers(2, 200), seed=st.integers(0, 99))
def test_steps_keep_what_a_graph_means(loss: str, classes: int, seed: int):
    start = head(loss, 3, 2, classes)
    steps = next(ReducedAxes.of(load_library().concrete(start)).opened(reducing(start)), ())
    end = start
    for step in steps:
        end = end.replace(step.replaced)
    blocks = [n for n in end.operators if n.name == "unflatten"]
    has_blocks = any(classes % k == 0 for k in (2, 3)) and classes > 3
    assert len(blocks) == has_blocks
    for node in blocks:
        count, size = node.types[0].shape[1:]
        assert BLOCKS % count == 0
        assert size > 1
    instance = Instance(start, end, {})
    leaves = random_leaves(instance, Reals(), np.random.default_rng(seed))
    for a, b in zip(*(evaluate_shards(g, leaves, Reals()) for g in (start, end)), strict=True):
        np.testing.assert_allclose(meaning(a, Reals()), meaning(b, Reals()), rtol=1e-9)


@pytest.mark.parametrize("loss", ["cross_entropy", "log_softmax"])
def test_an_operator_is_opened_by_the_rule_of_fewest_operators(loss: str):
    graph = head(loss, 8, 4, 96)
    rules = load_library().concrete(graph)
    end, after = with_unfolded(graph, Derivation.start(graph), {reducing(graph)}, rules)
    names = [node.name for node in end.operators]
    assert names.count("logsumexp") == 2
    assert "exp" not in names
    assert len(after.steps) == 2
    assert [v.type for v in end.outputs] == [v.type for v in graph.outputs]


@lru_cache(maxsize=1)
def four() -> Machine:
    return load_machine("tests/data/four-devices.toml").with_devices(4)


def by_hand(graph: Graph, degrees: str) -> HandPlan:
    return HandPlanner(four(), load_library(), parse_degrees(degrees)).priced(graph)


def most_moved(steps: Schedule) -> int:
    """The elements of the largest tensor of activations that a step moves."""
    moves = (s for s in steps.steps if isinstance(s, Reshard))
    held = (s.source.value for s in moves if s.transfer.kind not in ("none", "local"))
    return max((value.type.elements for value in held), default=0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("classes", [96, 48, 1000])
def test_logits_stay_cut_along_classes_by_hand(loss: str, classes: int):
    """A row moves at most as many numbers as there are blocks, instead of one for each class."""
    plan = by_hand(head(loss, 8, 4, classes), "tensor=4")
    products = [n for n in plan.cut.graph.operators if n.name == "matmul"]
    assert [n.types[0].degrees.dims for n in products] == [(1, 4)]
    assert most_moved(plan.steps) <= 8 * min(BLOCKS, classes // 2)


def test_logits_stay_cut_along_classes_in_micro_batches():
    plan = by_hand(head("cross_entropy", 8, 4, 96), "tensor=4,micro-batches=2")
    (loss,) = (n for n in plan.cut.graph.operators if n.name == "nll")
    assert loss.inputs[0].type.degrees.dims == (1, 4)
    assert loss.types[0].degrees.partials == 4
    assert most_moved(plan.steps) <= 8 * BLOCKS


def test_memory_counts_no_whole_logits():
    """A device holds a quarter of the logits, of their exponentials and of their gradients."""
    rows, classes = 512, 9600
    cut = by_hand(head("cross_entropy", rows, 4, classes), "tensor=4")
    logits = 4 * rows * classes  # bytes
    assert logits / 4 < cut.memory < logits


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_loss_is_cut_along_classes_if_its_logits_are(devices: int):
    """Three axes, as in a transformer: rows that cannot be cut, and a product that is best cut by
    columns."""
    graph = parse_graph(
        "x = input[1, 509, 64]\nw = weight[64, 9600]\nlabels = input[509] below 9600\n"
        "logits = sum_axis(matmul(x, w), axis=0)\nreturn cross_entropy(logits, labels)"
    )
    roles = frozenset({IndexRole.MODEL, IndexRole.REDUCTION})
    machine = four().with_devices(devices)
    planned = MeshPlanner(machine, load_library(), dimensions=roles).plan("head", graph)
    losses = [n for n in planned.plan.graph.operators if n.name == "nll"]
    assert [n.inputs[0].type.degrees.dims for n in losses] == [(1, devices)]


def names(rule: Rule) -> set[str]:
    return {name for name in ("nll(", "cross_entropy(") if name in rule.text}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_random_heads_are_no_slower_than_without_rules_about_blocks(seed: int):
    """With more rules, the search still has all plans that it had."""
    random, library = Random(seed), load_library()
    few = [r for r in library.rules if not {"nll(", "cross_entropy("} <= names(r)]
    assert len(few) == len(library.rules) - 1
    graph = head("cross_entropy", 4 * random.randint(1, 9), 8, 4 * random.randint(1, 99))
    with_all = MeshPlanner(four(), library).plan("head", graph).plan.estimates
    without = MeshPlanner(four(), type(library)(tuple(few), library.hash)).plan("head", graph)
    assert with_all.step_seconds <= without.plan.estimates.step_seconds
