"""Machine views: agreement with the schedule, and comparison with all choices there are."""

from __future__ import annotations

from itertools import product
from math import inf, prod
from random import Random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import check_each, each
from support.graphs.random_graphs import call, operators, random_graph, recut

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Value, apply, leaf
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.placement.layout import grid
from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph
from search.backtracking.mapping import Mapper, SplitSide, _components, divisions, sequence_splits
from search.backtracking.network import Arc, OperatorNetwork, network
from search.backtracking.tables import Flow, Tables
from search.backtracking.views import candidate_views
from search.cost.cost import CostModel
from search.cost.simulate import simulate


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    graph.check()
    return graph


def machine(devices: int) -> Machine:
    return load_machine("dgx-a100").with_devices(devices)


def slow_network(devices: int) -> Machine:
    return load_machine("local").with_nodes(2).with_devices(devices)


def seconds_with(graph: Graph, views, cost: CostModel, *, overlap: bool = True) -> float:
    return simulate(schedule(graph, views), cost, overlap=overlap).step_seconds


def best_of_all(graph: Graph, cost: CostModel, allowed=lambda views: True) -> float:
    """The shortest step over all candidate views of all operators, as the search adds it up: with
    nothing overlapping."""
    nodes = operators(graph)
    devices = (0, cost.machine.devices)
    choices = [candidate_views(grid(node), devices) for node in nodes]
    assert prod(map(len, choices)) <= 5000
    best = inf
    for combination in product(*choices):
        views = dict(zip(nodes, combination, strict=True))
        if allowed(views):
            best = min(best, seconds_with(graph, views, cost, overlap=False))
    return best


# Random graphs ------------------------------------------------------------------------------


@each("seed", range(60))
def test_seconds_are_those_of_the_schedule(seed: int):
    random = Random(seed)
    graph = random_graph(random, 4, random.randrange(1, 9))
    cost = CostModel(slow_network(4))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    assert set(mapped.views) == set(operators(graph))
    assert mapped.seconds == pytest.approx(seconds_with(graph, mapped.views, cost), rel=1e-12)


# Chains: exact ------------------------------------------------------------------------------


def chain(value: Value, random: Random, size: int, devices: int) -> Value:
    """Random operators one after the other; the other operands are data, used where they lie."""
    while size:
        name = random.choice(("matmul", "relu", "multiply"))
        operands = [recut(value, random)]
        if name != "relu":
            data = leaf("input", f"k{random.random()}", value.type.shape)
            operands.append(stored(data, random))
        made = apply(call(name), *operands)
        try:
            if max(prod(grid(made.node)), made.type.pieces) > devices:
                continue
        except OperatorError:
            continue
        value, size = made, size - 1
    return value


def stored(value: Value, random: Random) -> Value:
    for _ in range(random.randrange(3)):
        option = random.choice([call("replicate", degree=2), call("partition", dim=0, degree=2)])
        value = apply(option, value)
    return value


@each("seed", range(30))
def test_nothing_beats_it_on_a_chain(seed: int):
    random = Random(seed)
    start = leaf("weight", "x", (64, 64))
    graph = Graph((chain(start, random, random.randrange(1, 5), 4),))
    graph.check()
    cost = CostModel(random.choice([machine(4), slow_network(4)]))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    seconds = seconds_with(graph, mapped.views, cost, overlap=False)
    assert mapped.seconds <= seconds <= best_of_all(graph, cost) * (1 + 1e-9)


def diamond(random: Random) -> tuple[Graph, tuple[Value, Value]]:
    """Two branches of one or two operators, from weights of their own, that are added."""
    while True:
        left, right = (
            chain(
                stored(leaf("weight", f"x{i}", (256, 256)), random),
                random,
                random.randrange(1, 3),
                4,
            )
            for i in range(2)
        )
        if left.type == right.type and left.type.degrees.partials == 1:
            graph = Graph((apply(call("relu"), apply(call("add"), left, right)),))
            graph.check()
            if network(graph, Tables(CostModel(machine(4)))).devices <= 4:
                return graph, (left, right)


def runs_one_way(branches: tuple[Value, Value]):
    """Whether views put two branches side by side, or one after the other (paper, 5.2)."""
    left, right = (operators(Graph((value,))) for value in branches)

    def allowed(views) -> bool:
        pairs = product((views[n].devices for n in left), (views[n].devices for n in right))
        apart = [set(a).isdisjoint(b) for a, b in pairs]
        return all(apart) or not any(apart)

    return allowed


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 100), marks=pytest.mark.soak)])
def test_no_split_beats_it_on_a_diamond(seeds: range):
    check_each(seeds, no_split_beats_it)


def no_split_beats_it(seed: int):
    random = Random(seed)
    graph, branches = diamond(random)
    cost = CostModel(random.choice([machine(4), slow_network(4)]))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    allowed = runs_one_way(branches)
    seconds = seconds_with(graph, mapped.views, cost, overlap=False)
    assert mapped.seconds <= seconds <= best_of_all(graph, cost, allowed) * (1 + 1e-9)


