"""Schedules, run device by device: loads, moves and tasks give the values of the whole graph."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.places import place
from support.graphs.strategies import graphs, parts_of_leaves, placed, seeds
from support.plans.by_device import RING, Array, close, simulate

from pcg.errors import InputError
from pcg.graph.graph import Graph, Node
from pcg.placement.layout import default_layout, grid
from pcg.placement.order import ordered
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot, schedule
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_whole, meaning

Placed = tuple[Graph, dict[Node, MachineView], int]


def assemble(slot: Slot, held: dict[int, Array]) -> Array:
    """The value V of a tensor from the pieces on devices. Copies have to agree."""
    tensor = slot.layout.type
    v = np.full((tensor.degrees.partials, *tensor.shape), np.nan)
    for piece, devices in slot.layout.holders.items():
        v[(piece.partial, *place(slot.layout, devices[0]))] = held[devices[0]]
        for device in devices:
            close(held[device], held[devices[0]])
    assert not np.isnan(v).any()
    return v


def check(case: Placed, order: Random, seed: int, *, kernels: bool) -> None:
    graph, views, devices = case
    parts = parts_of_leaves(graph, seed, RING)
    whole = evaluate_whole(graph, {name: meaning(v, RING) for name, v in parts.items()}, RING)
    made = schedule(graph, views, ordered(graph, {n: order.random() for n in graph.computing}))
    memory = simulate(made, parts, kernels=kernels)
    assert all(set(slot.layout.devices) <= set(range(devices)) for slot in memory)
    for value, slot, expected in zip(graph.outputs, made.outputs, whole, strict=True):
        assert slot.layout.type.degrees.partials == value.type.degrees.partials
        close(assemble(slot, memory[slot]).sum(axis=0), expected)


@settings(max_examples=50)
@given(case=placed(graphs()), order=st.randoms(use_true_random=False), seed=seeds)
def test_schedules_compute_the_values_of_the_graph(case: Placed, order: Random, seed: int):
    check(case, order, seed, kernels=False)


@settings(max_examples=33)
@given(case=placed(graphs()), order=st.randoms(use_true_random=False), seed=seeds)
def test_kernels_compute_their_tasks(case: Placed, order: Random, seed: int):
    check(case, order, seed, kernels=True)


def made_of(text: str, order: dict[str, tuple[int, ...]] | None = None) -> Schedule:
    """The schedule of a graph whose operators run on packed views from device 0."""
    graph = parse_graph(text)
    views = {
        node: MachineView.packed(0, grid(node), (order or {}).get(node.name))
        for node in graph.nodes
        if not node.is_leaf and not node.is_parallel
    }
    return schedule(graph, views)


def kinds(made: Schedule) -> list[str]:
    """The steps in words: loads and moves with the leaf or operator, and moves with their kind."""
    words: list[str] = []
    for step in made.steps:
        match step:
            case LeafAtHome(slot):
                words.append(f"load {slot.value.node.name} {slot.layout.type}")
            case Reshard(source):
                words.append(f"{step.transfer.kind} {source.value.node.name}")
            case Compute(node):
                words.append(node.name)
    return words


def test_weight_is_stored_in_the_layout_of_its_first_user():
    made = made_of("""
        x = input[4, 6]
        w = weight[6, 8]
        t = matmul(replicate(x, degree=2), partition(w, dim=1, degree=2))
        return t
    """)
    assert kinds(made) == ["load x [4, 6] copies=2", "load w [6, 8/2]", "matmul"]
    ((node, layout),) = made.homes.items()
    assert node.leaf.name == "w"
    assert str(layout.type) == "[6, 8/2]"


def test_a_weight_is_moved_to_its_second_user():
    made = made_of("""
        x = input[4, 6] copies=2
        w = weight[6, 8]
        a = matmul(x, partition(w, dim=1, degree=2))
        b = matmul(partition(x, dim=0, degree=2), replicate(w, degree=4))
        return a, b
    """)
    assert kinds(made).count("load w [6, 8/2]") == 1
    assert [word for word in kinds(made) if word.endswith(" w")] == ["messages w"]
    assert len(made.homes) == 1


def test_a_weight_stored_in_parts_is_gathered_in_every_step():
    """ZeRO: partition states where the weight is stored, and combine and replicate move it in each
    step."""
    made = made_of("""
        x = input[4, 6]
        w = weight[6, 8]
        stored = partition(w, dim=0, degree=2)
        used = replicate(combine(stored, dim=0, degree=2), degree=2)
        t = matmul(partition(x, dim=0, degree=2), used)
        return t
    """)
    assert kinds(made) == ["load x [4/2, 6]", "load w [6/2, 8]", "all_gather w", "matmul"]
    (layout,) = made.homes.values()
    assert layout.devices == (0, 1)
    (move,) = (step for step in made.steps if isinstance(step, Reshard))
    assert move.transfer.elements == 6 * 8


def test_inputs_are_read_where_they_are_used():
    made = made_of("""
        x = input[4, 6]
        rows = relu(partition(x, dim=0, degree=2))
        columns = relu(partition(x, dim=1, degree=3))
        return rows, columns
    """)
    assert kinds(made) == ["load x [4/2, 6]", "relu", "load x [4, 6/3]", "relu"]
    assert not made.homes


def test_partials_become_copies_by_all_reduce():
    made = made_of("""
        x = input[4, 6/2]
        w = weight[6/2, 8]
        t = relu(replicate(reduce(matmul(x, w), degree=2), degree=2))
        return t
    """)
    assert kinds(made)[2:] == ["matmul", "all_reduce matmul", "relu"]


def test_a_move_is_made_once():
    made = made_of("""
        x = input[4/2, 6]
        whole = combine(relu(x), dim=0, degree=2)
        a = gelu(whole)
        b = softmax(whole, axis=0)
        return a, b
    """)
    assert kinds(made).count("messages relu") == 1


def test_outputs_behind_parallel_operators_are_moved():
    made = made_of("""
        x = input[4/2, 6]
        t = combine(relu(x), dim=0, degree=2)
        return t, x
    """)
    assert [slot.layout for slot in made.outputs] == [
        default_layout(parse_graph("t = input[4, 6]\nreturn t").outputs[0].type),
        default_layout(parse_graph("t = input[4/2, 6]\nreturn t").outputs[0].type),
    ]


def test_an_operator_without_a_view():
    graph = parse_graph("x = input[4]\ny = relu(x)\nreturn y")
    with pytest.raises(InputError, match="relu has no machine view"):
        schedule(graph, {})


def test_a_weight_in_fewer_parts_than_devices_is_kept_several_times():
    """Consecutive devices hold different parts, so they gather among neighbours."""
    graph = parse_graph("""
    x = input[8, 4]
    w = weight[4, 4]
    v = combine(partition(w, dim=0, degree=2), dim=0, degree=2)
    y = matmul(partition(x, dim=0, degree=4), replicate(v, degree=4))
    return reduce(mean_loss(y), degree=4)
    """)
    views = {
        node: MachineView.packed(0, grid(node))
        for node in graph.nodes
        if not node.is_leaf and not node.is_parallel
    }
    (home,) = schedule(graph, views).homes.values()
    assert [piece.block for _, piece in home.pieces] == [(0, 0), (1, 0), (0, 0), (1, 0)]
    assert sorted(home.holders.values()) == [(0, 2), (1, 3)]
