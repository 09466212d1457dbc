"""Tensors that cross to other devices in parts: the schedule, and the parts that each device
holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.strategies import parts_of_leaves, seeds
from support.plans.by_device import RING, close, simulate

from pcg.graph.graph import Graph, Node
from pcg.placement.in_parts import TransferParts, layout_in_parts, layout_of_sums
from pcg.placement.layout import default_layout, grid
from pcg.placement.schedule import Reshard, Schedule, schedule
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_whole, meaning
from pcg.types.tensor import Degrees, ParallelTensor

ROUND = "combine(partition(h, dim={dim}, degree={parts}), dim={dim}, degree={parts})"


def crossing(
    shape: tuple[int, int], data: int, copies: int, way: str, first: int
) -> tuple[Graph, Schedule]:
    """A tensor made on some devices, and read on devices from ``first`` on by as many copies. Both
    have samples along dimension 0 on ``data`` devices."""
    text = f"""
    x = input[{shape[0]}, {shape[1]}]
    h = relu(partition(x, dim=0, degree={data}))
    y = tanh({way})
    return combine(y, dim=0, degree={data})
    """
    graph = parse_graph(text)
    views = {
        node: _copied(node, copies, 0 if node.name == "relu" else first)
        for node in graph.operators
        if not node.is_parallel
    }
    return graph, schedule(graph, views)


def _copied(node: Node, copies: int, first: int) -> MachineView:
    """Copies on consecutive devices."""
    shape = grid(node)
    return MachineView.packed(first, (*shape[:-1], copies * shape[-1]))


def moves(made: Schedule) -> list[Reshard]:
    return [step for step in made.steps if isinstance(step, Reshard)]


@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    data=st.sampled_from([1, 2, 3]),
    parts=st.sampled_from([2, 3, 4]),
    times=st.sampled_from([1, 2]),
    dim=st.integers(0, 1),
    seed=seeds,
)
def test_every_device_gets_one_part_and_gathers_the_others(
    rows, columns, data, parts, times, dim, seed
):
    sizes = [rows * data, columns]
    sizes[dim] *= parts
    way, copies = ROUND.format(dim=dim, parts=parts), parts * times
    graph, made = crossing((sizes[0], sizes[1]), data, copies, way, data * copies)
    first, second = moves(made)[:2]
    assert second.transfer.kind == "all_gather"
    assert {len(group) for group in second.transfer.groups or ()} == {parts}
    # Each device receives a part from one device, and sends a part to one.
    ends = [(m.source, m.target) for m in first.transfer.messages]
    assert len(ends) == len({b for _, b in ends}) == data * copies
    assert {m.elements * parts * data for m in first.transfer.messages} == {sizes[0] * sizes[1]}
    leaves = parts_of_leaves(graph, seed, RING)
    whole = {name: meaning(values, RING) for name, values in leaves.items()}
    (expected,) = evaluate_whole(graph, whole, RING)
    memory = simulate(made, leaves, kernels=False)
    (slot,) = made.outputs
    for values in memory[slot].values():
        close(values, expected)


def test_messages_spread_over_all_that_have_a_copy():
    _, made = crossing((4, 8), 1, 4, ROUND.format(dim=1, parts=4), 4)
    ends = {(m.source, m.target) for m in moves(made)[0].transfer.messages}
    assert ends == {(0, 4), (1, 5), (2, 6), (3, 7)}


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        (4, 2),  # some devices have the tensor already
        (8, 4),  # more parts than copies
    ],
)
def test_tensor_that_cannot_be_sent_in_parts_is_sent_whole(parts, first):
    _, made = crossing((2, 8), 1, 4, ROUND.format(dim=1, parts=parts), first)
    (step,) = (step for step in moves(made) if step.source.value.node.name == "relu")
    assert step.target.layout.type.degrees.dims == (1, 1)


def summing(sizes: tuple[int, int, int], terms: int, copies: int) -> tuple[Graph, Schedule]:
    """Partial sums [rows, columns] on ``terms`` devices, whose total ``copies`` other devices
    read."""
    rows, inner, columns = sizes
    text = f"""
    x = input[{rows}, {inner}]
    w = input[{inner}, {columns}]
    h = matmul(partition(x, dim=1, degree={terms}), partition(w, dim=0, degree={terms}))
    return relu(reduce(h, degree={terms}))
    """
    graph = parse_graph(text)
    views = {
        node: _copied(node, copies, terms) if node.name == "relu" else _copied(node, 1, 0)
        for node in graph.operators
        if not node.is_parallel
    }
    return graph, schedule(graph, views)


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    terms=st.sampled_from([2, 3, 4]),
    copies=st.integers(1, 4),
    seed=seeds,
)
def test_partial_sums_are_added_up_before_they_leave(rows, columns, terms, copies, seed):
    graph, made = summing((rows, 2 * terms, columns), terms, copies)
    first, *rest = moves(made)
    if rows % terms and columns % terms:
        assert set(first.target.layout.devices) >= set(range(terms, terms + copies))
    else:
        assert first.transfer.kind == "reduce_scatter"
        (leaving, *_) = rest
        ends = [(m.source, m.target, m.elements * terms) for m in leaving.transfer.messages]
        among = {(a, terms + b) for a in range(terms) for b in range(copies)}
        assert sorted(ends) == [(a, b, rows * columns) for a, b in sorted(among)]
    leaves = parts_of_leaves(graph, seed, RING)
    whole = {name: meaning(values, RING) for name, values in leaves.items()}
    (expected,) = evaluate_whole(graph, whole, RING)
    memory = simulate(made, leaves, kernels=False)
    for values in memory[made.outputs[0]].values():
        close(values, expected)


def test_partial_sums_that_their_devices_read_stay() -> None:
    tensor = ParallelTensor((4,), Degrees((1,), (1,), 1, 2))
    total = ParallelTensor((4,), Degrees((1,), (1,), 1, 1))
    assert layout_of_sums(default_layout(tensor, 0), default_layout(total, 1)) is None
    assert layout_of_sums(default_layout(tensor, 0), default_layout(total, 2)) is not None


@given(copies=st.integers(1, 6), parts=st.integers(1, 6), size=st.integers(1, 12))
def test_parts_are_equal_and_fill_the_tensor(copies, parts, size):
    tensor = ParallelTensor((size,), Degrees((1,), (1,), copies, 1))
    wanted, source = default_layout(tensor, 1), default_layout(ParallelTensor.whole((size,)), 0)
    actual = layout_in_parts(source, wanted, TransferParts(0, parts))
    if parts == 1 or copies % parts or size % parts:
        assert actual is None
        return
    assert actual is not None
    assert actual.devices == wanted.devices
    assert {len(devices) for devices in actual.holders.values()} == {copies // parts}
    assert len(actual.holders) == parts
