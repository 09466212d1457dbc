"""The examples of joint optimization in section 6.4 of the Unity paper, as the search finds them.

Each model is planned with algebra first and parallelization after it (``sequential``), and with
both together (``joint``), by one cost model, on one machine.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.placement.schedule import trace
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.choices import IndexRole, Mode
from search.plan.planner import MeshPlanner
from search.report.describe import rows
from substitutions.rules.store import load_library

library = lru_cache(maxsize=1)(load_library)


def planned(graph: Graph, mode: Mode, dimensions: frozenset[IndexRole] | None = None) -> Plan:
    """The plan on two GPUs. ``dimensions``: the dimensions that may be cut, if not all."""
    machine = load_machine("summit").with_devices(2)
    planner = MeshPlanner(machine, library(), mode=mode, dimensions=dimensions)
    return planner.plan("example", graph).plan


def seconds(plan: Plan) -> float:
    return plan.estimates.step_seconds


def layers(plan: Plan) -> list[tuple[str, str]]:
    """The operators of the layers, with their cuts."""
    named = [(row.call.partition("(")[0], row.cut) for row in rows(plan)]
    return [(name, cut) for name, cut in named if name in ("matmul", "relu", "matmul_relu")]


@lru_cache(maxsize=3)
def perceptron(mode: Mode) -> Plan:
    """Figure 16a: the perceptron of figure 1 with a wider layer before it, on two GPUs."""
    graph = parse_graph(
        """
        x = input[64, 784]
        w1 = weight[784, 4096]
        w2 = weight[4096, 512]
        w3 = weight[512, 10]
        return mean_loss(matmul(relu(matmul(relu(matmul(x, w1)), w2)), w3))
        """
    )
    return planned(graph, mode)


@pytest.mark.soak
def test_fusing_first_leaves_no_reduction_to_cut():
    sequential = perceptron(Mode.SEQUENTIAL)
    names = [name for name, _ in layers(sequential)]
    assert names == ["matmul_relu", "matmul_relu", "matmul"]
    # A sum is inside of the relu, so none of the fused products is cut along it.
    assert not any("reduction" in cut for name, cut in layers(sequential) if name == "matmul_relu")


@pytest.mark.soak
def test_a_product_is_left_unfused_for_reduction_parallelism():
    sequential, joint = (perceptron(mode) for mode in (Mode.SEQUENTIAL, Mode.JOINT))
    (first, _), (second, cut), (third, _), _ = layers(joint)
    assert (first, second, third) == ("matmul_relu", "matmul", "relu")
    assert cut == "reduction 2"
    relu = next(node for node in joint.graph.nodes if node.name == "relu")
    source, chain = trace(relu.inputs[0])
    assert source.node.name == "matmul"
    assert chain[0].name == "reduce"
    assert seconds(joint) < 0.96 * seconds(sequential)


@pytest.mark.soak
def test_joint_plan_is_faster_than_one_without_algebra():
    assert seconds(perceptron(Mode.JOINT)) < 0.98 * seconds(perceptron(Mode.PARALLEL))


@pytest.mark.soak
def test_joint_plan_communicates_less_than_a_quarter_of_the_sequential_plan():
    sequential, joint = (perceptron(mode) for mode in (Mode.SEQUENTIAL, Mode.JOINT))
    exchanged = [plan.estimates.communication_elements for plan in (joint, sequential)]
    assert 4 * exchanged[0] < exchanged[1]


def recommender(rows_each: int, columns: int, width: int, batch: int) -> Graph:
    """Rows of three tables side by side, as in DLRM and XDL, and a narrower layer."""
    text = [f"w = weight[{3 * columns}, {width}]"]
    for i in range(3):
        text.append(f"ids{i} = input[{batch}] below {rows_each}")
        text.append(f"table{i} = weight[{rows_each}, {columns}]")
        text.append(f"found{i} = embedding(ids{i}, table{i})")
    text.append("joined = concat(concat(found0, found1, axis=1), found2, axis=1)")
    text.append("return mean_loss(relu(matmul(joined, w)))")
    return parse_graph("\n".join(text))


@lru_cache(maxsize=1)
def recommended() -> tuple[Plan, ...]:
    """The plans with both together, and without algebra."""
    graph = recommender(20_000, 512, 32, 4096)
    return tuple(planned(graph, mode) for mode in (Mode.JOINT, Mode.PARALLEL))


@pytest.mark.soak
def test_concatenation_is_replaced_by_sums_of_products():
    """The rules have it in parts: a weight is the concat of its parts, and a product of two concats
    is a sum of products. A table that is cut by columns then feeds a product that is cut along its
    sum, and a whole table a whole product: on the same devices, or each on one of its own. Only the
    sum of all products is communicated."""
    joint, parallel = recommended()
    names = [node.name for node in joint.graph.nodes]
    assert "concat" not in names
    assert names.count("add") == 2
    products = [node for node in joint.graph.nodes if node.name == "matmul"]
    cuts = [row.cut for row in rows(joint) if row.call.startswith("matmul")]
    assert sorted(cuts) == ["reduction 2", "whole", "whole"]
    for product in products:
        source, _ = trace(product.inputs[0])
        assert source.node.name == "embedding"
        assert joint.views[source.node].devices == joint.views[product].devices
    assert [node.name for node in parallel.graph.nodes].count("concat") == 2
    assert seconds(joint) < 0.7 * seconds(parallel)


def convolution(x: str, kernel: str, padding: int) -> str:
    """A convolution of images of 35 x 35, with a relu after it."""
    places = "height=35, width=35, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1"
    return f"relu(conv2d({x}, {kernel}, {places}, top={padding}, left={padding}))"


@lru_cache(maxsize=1)
def branches() -> tuple[Plan, ...]:
    """Plans of two branches of an Inception block on 35 x 35, without norms: with algebra and cuts
    together, and without algebra."""
    graph = parse_graph(
        f"""
        images = input[64, 8, 35, 35]
        stem = weight[288, 8, 1, 1]
        k1 = weight[64, 288, 1, 1]
        k2 = weight[48, 288, 1, 1]
        k3 = weight[64, 48, 5, 5]
        x = {convolution("images", "stem", 0)}
        a = {convolution("x", "k1", 0)}
        b = {convolution(convolution("x", "k2", 0), "k3", 2)}
        return mean_loss(concat(a, b, axis=1))
        """
    )
    batch = frozenset({IndexRole.DATA})  # the best here, and soon found
    return tuple(planned(graph, mode, batch) for mode in (Mode.JOINT, Mode.PARALLEL))


@pytest.mark.soak
def test_convolutions_of_one_input_are_merged():
    """The input is read once. Its gradient comes from one operator, so no sum of two is made."""
    joint, parallel = branches()
    shapes = [node.inputs[1].type.shape for node in joint.graph.nodes if node.name == "conv2d"]
    assert shapes == [(288, 8, 1, 1), (112, 288, 1, 1), (64, 48, 5, 5)]
    merged = next(n for n in joint.graph.nodes if n.name == "conv2d" and n.types[0].shape[1] == 112)
    kernel, _ = trace(merged.inputs[1])
    assert kernel.node.name == "concat"
    names = [node.name for node in joint.graph.nodes]
    # One relu for both branches, before they part.
    assert (names.count("relu"), names.count("split")) == (3, 1)
    assert [node.name for node in parallel.graph.nodes].count("conv2d") == 4
    assert seconds(joint) < 0.99 * seconds(parallel)
