"""The kind of an operator, from its equation."""

from __future__ import annotations

import pytest

from pcg.plan.text import parse_graph
from pcg.readings.kind import kind_of

WINDOW = "height=6, width=6, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1, top=0, left=0"
CALLS = {
    "matmul(m, m)": "contraction",
    "matmul(relu(t), m)": "contraction",
    f"conv2d(image, kernel, {WINDOW})": "contraction",
    "relu(m)": "pointwise",
    "multiply(m, m)": "pointwise",
    "transpose(m, dim0=0, dim1=1)": "pointwise",
    "embedding(ids, m)": "pointwise",
    "index_add(ids, ids, m, axis=1)": "pointwise",
    "scatter_add(ids, ids_of_m, m, axis=0)": "pointwise",
    "softmax(m, axis=1)": "reduction",
    "mean_loss(m)": "reduction",
    "sum_axis(m, axis=0)": "reduction",
}


@pytest.mark.parametrize("call", CALLS)
def test_kind_of_each_operator(call: str):
    graph = parse_graph(
        f"""
        m = weight[8, 8]
        t = weight[4, 8, 8]
        ids = input[8]
        ids_of_m = input[8, 8]
        image = input[2, 4, 8, 8]
        kernel = weight[8, 4, 3, 3]
        return {call}
        """
    )
    assert kind_of(graph.outputs[0].node) == CALLS[call]
