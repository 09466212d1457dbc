"""Values that are whole numbers. A value that selects rows has to be one."""

from __future__ import annotations

import pytest

from pcg.plan.text import parse_graph
from pcg.readings.integers import integer_values

CALLS = {
    "add(ids, others)": True,
    "scale(ids, factor=-2.0)": True,
    "scale(ids, factor=0.5)": False,
    "maximum(ids, others)": True,
    "maximum(ids, x)": False,
    "minimum(ids, others)": True,
    "relu(ids)": True,
    "relu(x)": False,
    "clamp(ids, low=0.0, high=7.0)": True,
    "clamp(ids, low=0.5, high=7.0)": False,
    "clamp(x, low=0.0, high=7.0)": False,
    "divide(ids, others)": False,
    "exp(ids)": False,
}


@pytest.mark.parametrize("call", CALLS)
def test_whole_numbers(call: str) -> None:
    graph = parse_graph(
        f"""
        ids = input[4] below 8
        others = input[4] below 3
        x = input[4]
        y = {call}
        return y
        """
    )
    assert (graph.outputs[0] in integer_values(graph)) == CALLS[call]
