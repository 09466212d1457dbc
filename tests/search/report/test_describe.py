"""A plan in the words of practitioners."""

from __future__ import annotations

from functools import lru_cache

import pytest

from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.choices import IndexRole
from search.plan.planner import MeshPlanner
from search.report.describe import overall, rows
from substitutions.rules.store import load_library

MACHINE = load_machine("dgx-a100").with_devices(2)
PERCEPTRON = """
x = input[8192, 8192]
w = weight[8192, 8192]
v = weight[8192, 8192]
return mean_loss(matmul(relu(matmul(x, w)), v))
"""
ATTENTION = """
q = input[2, 4, 4096, 256]
k = input[2, 4, 4096, 256]
v = input[2, 4, 4096, 256]
return mean_loss(attention(q, k, v))
"""


@lru_cache(maxsize=4)
def planned(text: str, dimension: IndexRole) -> Plan:
    planner = MeshPlanner(MACHINE, load_library(), dimensions=frozenset({dimension}))
    return planner.plan("m", parse_graph(text)).plan


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        (ATTENTION, IndexRole.HEAD),
        *(
            pytest.param(PERCEPTRON, role, marks=pytest.mark.soak)
            for role in (IndexRole.DATA, IndexRole.MODEL, IndexRole.REDUCTION)
        ),
    ],
)
def test_cuts_have_the_names_of_the_allowed_dimensions(text, dimension):
    cuts = [row.cut for row in rows(planned(text, dimension))]
    words = {part.split()[0] for cut in cuts for part in cut.split(" x ")}
    assert dimension in words
    assert words <= {dimension, "whole", "partials", "copies", "join"}


def test_all_operators_are_described_in_one_line():
    plan = planned(PERCEPTRON, IndexRole.DATA)
    assert overall(plan) == "data 2 in 2 of 2 operators with weights"
    assert overall(planned(ATTENTION, IndexRole.HEAD)).startswith("head 2 in 1 of 2 operators")
