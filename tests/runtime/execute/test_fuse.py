"""Products with their biases as one kernel: the same values, and only where allowed."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.by_hand import make_plan

from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.execute.fuse import LINEAR, LOOKUP, fused
from runtime.execute.kernels import run_equation, run_whole, whole_task
from runtime.execute.segment import Segment, blocks_of
from runtime.program.lower import Lowering
from runtime.program.program import Run
from runtime.world.collectives import World

HEAD = """
x = input[{rows}4]
w = weight[4, 6]
b = weight[6]
"""


def program(text: str):
    graph = parse_graph(text)
    return Lowering(make_plan(graph, graph, 1, {})).program(0)


def trained(text: str, steps: int = 2):
    """The losses and the last weights."""
    made = program(text)
    executor = Executor(made, World(), "fp64")

    def update(gradients):
        for register, gradient in gradients.items():
            executor.weights[register].sub_(gradient, alpha=0.1)

    losses = [executor.step(step, update).loss for step in range(steps)]
    return losses, executor.weights


def names(text: str, *later: str) -> list[str]:
    runs = [i for i in program(text).instructions if isinstance(i, Run)]
    return [i.call.name for i in fused(runs, later) if isinstance(i, Run)]


@settings(max_examples=6, deadline=None)
@given(
    rows=st.sampled_from(["", "3, ", "2, 3, "]),
    turned=st.booleans(),
    like=st.sampled_from(["t", "relu(t)", "z"]),
    bias=st.sampled_from(["b", "scale(b, factor=2.0)"]),
    end=st.sampled_from(["y", "add(y, t)", "multiply(y, e)", "matmul(relu(y), v)"]),
)
def test_fused_layers_compute_the_same(rows, turned, like, bias, end):
    axis = rows.count(",")
    text = HEAD.format(rows=rows) + f"z = input[{rows}6]\nv = weight[6, 6]\nt = matmul(x, w)\n"
    text += f"e = expand_vector({like}, {bias}, axis={axis})\n"
    text += f"y = add({'e, t' if turned else 't, e'})\nreturn mean_loss({end})"
    one = end in ("y", "matmul(relu(y), v)") and like != "relu(t)"
    assert names(text).count("linear") == one
    losses, weights = trained(text)
    with patch("runtime.execute.segment.fused", lambda instructions, later: tuple(instructions)):
        expected = trained(text)
    assert losses == pytest.approx(expected[0], rel=1e-12)
    for register, weight in weights.items():
        torch.testing.assert_close(weight, expected[1][register], rtol=1e-12, atol=1e-12)


def test_a_bias_along_another_axis_or_a_product_that_is_read_later_stays():
    square = "x = input[6, 4]\nw = weight[4, 6]\nb = weight[6]\n"
    text = square + "t = matmul(x, w)\ny = add(t, expand_vector(t, b, axis={}))\nreturn {}"
    plain = ["matmul", "expand_vector", "add", "mean_loss"]
    assert names(text.format(1, "mean_loss(y)")) == ["linear", "mean_loss"]
    assert names(text.format(0, "mean_loss(y)")) == plain
    made = program(text.format(1, "mean_loss(y), t"))
    product = next(i for i in made.instructions if isinstance(i, Run))
    assert names(text.format(1, "mean_loss(y)"), product.results[0]) == plain


def test_the_kernel_is_what_the_equation_says():
    torch.manual_seed(0)
    blocks = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 4), (4, 5), (5,))]
    call, shapes = LINEAR(), [tuple(block.shape) for block in blocks]
    starts = [(0,) * block.dim() for block in blocks]
    expected = run_equation(call, whole_task(call, shapes), blocks, starts)
    torch.testing.assert_close(run_whole(call, blocks), expected)


LOOKUPS = """
ids = input[6] {bounds}
table = weight[9, 3]
return mean_loss(embedding(ids, table))
"""


@pytest.mark.parametrize(
    ("bounds", "is_plain"),
    [
        ("below 9", True),
        ("below 5", True),
        ("below 10", False),
        ("from -1 below 9", False),
        ("", False),
    ],
)
def test_ids_that_are_rows_are_looked_up_by_torch_itself(bounds, is_plain):
    text = LOOKUPS.format(bounds=bounds)
    (segment,) = blocks_of(program(text).instructions, frozenset())
    assert isinstance(segment, Segment)
    run = segment.instructions[0]
    assert isinstance(run, Run)
    assert (run.call.operator == LOOKUP) == is_plain
    losses, weights = trained(text)
    with patch("runtime.execute.segment.looked_up", lambda instruction, inputs: instruction):
        expected, others = trained(text)
    assert losses == expected
    for register, weight in weights.items():
        torch.testing.assert_close(weight, others[register], rtol=0, atol=0)


def test_a_block_of_a_table_has_other_ids_too():
    graph = parse_graph(
        "ids = input[6] below 8\ntable = weight[8, 3]\nreturn mean_loss(embedding(ids, table))"
    )
    cut = parse_graph(
        "ids = input[6] below 8\ntable = weight[8, 3]\n"
        "rows = embedding(replicate(ids, degree=2), partition(table, dim=0, degree=2))\n"
        "return mean_loss(reduce(rows, degree=2))"
    )
    lowering = Lowering(make_plan(graph, cut, 2, {}))
    for rank in (0, 1):
        blocks = blocks_of(lowering.program(rank).instructions, frozenset())
        runs = [i for block in blocks if isinstance(block, Segment) for i in block.instructions]
        assert "embedding" in [i.call.name for i in runs if isinstance(i, Run)]
