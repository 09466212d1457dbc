"""The plan that is found for a small graph against all plans that there are."""

from __future__ import annotations

import pytest
from behaviour import assert_same
from exhaustive import Exhaustive, closure

from pcg.evaluate import by_equation
from pcg.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.schedule import schedule
from pcg.text import parse_graph, print_graph
from search.cost import CostModel
from search.mesh.planner import MeshPlanner
from search.simulate import simulate
from substitutions.audit.replay import replay
from substitutions.store import Library, load_library

GROWTH = 1
"""Operators that rules about whole tensors may add."""
LEAVES = "x = input[{b}, {h}]\nw = weight[{h}, {o}]\n"
GRAPHS = {
    "product": "return mean_loss(matmul(x, w))",
    "relu": "return mean_loss(relu(matmul(x, w)))",
    "softmax": "return mean_loss(softmax(matmul(x, w), axis=1))",
    "square": "t = matmul(x, w)\nreturn mean_loss(multiply(t, t))",
    "transpose": "return mean_loss(relu(transpose(matmul(x, w), dim0=0, dim1=1)))",
    "residual": "t = matmul(x, w)\nreturn mean_loss(gelu(add(relu(t), t)))",
    "two products": "v = weight[{o}, {h}]\nreturn mean_loss(relu(matmul(matmul(x, w), v)))",
    "layers": "v = weight[{o}, {h}]\nreturn mean_loss(matmul(relu(matmul(x, w)), v))",
    "shared": "v = weight[{h}, {o}]\nreturn mean_loss(add(matmul(x, w), matmul(x, v)))",
}
SIZES = ((12, 24, 12), (96, 384, 768), (4096, 1536, 48), (384, 1536, 1536))
SLOW = ("square", "relu", "product")
"""Graphs of which all plans for four devices are few enough."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def graph_of(name: str, sizes: tuple[int, int, int]) -> Graph:
    return parse_graph((LEAVES + GRAPHS[name]).format(**dict(zip("bho", sizes, strict=True))))


def check(library: Library, machine: Machine, graph: Graph) -> None:
    plan = MeshPlanner(machine, library).plan("small", graph).plan
    assert_same(graph, plan.graph, by_equation)
    assert not replay(plan, library.rules).findings
    steps = schedule(plan.graph, plan.views)
    seconds = simulate(steps, CostModel(machine)).step_seconds
    assert plan.estimates.step_seconds == pytest.approx(seconds, rel=1e-12)
    every = Exhaustive(machine, seconds * (1 - 1e-9))
    for equal in closure(graph, library, GROWTH):
        every.look(equal)
    print(f"{every.simulated} plans and parts of plans simulated")
    assert every.best is None, f"{every.than} s, found {seconds} s\n{print_graph(every.best)}"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("product", (4096, 1536, 48)),  # partial sums pass through the loss
        ("relu", (96, 384, 768)),
        ("residual", (384, 1536, 1536)),
        ("two products", (384, 1536, 1536)),
        ("shared", (4096, 1536, 48)),
    ],
)
def test_no_plan_of_a_small_graph_is_faster(library, name, sizes):
    check(library, load_machine("summit").with_devices(2), graph_of(name, sizes))


@pytest.mark.benchmark
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("name", "machine", "devices"),
    [(name, "summit", 2) for name in GRAPHS] + [(name, "dgx-a100", 4) for name in SLOW],
)
def test_no_plan_of_any_small_graph_is_faster(library, name, sizes, machine, devices):
    check(library, load_machine(machine).with_devices(devices), graph_of(name, sizes))


def test_what_is_looked_at_has_faster_plans_than_the_whole_on_one_device():
    """What these tests rest on: with a worse plan to beat, the best one comes out."""
    machine = load_machine("summit").with_devices(2)
    graph = graph_of("product", (4096, 1536, 48))
    every = Exhaustive(machine, 1.0)
    every.look(graph)
    assert every.best is not None
    steps = schedule(every.best, every.views)
    assert simulate(steps, CostModel(machine)).step_seconds == every.than
    again = Exhaustive(machine, every.than)
    again.look(graph)
    assert again.best is None
