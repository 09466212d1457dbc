"""The cost model, against its formulas computed by hand, and the paper's count of elements."""

from __future__ import annotations

import json

import pytest

from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout, default_layout, grid
from pcg.placement.schedule import Schedule, schedule
from pcg.placement.transfer import transfer
from pcg.placement.view import MachineView
from pcg.plan.precision import Precision
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from pcg.types.tensor import Degrees, ParallelTensor
from search.cost.collectives import BUCKET
from search.cost.cost import CostModel, communication_elements
from search.cost.efficiency import PLAIN

ALPHA, BETA = 1e-5, 1e9
RATE, MEMORY, LAUNCH = 1e12, 1e10, 1e-6


def machine() -> Machine:
    """Two nodes of four devices. Between nodes, the latency is ten times higher and the rate a
    tenth."""
    content = {
        "schema_version": 1,
        "name": "test",
        "device": {
            "kind": "gpu",
            "flops": {"float64": RATE / 2, "float32": RATE},
            "memory_bytes": 10**9,
            "memory_bandwidth": MEMORY,
            "kernel_latency": LAUNCH,
        },
        "level": [
            {"name": "node", "count": 4, "latency": ALPHA, "bandwidth": BETA},
            {"name": "cluster", "count": 2, "latency": 10 * ALPHA, "bandwidth": BETA / 10},
        ],
    }
    return Machine.model_validate_json(json.dumps(content))


def typed(shape: tuple[int, ...], dims=None, copies: int = 1, partials: int = 1) -> ParallelTensor:
    ones = (1,) * len(shape)
    return ParallelTensor(shape, Degrees(dims or ones, ones, copies, partials))


def moved(source: Layout, target: Layout, precision: Precision = "fp32") -> float:
    cost = CostModel(machine(), Training(precision=precision), PLAIN)
    return cost.movement(transfer(source, target)).longest


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    graph.check()
    return graph


def packed(graph: Graph) -> Schedule:
    """Every operator on the first devices."""
    views = {
        node: MachineView.packed(0, grid(node))
        for node in graph.nodes
        if not (node.is_leaf or node.is_parallel)
    }
    return schedule(graph, views)


def test_compute_time_is_the_longer_of_products_and_memory():
    cost = CostModel(machine(), speed=PLAIN)
    compute_bound = checked("x = input[1000, 1000]\nw = weight[1000, 1000]\nreturn matmul(x, w)")
    node = compute_bound.outputs[0].node
    forward, backward = cost.compute_seconds(node, frozenset({1}))
    assert forward == backward == pytest.approx(LAUNCH + 2e9 / RATE)
    _, both = cost.compute_seconds(node, frozenset({0, 1}))
    assert both == pytest.approx(2 * LAUNCH + 4e9 / RATE)
    memory_bound = checked("x = input[1000, 1000]\nreturn relu(x)").outputs[0].node
    assert cost.compute_seconds(memory_bound, frozenset()) == (
        pytest.approx(LAUNCH + 2 * 4e6 / MEMORY),
        0.0,
    )
    double = CostModel(machine(), Training(precision="fp64"), PLAIN)
    assert double.compute_seconds(node, frozenset())[0] == pytest.approx(LAUNCH + 4e9 / RATE)


def test_all_reduce():
    """A tree is faster if latency counts, a ring if bandwidth does."""
    tried: list[tuple[int, Precision, int]] = [
        *((1000, "fp32", 4), (10**6, "fp32", 4), (10**6, "fp16", 2))
    ]
    for size, precision, itemsize in tried:
        parts, copies = typed((size,), partials=4), typed((size,), copies=4)
        block = size * itemsize
        around = 6 * ALPHA + 6 / 4 * block / BETA
        up_and_down = 4 * ALPHA + 2 * block / BETA
        assert (around < up_and_down) == (size == 10**6)
        assert moved(default_layout(parts), default_layout(copies), precision) == pytest.approx(
            min(around, up_and_down)
        )


def test_all_reduce_between_nodes():
    """Within each node, then in four pairs that share the nodes' ports; or a tree of all."""
    for size in (100, 10**6):
        parts, copies = typed((size,), partials=8), typed((size,), copies=8)
        # A ring through whole nodes has all their ports between nodes.
        outer = 4 * BETA / 10
        inside = 6 * ALPHA + 6 / 4 * 4 * size / BETA
        across = 2 * 10 * ALPHA + 4 * size / outer
        tree = 2 * 3 * 10 * ALPHA + 2 * 4 * size / outer
        assert moved(default_layout(parts), default_layout(copies)) == pytest.approx(
            min(inside + across, tree)
        )


