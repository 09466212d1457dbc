"""Transfers: messages keep the meaning of a tensor, and in reverse they carry gradients."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support.graphs.places import extent, halos, place, within
from support.graphs.strategies import seeds

from pcg.placement import transfer as module
from pcg.placement.layout import Layout, Piece, default_layout
from pcg.placement.transfer import Message, Transfer, transfer
from pcg.types.tensor import Degrees, ParallelTensor

Array = np.ndarray[Any, Any]
Held = dict[int, Array]
"""The pieces that each device holds."""


@st.composite
def layouts(draw: DrawFn, shape: tuple[int, ...], partials: int) -> Layout:
    """The pieces of a tensor on devices drawn at random."""
    dims = tuple(draw(st.sampled_from([d for d in (1, 2, 3) if s % d == 0])) for s in shape)
    widths = tuple(draw(st.none() | st.tuples(*2 * [st.integers(0, 3)])) for _ in shape)
    copies = draw(st.integers(1, 3))
    own = Degrees(dims, (1,) * len(shape), copies, partials, halos(dims, widths))
    tensor = ParallelTensor(shape, own)
    devices = draw(st.permutations(range(tensor.pieces + draw(st.integers(0, 2)))))
    pieces = (piece for _, piece in default_layout(tensor).pieces)
    return Layout(tensor, tuple(zip(devices, pieces, strict=False)))


@st.composite
def transfers(draw: DrawFn) -> Transfer:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), max_size=2)))
    partials, group = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from((1, 2, 3)))
    source, target = draw(layouts(shape, partials * group)), draw(layouts(shape, partials))
    return transfer(source, target)


def hold(layout: Layout, values: Array) -> Held:
    """The pieces of V, of shape (partials, *shape)."""
    return {d: values[(p.partial, *place(layout, d))].copy() for d, p in layout.pieces}


def move(plan: Transfer, held: Held) -> Held:
    """The pieces of the target's devices after all messages."""
    result = {d: np.zeros(extent(plan.target, d)) for d in plan.target.devices}
    for message in plan.messages:
        part = held[message.source][within(message, plan.source, message.source)]
        result[message.target][within(message, plan.target, message.target)] += part
    return result


def move_back(plan: Transfer, held: Held) -> Held:
    """The adjoint: every message in the other direction."""
    result = {d: np.zeros(extent(plan.source, d)) for d in plan.source.devices}
    for message in plan.messages:
        part = held[message.target][within(message, plan.target, message.target)]
        result[message.source][within(message, plan.source, message.source)] += part
    return result


def at_random(layout: Layout, rng: np.random.Generator) -> Held:
    """Different values on every device, also of copies."""
    return {d: rng.integers(-9, 9, extent(layout, d)).astype(float) for d in layout.devices}


@given(transfers(), seeds)
def test_transfers_keep_the_meaning_of_a_tensor(plan: Transfer, seed: int):
    d = plan.source.type.degrees
    values = np.random.default_rng(seed).integers(-9, 9, (d.partials, *plan.source.type.shape))
    moved = move(plan, hold(plan.source, values.astype(float)))
    # Adjacent groups of partials are summed, as Reduce does.
    groups = values.reshape((plan.target.type.degrees.partials, -1, *values.shape[1:])).sum(axis=1)
    expected = hold(plan.target, groups)
    assert moved.keys() == expected.keys()
    for device, block in moved.items():
        np.testing.assert_array_equal(block, expected[device])


@given(transfers(), seeds)
def test_backward_transfer_is_the_adjoint(plan: Transfer, seed: int):
    rng = np.random.default_rng(seed)
    x, y = at_random(plan.source, rng), at_random(plan.target, rng)
    there = move(plan, x)
    back = move_back(plan, y)
    assert sum((there[d] * y[d]).sum() for d in y) == sum((x[d] * back[d]).sum() for d in x)


