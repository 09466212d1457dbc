"""Sequences that are cut over devices: each device has some rows of queries, and all keys and
values."""

from __future__ import annotations

import pytest

from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.choices import Mode
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

pytestmark = pytest.mark.distributed

WEIGHTS = """
x = input[2, 16, 8]
wq = weight[8, 8]
wk = weight[8, 8]
wv = weight[8, 8]
"""
WHOLE = """
q = matmul(x, wq)
k = matmul(x, wk)
v = matmul(x, wv)
"""
CUT = """
rows = partition(x, dim=1, degree=4)
q = matmul(rows, replicate(wq, degree=4))
k = replicate(combine(matmul(rows, replicate(wk, degree=4)), dim=1, degree=4), degree=4)
v = replicate(combine(matmul(rows, replicate(wv, degree=4)), dim=1, degree=4), degree=4)
"""
LOSS = "return mean_loss(multiply(y, y)), y"
SUMMED = "return reduce(mean_loss(multiply(y, y)), degree=4), combine(y, dim=1, degree=4)"

EAGER = """
scores = divide_by_root(batch_matmul(q, transpose(k, dim0=1, dim1=2)), size=8)
hidden = {mask}
y = batch_matmul(softmax(add(scores, hidden), axis=2), v)
"""
SEEN = "expand(lower_triangle(rows=16, columns=16), axis=0, size=2)"
MASK = f"scale(shift({SEEN}, offset=-1.0), factor=1e30)"
"""The mask as capture writes it."""

KINDS = {
    "causal": ("y = causal_attention(q, k, v)\n", "y = causal_attention(q, k, v)\n"),
    "all": ("y = attention(q, k, v)\n", "y = attention(q, k, v)\n"),
    "masked": (
        f"y = masked_attention(q, k, v, {MASK})\n",
        f"y = masked_attention(q, k, v, partition({MASK}, dim=1, degree=4))\n",
    ),
    "eager": (
        EAGER.format(mask=MASK),
        EAGER.format(mask=f"partition({MASK}, dim=1, degree=4)"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_attention_with_queries_cut_in_rows(agree, kind: str):
    whole, cut = KINDS[kind]
    agree(WEIGHTS + WHOLE + whole + LOSS, WEIGHTS + CUT + cut + SUMMED)


LONG = """
x = input[1, 3, 64, 8]
wq = weight[8, 8]
wk = weight[8, 8]
wv = weight[8, 8]
w = weight[8, 32]
y = matmul({kind}_attention(matmul(x, wq), matmul(x, wk), matmul(x, wv)), w)
return mean_loss(multiply(y, y)), y
"""
"""One sequence and three heads: on four devices only rows can be cut."""


@pytest.fixture(scope="module")
def found() -> Plan:
    """The plan of the search for one long sequence."""
    machine = load_machine("tests/data/two-devices.toml").with_nodes(2).with_devices(4)
    planner = MeshPlanner(machine, load_library(), mode=Mode.PARALLEL)
    return planner.plan("long", parse_graph(LONG.format(kind="causal"))).plan


def test_search_cuts_attention_in_rows(found: Plan):
    (node,) = (n for n in found.graph.operators if n.name == "causal_attention")
    queries, keys, values = (value.type.degrees for value in node.inputs)
    assert queries.dims == (1, 1, 4, 1)
    assert keys.copies == values.copies == 4


@pytest.mark.soak
def test_attention_cut_in_rows_by_the_search(agree, found: Plan):
    agree.of(found)
