"""Transfers as collectives and messages, on simulated ranks: the results have the layouts' meaning,
and the adjoint is the transposed map."""

from __future__ import annotations

from math import prod

import hypothesis
import pytest
import torch
from hypothesis import assume, settings
from hypothesis import strategies as st
from support.graphs.places import extent, halos, place
from support.runs.simulated import on_ranks

from pcg.placement.layout import Layout, Piece
from pcg.placement.transfer import Transfer
from pcg.types.tensor import Degrees, ParallelTensor
from runtime.program.communication import collective, exchange, pattern
from runtime.program.program import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from runtime.world.messages import communicate

RANKS = 6
SHAPE = (12, 6)


def layout(dims, copies=1, partials=1, devices=None, shape=SHAPE, widths=(None, None)) -> Layout:
    degrees = Degrees(dims, (1,) * len(dims), copies, partials, halos(dims, widths))
    tensor = ParallelTensor(shape, degrees)
    blocks = [(i, j) for i in range(dims[0]) for j in range(dims[1])]
    pieces = [Piece(p, b) for b in blocks for p in range(partials) for _ in range(copies)]
    places = range(len(pieces)) if devices is None else devices
    return Layout(tensor, tuple(zip(places, pieces, strict=True)))


def instructions(move: Transfer):
    """The instruction of every rank. None for a rank that takes no part."""
    if pattern(move) is not None:
        return [collective(move, rank, "a", "b") for rank in range(RANKS)]
    return [exchange(move, rank, "a", "b") for rank in range(RANKS)]


def piece_values(layout: Layout) -> dict[Piece, torch.Tensor]:
    return {
        piece: torch.randn(layout.type.block, dtype=torch.float64)
        for piece in sorted(layout.holders)
    }


def moved(move: Transfer, values: dict[int, torch.Tensor], *, back: bool = False):
    """The tensors of every rank after the transfer, or after its adjoint."""
    steps = instructions(move)
    target = move.source if back else move.target

    known = pattern(move)

    def work(world):
        world.prepare(known[1] if known else ())
        instruction = steps[world.rank]
        if instruction is None:
            return None
        shape = extent(target, world.rank) if world.rank in target.by_device else None
        source = values.get(world.rank)
        chosen = instruction.adjoint if back else instruction
        return communicate(world, chosen, source, shape, torch.float64)

    return on_ranks(RANKS, work)


def whole(layout: Layout, pieces: dict[Piece, torch.Tensor], partial: int) -> torch.Tensor:
    made = torch.zeros(layout.type.shape, dtype=torch.float64)
    for piece, values in pieces.items():
        if piece.partial == partial:
            made[place(layout, layout.holders[piece][0])] = values
    return made


def given(values: torch.Tensor | None) -> torch.Tensor:
    assert values is not None
    return values


def check(move: Transfer) -> None:
    torch.manual_seed(0)
    source, target = move.source, move.target
    pieces = piece_values(source)
    values = {device: pieces[piece] for device, piece in source.pieces}
    actual = moved(move, values)
    for device, piece in target.pieces:
        partials = range(piece.partial * move.group, (piece.partial + 1) * move.group)
        wanted = torch.stack([whole(source, pieces, p) for p in partials]).sum(0)
        assert torch.allclose(given(actual[device]), wanted[place(target, device)], atol=1e-12)
    shares = {
        device: torch.randn(extent(target, device), dtype=torch.float64)
        for device in target.devices
    }
    back = moved(move, shares, back=True)
    forward = sum((given(actual[device]) * share).sum() for device, share in shares.items())
    # A device that takes no part gives nothing, and has no gradient.
    backward = sum((values[d] * given(back[d])).sum() for d in values if back[d] is not None)
    assert float(forward) == pytest.approx(float(backward), abs=1e-9)


DEGREES = [
    (rows, columns, copies, partials)
    for rows in (1, 2, 3, 6)
    for columns in (1, 2, 3, 6)
    for copies in (1, 2, 3, 6)
    for partials in (1, 2, 3, 6)
    if rows * columns * copies * partials <= RANKS
]


@settings(max_examples=30, deadline=None)
@hypothesis.given(st.data())
def test_any_transfer_between_layouts(data):
    def drawn(degrees, widths=(None, None)):
        rows, columns, copies, partials = degrees
        # In order, pieces often lie regularly, as collectives require.
        order = data.draw(st.one_of(st.just(list(range(RANKS))), st.permutations(range(RANKS))))
        return layout((rows, columns), copies, partials, order[: prod(degrees)], widths=widths)

    source = data.draw(st.sampled_from(DEGREES), label="source")
    target = data.draw(st.sampled_from(DEGREES), label="target")
    assume(source[3] % target[3] == 0)
    widths = data.draw(st.tuples(*2 * [st.none() | st.tuples(*2 * [st.integers(0, 4)])]))
    check(Transfer(drawn(source), drawn(target, widths)))


@pytest.mark.parametrize(
    ("source", "target", "kind", "groups"),
    [
        (layout((1, 1), partials=6), layout((1, 1), copies=6), AllReduce, 1),
        (layout((3, 1), partials=2), layout((3, 1), copies=2), AllReduce, 3),
        (layout((1, 1), partials=6), layout((6, 1)), ReduceScatter, 1),
        (layout((3, 1), partials=2), layout((3, 2)), ReduceScatter, 3),
        (layout((1, 6)), layout((1, 1), copies=6), AllGather, 1),
        (layout((3, 2)), layout((3, 1), copies=2), AllGather, 3),
        (layout((6, 1)), layout((1, 6)), AllToAll, 1),
        (layout((2, 1)), layout((1, 2)), AllToAll, 1),
    ],
)
def test_regular_transfers_are_collectives(source, target, kind, groups):
    move = Transfer(source, target)
    collectives = [i for i in instructions(move) if isinstance(i, Collective)]
    assert {type(instruction) for instruction in collectives} == {kind}
    assert {type(i.adjoint.adjoint) for i in collectives} == {kind}
    assert len({instruction.group for instruction in collectives}) == groups
    assert all(instruction.adjoint.adjoint == instruction for instruction in collectives)
    check(move)


def test_gradients_of_a_tensor_sent_to_several_devices_are_added_up():
    """Every device has as much for every other one, except for two of them."""
    check(Transfer(layout((6, 1)), layout((1, 3), copies=2)))


def test_swap_between_some_devices_is_no_all_to_all():
    """Device 0 keeps its rows, and devices 1 and 2 exchange theirs: no group covers the whole
    transfer."""
    rows = layout((3, 1))
    assert pattern(Transfer(rows, layout((3, 1), devices=(0, 2, 1)))) is None


def test_instructions_say_what_they_do():
    move = Transfer(layout((6, 1)), layout((1, 1), copies=6))
    instruction = collective(move, 4, "a", "b")
    assert instruction is not None
    assert str(instruction) == "b = all_gather(a) over 0, 1, 2, 3, 4, 5"
    assert str(instruction.adjoint) == "a = reduce_scatter(b) over 0, 1, 2, 3, 4, 5"