@given(transfers(), seeds)
def test_backward_transfer_moves_gradients(plan: Transfer, seed: int):
    """The gradient of a tensor with c copies has c partials: the gradients of the copies of a piece
    add up to those of the copies of its sum."""
    y = at_random(plan.target, np.random.default_rng(seed))
    back = move_back(plan, y)
    given = np.zeros((plan.target.type.degrees.partials, *plan.target.type.shape))
    for device, piece in plan.target.pieces:
        given[(piece.partial, *place(plan.target, device))] += y[device]
    for piece, devices in plan.source.holders.items():
        # Halos are not read: a device that needs their elements receives those of the block.
        whole = np.zeros_like(back[devices[0]])
        block = place(plan.source.without_halos, devices[0])
        inside = within(_all_of(block), plan.source, devices[0])
        whole[inside] = given[piece.partial // plan.group][block]
        np.testing.assert_array_equal(sum(back[d] for d in devices), whole)


def _all_of(block: tuple[slice, ...]) -> Message:
    return Message(0, 0, tuple((part.start, part.stop) for part in block))


@given(transfers(), seeds)
def test_kind_of_a_transfer_matches_its_messages(plan: Transfer, seed: int):
    d = plan.source.type.degrees
    values = np.random.default_rng(seed).integers(-9, 9, (d.partials, *plan.source.type.shape))
    held = hold(plan.source, values.astype(float))
    moved = move(plan, held)
    crossing = [m for m in plan.messages if m.source != m.target]
    match plan.kind:
        case "none":
            assert held.keys() == moved.keys()
            assert all(np.array_equal(held[device], moved[device]) for device in held)
            assert plan.elements == 0
        case "local":
            assert not crossing
            assert plan.elements == 0
        case "all_reduce":
            check_groups(plan, held, moved)
            for group in plan.groups or ():
                total = sum(held[device] for device in group)
                assert all(np.array_equal(moved[device], total) for device in group)
        case "all_gather":
            check_groups(plan, held, moved)
            for group in plan.groups or ():
                parts = [held[device] for device in group]
                assert all(np.array_equal(moved[d], moved[group[0]]) for d in group)
                assert moved[group[0]].size == sum(part.size for part in parts)
                assert moved[group[0]].sum() == sum(part.sum() for part in parts)
            assert plan.elements == sum(m.elements for m in crossing)
        case "reduce_scatter":
            check_groups(plan, held, moved)
            for group in plan.groups or ():
                total = np.sum([held[device] for device in group], axis=0)
                parts = [moved[device] for device in group]
                assert total.size == sum(part.size for part in parts)
                assert total.sum() == sum(part.sum() for part in parts)
            assert plan.elements == sum(m.elements for m in crossing)
        case "messages":
            assert crossing
            assert plan.groups is None
            assert plan.elements == sum(m.elements for m in crossing)
    if not crossing:
        assert plan.kind in ("none", "local")


def check_groups(plan: Transfer, held: Held, moved: Held) -> None:
    assert plan.groups is not None
    members = [device for group in plan.groups for device in group]
    assert sorted(members) == sorted(held) == sorted(moved)


def tensor(text_dims: tuple[int, ...], shape: tuple[int, ...], copies: int, partials: int):
    return ParallelTensor(shape, Degrees(text_dims, (1,) * len(shape), copies, partials))


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_ring_all_reduce(devices: int):
    """Partials on n devices become copies on them: 2 (n - 1) elements for each of the tensor."""
    source = default_layout(tensor((1, 1), (4, 6), 1, devices))
    target = default_layout(tensor((1, 1), (4, 6), devices, 1))
    plan = transfer(source, target)
    assert plan.kind == "all_reduce"
    assert plan.groups == (tuple(range(devices)),)
    assert plan.elements == 2 * (devices - 1) * 24


def test_two_devices_all_reduce_twice_the_tensor():
    shape = (64, 512)
    plan = transfer(
        default_layout(tensor((1, 1), shape, 1, 2)), default_layout(tensor((1, 1), shape, 2, 1))
    )
    assert plan.elements == 2 * prod(shape)


def test_all_reduce_in_groups():
    """Two blocks, each summed over two devices, and kept in two copies."""
    source = Layout(tensor((2,), (4,), 1, 2), pieces_on((0, 1, 2, 3), tensor((2,), (4,), 1, 2)))
    target = tensor((2,), (4,), 2, 1)
    plan = transfer(source, Layout(target, pieces_on((0, 1, 2, 3), target)))
    assert plan.groups == ((0, 1), (2, 3))
    assert plan.elements == 2 * 2 * 2


def pieces_on(devices: tuple[int, ...], of: ParallelTensor) -> tuple[tuple[int, Piece], ...]:
    return tuple(zip(devices, (piece for _, piece in default_layout(of).pieces), strict=True))


@pytest.mark.parametrize(
    ("source", "target", "kind", "elements"),
    [
        # The same pieces; a cut of each device's own piece; a gather; a reduce-scatter of two.
        (tensor((2,), (4,), 1, 1), tensor((2,), (4,), 1, 1), "none", 0),
        (tensor((1,), (4,), 2, 1), tensor((2,), (4,), 1, 1), "local", 0),
        (tensor((2,), (4,), 1, 1), tensor((1,), (4,), 2, 1), "all_gather", 4),
        (tensor((1,), (4,), 1, 2), tensor((2,), (4,), 1, 1), "reduce_scatter", 4),
        # Summed onto one device; more copies; from rows to columns.
        (tensor((1,), (4,), 1, 2), tensor((1,), (4,), 1, 1), "messages", 4),
        (tensor((1,), (4,), 1, 1), tensor((1,), (4,), 2, 1), "messages", 4),
        (tensor((2, 1), (4, 4), 1, 1), tensor((1, 2), (4, 4), 1, 1), "messages", 8),
    ],
)
def test_known_transfers(source: ParallelTensor, target: ParallelTensor, kind: str, elements: int):
    plan = transfer(default_layout(source), default_layout(target))
    assert (plan.kind, plan.elements) == (kind, elements)


def test_device_keeps_the_elements_that_it_has():
    plan = transfer(
        default_layout(tensor((2,), (4,), 2, 1)), default_layout(tensor((1,), (4,), 4, 1))
    )
    own = [m for m in plan.messages if m.source == m.target]
    assert sorted(m.target for m in own) == [0, 1, 2, 3]


@given(transfers())
def test_holders_of_a_piece_serve_equal_numbers_of_requests(plan: Transfer):
    served = Counter(m.source for m in plan.messages if m.source != m.target)
    for devices in plan.source.holders.values():
        numbers = [served[device] for device in devices]
        assert max(numbers) - min(numbers) <= 1


def test_holders_serve_the_devices_near_them():
    """Each node of four devices has one copy, from which its other devices have theirs."""
    one, every = tensor((1,), (4,), 2, 1), tensor((1,), (4,), 8, 1)
    plan = transfer(Layout(one, pieces_on((0, 4), one)), default_layout(every))
    assert all(m.source == m.target // 4 * 4 for m in plan.messages)


@given(transfers())
def test_flows_equal_the_shared_elements_of_each_pair_of_pieces(plan: Transfer):
    """Checked against all pairs. A transfer is local if no flow leaves its device."""
    expected: list[tuple[int, int, int]] = []
    source = plan.source.without_halos
    for at, (device, wanted) in enumerate(plan.target.pieces):
        for number, piece in enumerate(sorted({piece for _, piece in source.pieces})):
            holder = next(d for d, own in source.pieces if own == piece)
            pairs = zip(plan.target.regions[device], source.regions[holder], strict=True)
            spans = [min(a[1], b[1]) - max(a[0], b[0]) for a, b in pairs]
            if piece.partial // plan.group == wanted.partial and all(s > 0 for s in spans):
                expected.append((at, number, prod(spans)))
    numbers = {piece: i for i, piece in enumerate(sorted({p for _, p in plan.source.pieces}))}
    flows = plan.flows
    made = [numbers[plan.source.pieces[i][1]] for i in flows.pieces.tolist()]
    found = list(zip(flows.wanted.tolist(), made, flows.elements.tolist(), strict=True))
    assert found == expected
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MOST_PAIRS", 4)
        parts = list(plan.flows_in_parts)
    assert len(parts) >= min(len(plan.target.pieces) * plan.group // 4, 1)
    for field in ("sources", "targets", "elements", "pieces"):
        whole = np.concatenate([getattr(part, field) for part in parts])
        assert (whole == getattr(flows, field)).all()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "FEW_PAIRS", 0)
        for field, listed in zip(flows, plan.flows, strict=True):
            np.testing.assert_array_equal(listed, field)
    stays = bool((flows.sources == flows.targets).all())
    assert plan._is_local == stays