def test_equal_layouts_cost_nothing_and_a_cut_in_place_costs_a_copy():
    whole = typed((1000,), copies=4)
    assert moved(default_layout(whole), default_layout(whole)) == 0.0
    cut = typed((1000,), dims=(4,))
    assert moved(default_layout(whole), default_layout(cut)) == pytest.approx(
        LAUNCH + 2 * 1000 / MEMORY
    )


def test_all_gather():
    cut, whole = typed((1000,), dims=(4,)), typed((1000,), copies=4)
    assert moved(default_layout(cut), default_layout(whole)) == pytest.approx(
        3 * ALPHA + 3 * 1000 / BETA
    )


def test_messages_by_kind_of_link():
    whole, cut = typed((1000,)), typed((1000,), dims=(8,))
    # Device 0 sends to three of its node and to four of the other.
    inside = 3 * ALPHA + 3 * 500 / BETA
    outside = 4 * 10 * ALPHA + 4 * 500 / (BETA / 10)
    assert moved(default_layout(whole), default_layout(cut)) == pytest.approx(inside + outside)
    assert moved(default_layout(cut), default_layout(whole)) == pytest.approx(inside + outside)


def test_all_to_all():
    """From rows to columns: a message to each peer, over the link to it."""
    rows, columns = typed((80, 80), dims=(8, 1)), typed((80, 80), dims=(1, 8))
    message = 4 * 10 * 10
    inside = 3 * (ALPHA + message / BETA)
    outside = 4 * (10 * ALPHA + message / (BETA / 10))
    assert moved(default_layout(rows), default_layout(columns)) == pytest.approx(inside + outside)


def test_weight_costs_its_synchronization_and_update():
    cost = CostModel(machine(), speed=PLAIN)
    sync, update = cost.weight(default_layout(typed((1000,), dims=(2,), copies=2)))
    assert sync.groups.tolist() == [[0, 1], [2, 3]]
    # The weight's part of the time of a whole buffer, of which a pair exchanges the halves.
    assert sync.longest == pytest.approx((2 * ALPHA + BUCKET / BETA) * 2000 / BUCKET)
    assert update.longest == pytest.approx(LAUNCH + 3 * 2000 / MEMORY)
    assert cost.weight(default_layout(typed((1000,), dims=(2,))))[0].longest == 0.0


DATA_PARALLEL = """
x = input[64, 784]
w1 = weight[784, 512]
w2 = weight[512, 10]
a = matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2))
c = matmul(relu(a), replicate(w2, degree=2))
target = input[64, 10]
d = add(c, scale(partition(target, dim=0, degree=2), factor=-1.0))
return reduce(mean_loss(multiply(d, d)), degree=2)
"""

REDUCTION_PARALLEL = """
x = input[64, 784]
w1 = weight[784, 512]
w2 = weight[512, 10]
a = matmul(partition(x, dim=1, degree=2), partition(w1, dim=0, degree=2))
b = relu(replicate(reduce(a, degree=2), degree=2))
c = matmul(b, partition(w2, dim=1, degree=2))
target = input[64, 10]
d = add(c, scale(partition(target, dim=1, degree=2), factor=-1.0))
return reduce(mean_loss(multiply(d, d)), degree=2)
"""


def test_elements_of_data_parallelism():
    """Paper, section 1: 2 (c_in h + h c_out), the weights' gradients."""
    elements = communication_elements(packed(checked(DATA_PARALLEL)))
    assert elements == 2 * (784 * 512 + 512 * 10) == 813_056


def test_elements_of_reduction_parallelism():
    """Paper, section 1: 4 b h, the hidden layer and its gradient."""
    elements = communication_elements(packed(checked(REDUCTION_PARALLEL)))
    assert elements == 4 * 64 * 512 == 131_072


def test_no_gradient_for_data_or_for_predictions():
    graph = checked(
        """
        x = input[8, 8]
        w = weight[8, 8]
        y = combine(relu(partition(x, dim=0, degree=2)), dim=0, degree=2)
        z = matmul(y, w)
        return mean_loss(z), replicate(z, degree=2)
        """
    )
    priced = packed(graph)
    # Half of y to the first device, and z to the second; nothing comes back.
    assert communication_elements(priced) == 32 + 64
    assert gradients(priced).weights == (graph.leaves[1],)


def test_gradients_enter_a_part_of_a_model_at_all_outputs():
    graph = checked("w = weight[8, 8]\nreturn relu(w), replicate(gelu(w), degree=2)")
    assert communication_elements(packed(graph)) == 2 * 64
