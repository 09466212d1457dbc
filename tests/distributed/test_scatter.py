"""Messages along edges on four devices, in each cut that sums by place allow."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.distributed

LEAVES = """
x = input[8, 4]
w = weight[4, 8]
source = input[12] below 8
target = input[12] below 8
each = input[12, 8] below 8
y = input[8, 8]
places = ones1(size0=8)
"""
END = """
error = add(into, scale(y, factor=-1.0))
loss = mean_loss(multiply(error, error))
return loss, into
"""
SENT = "sent = relu(embedding(source, matmul(x, w)))"
BY_EDGES = """
sent = relu(embedding(partition(source, dim=0, degree=4), replicate(matmul(x, w), degree=4)))
"""
OF_SLICES = f"{LEAVES}{SENT}\ninto = index_add(places, target, sent, axis=0){END}"
OF_ELEMENTS = f"{LEAVES}{SENT}\ninto = scatter_add(places, each, sent, axis=0){END}"

WAYS = {
    "edges": (
        OF_SLICES,
        f"""{BY_EDGES}
        own = partition(target, dim=0, degree=4)
        into = reduce(index_add(replicate(places, degree=4), own, sent, axis=0), degree=4)
        """,
    ),
    "edges, of elements": (
        OF_ELEMENTS,
        f"""{BY_EDGES}
        own = partition(each, dim=0, degree=4)
        into = reduce(scatter_add(replicate(places, degree=4), own, sent, axis=0), degree=4)
        """,
    ),
    "nodes": (
        OF_SLICES,
        f"""{SENT}
        own = partition(places, dim=0, degree=4)
        parts = index_add(own, replicate(target, degree=4), replicate(sent, degree=4), axis=0)
        into = combine(parts, dim=0, degree=4)
        """,
    ),
    "nodes and features, of elements": (
        OF_ELEMENTS,
        f"""{SENT}
        own = replicate(partition(places, dim=0, degree=2), degree=2)
        ids = replicate(partition(each, dim=1, degree=2), degree=2)
        rows = replicate(partition(sent, dim=1, degree=2), degree=2)
        parts = scatter_add(own, ids, rows, axis=0)
        into = combine(combine(parts, dim=0, degree=2), dim=1, degree=2)
        """,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_sums_by_place(agree, way: str) -> None:
    whole, cut = WAYS[way]
    agree(whole, f"{LEAVES}{cut}{END}")
