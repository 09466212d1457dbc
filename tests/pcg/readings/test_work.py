"""The cost reading: operations and bytes counted from equations, against counts by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.graph.graph import Node
from pcg.plan.text import parse_graph
from pcg.readings.work import Work, gradient_nodes, work


def node_of(text: str) -> Node:
    """The last operator of a graph."""
    graph = parse_graph(text)
    graph.check()
    return graph.outputs[0].node


def counts(text: str, needs: set[int] | None = None) -> Work:
    """The work of the last operator, in elements. By default all operands need gradients."""
    node = node_of(text)
    wanted = frozenset(range(len(node.inputs)) if needs is None else needs)
    return work(node, wanted, 1, 1)


MATMUL = "x = input[64, 784]\nw = weight[784, 512]\nreturn matmul(x, w)"


def test_work_of_a_matmul_is_counted_by_hand():
    m, k, n = 64, 784, 512
    blocks = m * k + k * n + m * n
    assert counts(MATMUL) == Work(
        2 * m * k * n, blocks, 2 * 2 * m * k * n, 2 * blocks, kernels_forward=1, kernels_backward=2
    )
    # The first layer's input is data: the gradient of the weight alone is computed.
    assert counts(MATMUL, {1}).flops_backward == 2 * m * k * n
    assert counts(MATMUL, {1}).bytes_backward == blocks
    assert counts(MATMUL, set()) == Work(2 * m * k * n, blocks, kernels_forward=1)


def test_a_product_with_its_activation_spares_a_pass_over_memory():
    m, n = 64, 512
    fused = counts(MATMUL.replace("matmul(", "matmul_relu("))
    apart = counts(MATMUL), counts(f"x = weight[{m}, {n}]\nreturn relu(x)")
    assert fused.flops_forward == sum(w.flops_forward for w in apart)
    assert fused.kernels_forward == 1
    assert fused.bytes_forward == apart[0].bytes_forward
    # It saves nothing in the backward pass: the gradient of the product alone is computed first.
    assert fused.flops_backward == apart[0].flops_backward
    assert fused.bytes_backward == apart[0].bytes_backward
    back = fused.flops_slope, fused.bytes_slope, fused.kernels_slope
    assert back == (apart[1].flops_backward, apart[1].bytes_backward, apart[1].kernels_backward)
    assert counts(MATMUL.replace("matmul(", "matmul_relu("), set()).kernels_slope == 0


def test_bytes_grow_with_the_number_format():
    node = node_of(MATMUL)
    single, double = (work(node, frozenset({0}), itemsize, itemsize) for itemsize in (4, 8))
    assert double.bytes_forward == 2 * single.bytes_forward
    assert double.flops_forward == single.flops_forward


@given(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
def test_tasks_share_the_work_of_a_matmul(a: int, b: int, c: int):
    rows, inner, columns = 2**a, 2**b, 2**c
    text = f"""
        x = input[16/{rows}, 32/{inner}] copies={columns}
        w = weight[32/{inner}, 64/{columns}] copies={rows}
        return matmul(x, w)
        """
    whole = counts("x = input[16, 32]\nw = weight[32, 64]\nreturn matmul(x, w)")
    task = counts(text)
    assert task.flops_forward * rows * inner * columns == whole.flops_forward
    assert task.flops_backward * rows * inner * columns == whole.flops_backward
    blocks = (16 // rows) * (32 // inner) + (32 // inner) * (64 // columns)
    assert task.bytes_forward == blocks + (16 // rows) * (64 // columns)


def test_batch_matmul():
    text = "x = input[3, 4, 5]\ny = input[3, 5, 6]\nreturn batch_matmul(x, y)"
    assert counts(text).flops_forward == 2 * 3 * 4 * 5 * 6
    assert counts(text).flops_backward == 2 * counts(text).flops_forward


@pytest.mark.parametrize(
    ("call", "forward", "backward", "read_back"),
    [
        ("relu(x)", 1, 2, 1),
        ("gelu(x)", 12, 13, 1),
        ("scale(x, factor=3.0)", 1, 1, 0),
        ("add(x, y)", 1, 0, 0),
        ("multiply(x, y)", 1, 2, 2),
    ],
)
def test_work_of_elementwise_operators_is_counted_by_hand(
    call: str, forward: int, backward: int, read_back: int
):
    counted = counts(f"x = weight[8, 8]\ny = weight[8, 8]\nreturn {call}")
    operands = 2 if "y" in call else 1
    assert counted.flops_forward == forward * 64
    assert counted.bytes_forward == (operands + 1) * 64
    assert counted.flops_backward == backward * 64
    # For each operand: the output's gradient, the values that multiply it, and its own gradient.
    assert counted.bytes_backward == (2 * operands + read_back) * 64


def test_softmax_takes_each_exponential_once():
    counted = counts("x = weight[4, 10]\nreturn softmax(x, axis=1)")
    assert counted.flops_forward == 40 * 8 + 40 + 4 + 40  # exp, sum, reciprocal, product
    assert counted.bytes_forward == 80


def test_layer_norm_is_linear_in_its_size():
    text = "x = input[6, {0}]\nw = weight[{0}]\nreturn layer_norm(x, w, w, eps=0.1)"
    small, large = (counts(text.format(size)).flops_forward for size in (100, 200))
    assert large < 2 * small
    # Two sums, centring, square, product with the deviation, the weight, the bias: 7 an element.
    assert 7 * 600 <= small <= 7 * 600 + 6 * 20


EMBEDDING = "i = input[16] below 1000\nt = weight[1000{0}, 8]\nreturn embedding(i{1}, t)"


def test_embedding_is_a_look_up():
    counted = counts(EMBEDDING.format("", ""), {1})
    assert counted.flops_forward == 0
    assert counted.bytes_forward == 16 + 16 * 8 + 16 * 8
    assert counted.flops_backward == 16 * 8  # added into the rows that were read
    assert counted.bytes_backward == 16 * 8 + 16 + 1000 * 8


def test_embedding_of_a_part_of_the_table():
    text = "i = input[4] copies=500\nt = weight[1000/500, 8]\nreturn embedding(i, t)"
    assert counts(text).bytes_forward == 4 + 2 * 8 + 4 * 8  # no more rows than the task has


INDEX_ADD = """
p = input[{0}
i = input[{1} below 1000
s = weight[{2}
return index_add(p, i, s, axis=0)
"""


def test_index_add_takes_an_addition_for_each_element_of_its_source():
    counted = counts(INDEX_ADD.format("1000]", "6000]", "6000, 8]"), {2})
    # By its equation, it also reads its first operand, for each place.
    assert counted.flops_forward == 6000 * 8 + 1000 * 8 + 1000
    assert counted.bytes_forward == 1000 + 6000 + 6000 * 8 + 1000 * 8
    assert counted.flops_backward == 0
    # The result's gradient and the ids are read, the source's is written.
    assert counted.bytes_backward == 1000 * 8 + 6000 + 6000 * 8


def test_index_add_of_a_part_of_the_source_or_of_the_places():
    of_source = counts(INDEX_ADD.format("1000] copies=4", "6000/4]", "6000/4, 8]"), {2})
    assert of_source.flops_forward == 1500 * 8 + 1000 * 8 + 1000
    # Each task has a part of the places, and reads all of the source.
    of_places = counts(INDEX_ADD.format("1000/4]", "6000] copies=4", "6000, 8] copies=4"), {2})
    assert of_places.flops_forward == 6000 * 8 + 250 * 8 + 250


@pytest.mark.parametrize(
    "call",
    [
        "concat(x, y, axis=1)",
        "split(x, axis=0, at=3)",
        "transpose(x, dim0=0, dim1=1)",
        "flatten(x, axis=0)",
        "unflatten(x, axis=0, outer=2, inner=4)",
    ],
)
def test_moving_elements_is_no_arithmetic(call: str):
    counted = counts(f"x = weight[8, 8]\ny = weight[8, 8]\nreturn {call}")
    assert counted.flops_forward == counted.flops_backward == 0
    assert counted.bytes_forward == (256 if "y" in call else 128)


def test_work_of_losses_is_counted_by_hand():
    assert counts("x = weight[8]\nreturn sum_loss(x)").flops_forward == 8
    assert counts("x = weight[8]\nreturn mean_loss(x)").flops_forward == 9
    assert counts("x = weight[8]\nreturn sum_loss(x)").flops_backward == 0


def test_a_join_does_nothing():
    assert counts("x = weight[8]\nreturn join(x, relu(x))") == Work()


def test_gradients_are_wanted_where_weights_are():
    graph = parse_graph(
        """
        x = input[4, 4]
        w = weight[4, 4]
        a = relu(x)
        b = matmul(a, replicate(w, degree=1))
        return add(b, a)
        """
    )
    graph.check()
    nodes = gradient_nodes(graph)
    assert {node.name for node in nodes} == {"w", "replicate", "matmul", "add"}


def test_operand_read_for_its_shape_alone_is_not_differentiated():
    """Rotary positions are repeated to the shape of queries, but that makes them no trained values.
    So their other factor is not read in the backward pass."""
    graph = parse_graph(
        """
        x = input[4, 4]
        w = weight[4, 4]
        angles = input[4]
        a = matmul(x, w)
        b = expand_as(a, angles, axis=1)
        return multiply(a, b)
        """
    )
    graph.check()
    assert {node.name for node in gradient_nodes(graph)} == {"w", "matmul", "multiply"}
