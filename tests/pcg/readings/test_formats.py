"""Which values stay wide in a step of two number formats."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.cases import a_third

from pcg.graph.graph import Value
from pcg.models import build_model
from pcg.plan.text import parse_graph
from pcg.readings.formats import held_wide, wide_values
from pcg.readings.kind import kind_of
from pcg.readings.work import gradient_nodes
from pcg.zoo import MODELS

NORMED = """
ids = input[4, 8] below 1000
table = weight[1000, 16]
x = embedding(ids, table)
squares = multiply(x, x)
mean = mean_axis(squares, axis=2)
root = rsqrt(mean)
spread = expand_as(x, root, axis=2)
normed = multiply(x, spread)
w = weight[16, 32]
made = matmul(normed, w)
rows = flatten(made, axis=0)
logs = log_softmax(rows, axis=1)
kept = scale(logs, factor=2.0)
loss = sum_loss(kept)
return loss
"""
WIDE = {"ids", "mean_axis", "rsqrt", "expand_as", "log_softmax", "scale", "sum_loss"}


def named(values: Iterable[Value]) -> set[str]:
    """The names of leaves, and those of operators."""
    nodes = [value.node for value in values]
    return {node.leaf.name if node.is_leaf else node.name for node in nodes}


def test_statistics_logarithms_losses_and_data_stay_wide():
    graph = parse_graph(NORMED)
    assert named(wide_values(graph)) == WIDE


def test_operands_of_wide_operators_are_held_wide():
    """Also through views: the flattened rows are the product itself."""
    graph = parse_graph(NORMED)
    held = named(held_wide(graph))
    assert held >= WIDE | {"flatten", "matmul", "multiply"}
    assert not held & {"table", "w", "embedding"}


def test_products_of_positions_alone_stay_wide():
    """bf16 does not distinguish 1000 from 1001."""
    graph = parse_graph(
        "places = input[1, 64, 1]\nrates = input[1, 1, 8]\nw = weight[1, 64, 8]\n"
        "angles = batch_matmul(places, rates)\ny = multiply(w, angles)\nreturn sum_loss(y)"
    )
    assert named(wide_values(graph)) >= {"places", "rates", "batch_matmul"}
    assert "multiply" not in named(wide_values(graph))


ERRORS = """
x = input[4, 8]
w = weight[8, 3]
wanted = input[4, 3]
made = matmul(x, w)
error = {difference}
squares = multiply(error, error)
{rest}
"""


@pytest.mark.parametrize("difference", ["subtract(made, wanted)", "add(wanted, made)"])
def test_errors_of_predictions_are_wide(difference: str):
    graph = parse_graph(ERRORS.format(difference=difference, rest="return mean_loss(squares)"))
    assert named(wide_values(graph)) >= {difference[: difference.index("(")], "multiply"}
    assert "matmul" not in named(wide_values(graph))


@pytest.mark.parametrize(
    "rest",
    [
        "return squares",
        "v = weight[3, 2]\nreturn mean_loss(matmul(squares, v))",
        "both = mean_loss(squares)\nreturn both, squares",
    ],
)
def test_sums_with_data_that_other_operators_read_are_narrow(rest: str):
    """For example, positions that are added to words."""
    graph = parse_graph(ERRORS.format(difference="add(wanted, made)", rest=rest))
    assert not named(wide_values(graph)) & {"add", "multiply"}


def test_windows_do_not_widen():
    window = "height=3, width=3, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1, top=1, left=1"
    pool = "height=2, width=2, kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, top=0, left=0"
    graph = parse_graph(
        f"x = input[2, 4, 8, 8]\nk = weight[4, 4, 3, 3]\ny = conv2d(x, k, {window})\n"
        f"return sum_loss(max_pool2d(y, {pool}))"
    )
    assert len(wide_values(graph)) == 2  # the images and the loss


@pytest.mark.parametrize("name", a_third([name for name in MODELS if name.endswith("-tiny")]))
def test_weights_and_products_of_models_are_narrow_and_losses_wide(name: str):
    graph = build_model(name, 8, 1)
    wide, trained = wide_values(graph), gradient_nodes(graph)
    assert graph.outputs[0] in wide
    for node in graph.nodes:
        if node not in trained:
            assert wide.issuperset(node.outputs)
        elif node.is_leaf or (kind_of(node) == "contraction" and node.types[0].rank):
            assert wide.isdisjoint(node.outputs)
