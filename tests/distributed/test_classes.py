"""Losses of logits that are cut along the classes, against training on one process."""

from __future__ import annotations

import pytest

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from substitutions.rules.store import load_library

pytestmark = pytest.mark.distributed

HEAD = """
x = input[48, 12]
w = weight[12, 36]
labels = input[48] {labels}
logits = matmul(x, w)
"""
WITH_WEIGHTS = """
logs = log_softmax(logits, axis=1)
weighed = multiply(logs, expand_vector(logs, of_classes, axis=1))
chosen = one_hot(labels, classes=36)
evenly = scale(mean_loss(weighed), factor=-0.1)
loss = add(scale(mean_loss(multiply(chosen, weighed)), factor=-32.4), evenly)
return loss, logits
"""
"""Losses with a weight for each class, and with smoothed labels."""


@pytest.mark.parametrize("degrees", ["tensor=4", "tensor=2,micro-batches=2"])
def test_cross_entropy(agree, degrees: str):
    """Some rows have labels that are left out."""
    text = HEAD.format(labels="from -5 below 36") + "return cross_entropy(logits, labels), logits"
    check(agree, text, degrees)


def test_class_weights_and_smoothed_labels(agree):
    leaves = HEAD.format(labels="below 36") + "of_classes = input[36]"
    check(agree, leaves + WITH_WEIGHTS, "tensor=4")


def check(agree, text: str, degrees: str) -> None:
    machine = load_machine("tests/data/four-devices.toml").with_devices(4)
    planner = HandPlanner(machine, load_library(), parse_degrees(degrees))
    plan = planner.plan("head", parse_graph(text)).plan
    sums = [node for node in plan.graph.operators if node.name == "logsumexp"]
    assert any(node.inputs[0].type.degrees.dims[1] > 1 for node in sums)
    agree.of(plan)
