"""The plan of the search for a small graph, against all plans."""

from __future__ import annotations

from itertools import islice
from math import inf
from random import Random

import pytest
from support.mixed import mixed
from support.plans.exhaustive import Exhaustive, PartialPlan
from support.plans.small_graphs import GRAPHS, SIZES, compared, graph_of

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.placement.schedule import schedule
from pcg.plan.text import print_graph
from search.cost.cost import CostModel
from search.cost.simulate import simulate
from substitutions.rules.store import Library, load_library

PRIMES = (7, 11, 13)
"""Sizes that cannot be cut."""
ROWS = ("product", "relu", "square")
MORE = ("softmax", "transpose", "residual")
"""Graphs with few enough plans on four devices. ``ROWS`` has few enough on eight."""
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


def check(library: Library, machine: Machine, graph: Graph) -> None:
    made = compared(library, machine, graph)
    print(made)
    assert made.best is None, f"{made}\n{print_graph(made.best)}"


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
        # Two operators change together.
        pytest.param("summit", 6, "product", (12, 24, 12), marks=pytest.mark.soak),
        pytest.param("dgx-a100", 8, "product", (4096, 1536, 48), marks=pytest.mark.soak),
    ],
)
def test_no_plan_of_a_small_graph_is_faster(library, machine, devices, name, sizes):
    check(library, load_machine(machine).with_devices(devices), graph_of(name, sizes))


@pytest.mark.benchmark
@pytest.mark.parametrize(("machine", "devices", "name", "sizes"), CASES)
def test_no_plan_of_any_small_graph_is_faster(library, machine, devices, name, sizes):
    check(library, load_machine(machine).with_devices(devices), graph_of(name, sizes))


def of_two_kinds(first: str, second: str) -> Machine:
    """Two devices, one of each machine's kind."""
    return mixed(load_machine(first), load_machine(second), per_node=1, nodes=2)


@pytest.mark.parametrize(
    ("first", "second", "name", "sizes"),
    [
        ("dgx-a100", "p3-16xlarge", "product", (12, 24, 12)),
        ("p3-16xlarge", "dgx-a100", "layers", (12, 24, 12)),  # on the second kind alone
        # The second kind first.
        pytest.param("p3-16xlarge", "dgx-a100", "branches", (12, 24, 12), marks=pytest.mark.soak),
    ],
)
def test_no_plan_on_two_kinds_of_devices_is_faster(library, first, second, name, sizes):
    check(library, of_two_kinds(first, second), graph_of(name, sizes))


@pytest.mark.benchmark
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kinds", [("p3-16xlarge", "dgx-a100"), ("dgx-a100", "p3-16xlarge")])
def test_no_plan_on_two_kinds_of_any_small_graph_is_faster(library, kinds, name, sizes):
    check(library, of_two_kinds(*kinds), graph_of(name, sizes))


@pytest.mark.parametrize(
    ("name", "machine", "devices", "seed"),
    [
        ("layers", "dgx-a100", 4, 0),
        ("layers", "summit", 6, 5),  # the gradient of a weight comes late
        ("residual", "dgx-a100", 4, 0),
        *(
            pytest.param(name, machine, devices, seed, marks=pytest.mark.soak)
            for name in GRAPHS
            for machine, devices in (("dgx-a100", 4), ("summit", 6))
            for seed in range(1, 5)
        ),
    ],
)
def test_a_part_of_a_plan_takes_no_longer_than_the_whole(name, machine, devices, seed):
    """Pruning rests on this property. It is checked for random plans."""
    random = Random(seed)
    graph = graph_of(name, random.choice(SIZES))
    every = Exhaustive(load_machine(machine).with_devices(devices), inf)
    parts: list[PartialPlan] = []
    while every.best is None:  # copies are not undone, so not every beginning has an end
        parts = at_random(every, graph, random)
        every.end(graph, parts[-1])
    assert all(part.seconds <= every.than for part in parts)


def at_random(every: Exhaustive, graph: Graph, random: Random) -> list[PartialPlan]:
    """The parts of a random plan, each with one operator more, as long as one can be placed."""
    rest = dict(every.begin(graph))
    parts = [every.nothing_placed(graph)]
    for node in list(rest):
        del rest[node]
        ways = list(islice(every.ways(node, rest, parts[-1]), 120))
        if not ways:
            return [every.nothing_placed(graph)]
        parts.append(random.choice(ways))
    return parts


def test_exhaustive_search_finds_a_plan_faster_than_one_device():
    """The other tests rest on this: with a slower plan to beat, the search finds the best one."""
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
