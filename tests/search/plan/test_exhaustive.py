"""The plan that is found for a small graph against all plans that there are."""

from __future__ import annotations

from itertools import islice
from math import inf
from random import Random

import pytest
from support.graphs.behaviour import assert_same
from support.plans.exhaustive import Exhaustive, Placed, closure

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import by_equation
from search.cost.cost import CostModel
from search.cost.simulate import simulate
from search.plan.planner import MeshPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import Library, load_library

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
    "branches": "v = weight[{h}, {o}]\nreturn mean_loss(add(gelu(matmul(x, w)), matmul(x, v)))",
}
SIZES = ((12, 24, 12), (96, 384, 768), (4096, 1536, 48), (384, 1536, 1536))
PRIMES = (7, 11, 13)
"""Sizes of which nothing can be cut."""
ROWS = ("product", "relu", "square")
MORE = ("softmax", "transpose", "residual")
"""Graphs of which all plans for four devices are few enough; of ``ROWS`` those for eight are."""
CASES = [
    *(("summit", 2, name, sizes) for name in GRAPHS for sizes in SIZES),
    *(("dgx-a100", 4, name, sizes) for name in (*ROWS, *MORE) for sizes in SIZES),
    *(("summit", 6, name, sizes) for name in (*ROWS, "residual", "softmax") for sizes in SIZES),
    *(("dgx-a100", 8, name, sizes) for name in ROWS for sizes in SIZES),
    *(("summit", 2, name, PRIMES) for name in ("shared", "branches")),
    ("dgx-a100", 4, "branches", PRIMES),
]


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
    best = seconds if every.best is None else every.than
    print(f"found / optimum = {seconds / best:.6f}, {every.simulated} parts of plans simulated")
    assert every.best is None, f"{every.than} s, found {seconds} s\n{print_graph(every.best)}"


@pytest.mark.parametrize(
    ("machine", "devices", "name", "sizes"),
    [
        pytest.param("summit", 2, "product", (4096, 1536, 48), marks=pytest.mark.soak),
        ("summit", 2, "relu", (12, 24, 12)),  # cut, since nothing waits for the loss
        pytest.param("summit", 2, "residual", (384, 1536, 1536), marks=pytest.mark.soak),
        pytest.param("summit", 2, "two products", (384, 1536, 1536), marks=pytest.mark.soak),
        pytest.param("summit", 2, "shared", (4096, 1536, 48), marks=pytest.mark.soak),
        ("summit", 2, "branches", PRIMES),  # side by side
        pytest.param("dgx-a100", 4, "square", (4096, 1536, 48), marks=pytest.mark.soak),
        pytest.param("summit", 6, "relu", (96, 384, 768), marks=pytest.mark.soak),
        ("summit", 6, "product", (12, 24, 12)),  # two operators change together
        pytest.param("dgx-a100", 8, "product", (4096, 1536, 48), marks=pytest.mark.soak),
    ],
)
def test_no_plan_of_a_small_graph_is_faster(library, machine, devices, name, sizes):
    check(library, load_machine(machine).with_devices(devices), graph_of(name, sizes))


@pytest.mark.benchmark
@pytest.mark.parametrize(("machine", "devices", "name", "sizes"), CASES)
def test_no_plan_of_any_small_graph_is_faster(library, machine, devices, name, sizes):
    check(library, load_machine(machine).with_devices(devices), graph_of(name, sizes))


@pytest.mark.parametrize("name", ["shared", "layers", "branches"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_part_of_a_plan_takes_no_longer_than_the_whole(name, seed):
    """What pruning rests on, for plans at random."""
    random = Random(seed)
    graph = graph_of(name, random.choice(SIZES))
    every = Exhaustive(load_machine("dgx-a100").with_devices(4), inf)
    parts: list[Placed] = []
    while every.best is None:  # copies are not taken back, so that not every beginning has an end
        parts = at_random(every, graph, random)
        every.end(graph, parts[-1])
    assert all(part.seconds <= every.than for part in parts)


def at_random(every: Exhaustive, graph: Graph, random: Random) -> list[Placed]:
    """The parts of a plan, each with one operator more, as far as one can be placed."""
    rest = dict(every.begin(graph))
    parts = [every.nothing_placed(graph)]
    for node in list(rest):
        del rest[node]
        ways = list(islice(every.ways(node, rest, parts[-1]), 120))
        if not ways:
            return [every.nothing_placed(graph)]
        parts.append(random.choice(ways))
    return parts


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