def test_independent_branches_run_side_by_side():
    cost = CostModel(machine(2))
    branch = "relu(matmul(x{0}, w{0}))"
    graph = checked(
        "\n".join(
            [f"x{i} = input[2048, 2048]\nw{i} = weight[2048, 2048]" for i in range(2)]
            + [f"return mean_loss(add({branch.format(0)}, {branch.format(1)}))"]
        )
    )
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    matmuls = [view for node, view in mapped.views.items() if node.name == "matmul"]
    assert matmuls[0].start != matmuls[1].start
    one_device = Mapper(machine(1), CostModel(machine(1))).best(graph)
    assert one_device is not None
    assert mapped.seconds < 0.7 * one_device.seconds


def test_three_branches_share_the_devices():
    branches = [f"relu(gelu(relu(matmul(x, w{i}))))" for i in range(3)]
    weights = "\n".join(f"w{i} = weight[512, 512]" for i in range(3))
    graph = checked(
        f"x = input[512, 512]\n{weights}\n"
        f"return mean_loss(add(add({branches[0]}, {branches[1]}), {branches[2]}))"
    )
    cost = CostModel(machine(8))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    starts = {view.start for node, view in mapped.views.items() if node.name == "gelu"}
    assert len(starts) == 3


def test_more_tasks_than_devices():
    text = "x = weight[8, 8]\nreturn relu({})"
    cost = CostModel(machine(2))
    mapper = Mapper(cost.machine, cost)
    too_many_tasks = "combine(relu(partition(x, dim=0, degree=4)), dim=0, degree=4)"
    too_many_pieces = "combine(partition(x, dim=0, degree=4), dim=0, degree=4)"
    assert mapper.best(checked(text.format("x"))) is not None
    assert mapper.best(checked(text.format(too_many_tasks))) is None
    assert mapper.best(checked(text.format(too_many_pieces))) is None


def test_a_graph_with_neither_split():
    graph = checked(
        """
        x = weight[64, 64]
        y = weight[64, 64]
        a = relu(partition(x, dim=0, degree=2))
        b = gelu(partition(y, dim=0, degree=2))
        c = add(a, b)
        d = multiply(a, b)
        e = matmul(c, replicate(combine(d, dim=0, degree=2), degree=2))
        return e, multiply(c, d), relu(d)
        """
    )
    assert sequence_splits(network(graph, Tables(CostModel(machine(4)))), tuple(range(7)))[0] == ()
    cost = CostModel(machine(4))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    assert mapped.seconds == pytest.approx(seconds_with(graph, mapped.views, cost))


@pytest.mark.parametrize("name", ["mlp", "mlp-tiny", "mlp-mnist"])
def test_models_as_written_take_one_device(name: str):
    graph = build_model(name, 64, 4)
    graph.check()
    cost = CostModel(slow_network(4))
    mapped = Mapper(cost.machine, cost).best(graph)
    assert mapped is not None
    assert all(view.size == 1 for view in mapped.views.values())
    here = {node: candidate_views(grid(node), (0, 1))[0] for node in operators(graph)}
    assert mapped.seconds <= seconds_with(graph, here, cost) * (1 + 1e-9)


# Parts --------------------------------------------------------------------------------------


def test_divisions():
    assert divisions((0, 8), SplitSide(4, 4), SplitSide(4, 4)) == [
        ((0, 4), (4, 4)),
        ((4, 4), (0, 4)),
    ]
    found = divisions((8, 8), SplitSide(1, 1), SplitSide(2, 4))
    assert found == [
        ((8, 6), (14, 2)),
        ((10, 6), (8, 2)),
        ((8, 4), (12, 4)),
        ((12, 4), (8, 4)),
    ]
    assert divisions((0, 4), SplitSide(4, 4), SplitSide(1, 1)) == []


def network_of(size: int, pairs) -> OperatorNetwork:
    arcs = [Arc(a, b, Flow(0, (0,), False)) for a, b in sorted(pairs)]
    before = tuple(tuple(a for a in arcs if a.target == i) for i in range(size))
    after = tuple(tuple(a for a in arcs if a.source == i) for i in range(size))
    return OperatorNetwork((), (), before, after, (), 1)


@given(st.data())
@settings(deadline=None)
def test_splits_are_where_all_paths_go(data: st.DataObject):
    size = data.draw(st.integers(1, 9))
    possible = [(a, b) for b in range(size) for a in range(b)]
    pairs = data.draw(st.sets(st.sampled_from(possible))) if possible else set()
    net = network_of(size, pairs)
    dag = nx.DiGraph(list(pairs))
    dag.add_nodes_from(range(size))
    parts = _components(net, tuple(range(size)))
    assert sorted(map(sorted, parts)) == sorted(map(sorted, nx.weakly_connected_components(dag)))
    nodes = tuple(range(size))
    starts = [i for i in nodes if not dag.in_degree(i)]
    ends = [i for i in nodes if not dag.out_degree(i)]
    cuts, between = sequence_splits(net, nodes)
    for i in nodes:
        rest = nx.restricted_view(dag, [i], [])
        passes_by = any(nx.has_path(rest, a, b) for a in starts for b in ends if a != i and b != i)
        assert (i in cuts) == (not passes_by)
    assert sorted([*cuts, *(i for part in between for i in part)]) == list(nodes)
