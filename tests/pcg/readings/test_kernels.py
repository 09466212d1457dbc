"""The kernels of operators."""

from __future__ import annotations

from math import prod
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.random_graphs import random_graph

from pcg.capture import capture
from pcg.graph.graph import Graph, Node
from pcg.plan.text import parse_graph
from pcg.readings.kernel_use import SEPARATE
from pcg.readings.kernels import kernel_uses, unfused_use
from pcg.readings.saved import read_elements
from pcg.readings.work import Work, gradient_nodes, work


def needs_of(graph: Graph, node: Node) -> frozenset[int]:
    trained = gradient_nodes(graph)
    return frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)


def works(graph: Graph, *, compiled: bool) -> dict[Node, Work]:
    uses = kernel_uses(graph, compiled=compiled)
    return {node: work(node, needs_of(graph, node), 4, 4, uses[node]) for node in uses}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_kernels_together_do_no_more_than_each_by_itself(seed: int):
    """In both directions. Compiled operators launch no more kernels than others."""
    graph = random_graph(Random(seed), 8, 8)
    apart = {node: work(node, needs_of(graph, node)) for node in kernel_uses(graph)}
    eager, compiled = works(graph, compiled=False), works(graph, compiled=True)
    for node, alone in apart.items():
        for more, less in ((alone, eager[node]), (eager[node], compiled[node])):
            assert less.bytes_forward <= more.bytes_forward
            assert less.bytes_backward <= more.bytes_backward
            assert less.kernels_forward <= more.kernels_forward
            assert less.kernels_backward <= more.kernels_backward
            assert less.flops_forward == more.flops_forward


@pytest.mark.parametrize(
    ("text", "launches"),
    [
        ("transpose(x, dim0=0, dim1=1)", False),
        ("flatten(x, axis=0)", False),
        ("expand(x, axis=0, size=3)", False),
        ("relu(x)", True),
        ("scale(x, factor=2.0)", True),
    ],
)
def test_a_view_is_no_kernel(text: str, launches: bool):
    node = parse_graph(f"x = weight[4, 6]\nreturn {text}").outputs[0].node
    use = unfused_use(node)
    assert use.launches == launches
    done = work(node, frozenset({0}), 4, 4, use)
    assert bool(done.bytes_forward) == launches
    # The backward pass of a repetition is a sum. A view of all elements needs no kernel.
    repeats = prod(node.types[0].shape) > 24
    assert bool(done.kernels_backward) == (launches or repeats)


def test_the_gradient_of_a_sum_is_that_of_each_summand():
    node = parse_graph("x = weight[4]\ny = weight[4]\nreturn add(x, y)").outputs[0].node
    assert unfused_use(node).as_is == {0, 1}
    assert work(node, frozenset({0, 1}), 4, 4, unfused_use(node)).kernels_backward == 0
    for other in ("multiply(x, y)", "subtract(x, y)"):
        node = parse_graph(f"x = weight[4]\ny = weight[4]\nreturn {other}").outputs[0].node
        assert 1 not in unfused_use(node).as_is


LINEAR = """
x = input[8, 16]
w = weight[16, 32]
b = weight[32]
h = matmul(x, w)
y = add(h, expand_vector(h, b, axis=1))
"""


def test_a_bias_is_added_by_the_product():
    graph = parse_graph(LINEAR + "return mean_loss(gelu(y))")
    done = {node.name: own for node, own in works(graph, compiled=False).items()}
    assert done["add"].kernels_forward == done["add"].bytes_forward == 0
    assert done["matmul"].kernels_forward == 1
    # Not if another operator reads the product.
    graph = parse_graph(LINEAR + "return mean_loss(multiply(y, h))")
    done = {node.name: own for node, own in works(graph, compiled=False).items()}
    assert done["add"].kernels_forward == 1


def test_compiled_element_wise_operators_are_one_kernel():
    text = "x = input[8, 16]\nw = weight[8, 16]\nh = multiply(x, w)\n"
    graph = parse_graph(text + "return sum_loss(gelu(relu(h)))")
    apart, together = works(graph, compiled=False), works(graph, compiled=True)
    assert sum(own.kernels_forward for own in apart.values()) == 4
    assert sum(own.kernels_forward for own in together.values()) == 1
    # The two operands are read, and the sum is written.
    assert sum(own.bytes_forward for own in together.values()) == (2 * 8 * 16 + 1) * 4
    # A value with two readers is written.
    graph = parse_graph(text + "return sum_loss(add(gelu(h), relu(h)))")
    uses = kernel_uses(graph, compiled=True)
    written = [node.name for node, use in uses.items() if use.is_written]
    assert written == ["multiply", "sum_loss"]


def test_operand_read_for_its_shape_alone_is_not_written():
    """Scores are read to repeat a mask for their shape, and the mask is added to them, all in one
    kernel."""
    text = "x = input[8, 4, 4]\nm = input[4, 4]\nw = weight[8, 4, 4]\nh = multiply(x, w)\n"
    graph = parse_graph(text + "return sum_loss(add(h, expand_as(h, m, axis=0)))")
    uses = kernel_uses(graph, compiled=True)
    assert [node.name for node, use in uses.items() if use.is_written] == ["sum_loss"]
    numbers = {node.name: read_elements(node) for node in graph.operators}
    assert numbers["expand_as"] == {1}
    assert numbers["add"] == {0, 1}


class Dropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * self.w, 0.5, True).sum()


def test_drawn_mask_is_one_byte_of_the_kernel_that_reads_the_mask():
    graph = capture(Dropped(), (torch.ones(4, 6),)).graph
    for node, done in works(graph, compiled=False).items():
        use = kernel_uses(graph)[node]
        if node.name == "dropout":
            assert use.drawn == {1}
            assert done.bytes_forward == 24 * (4 + 1 + 4)
        elif node.name in ("negate", "shift", "scale", "clamp"):
            assert (done.bytes_forward, done.kernels_forward) == (0, 0)
        else:
            assert use.drawn == SEPARATE.drawn
