"""Every pair of layouts of a tensor on a few devices: the instructions of all ranks, in numbers and
in symbols, have the meaning of the types, and their backward pass is the transpose."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from pcg.graph.graph import Value, leaf
from pcg.placement.layout import Layout, default_layout
from pcg.placement.transfer import transfer
from pcg.types.tensor import Degrees, ParallelTensor
from runtime.program.communication import collective, exchange, pattern
from runtime.program.program import Exchange
from runtime.program.validate.content import Content, Places, PlanTensor, assemble
from runtime.program.validate.movement import Member, arrived, collected, sent
from runtime.program.validate.transposed import is_transposed, linear_map


def layouts(devices: int, sizes: tuple[int, ...]) -> list[Layout]:
    """Each way to cut, copy and sum over exactly this many devices: blocks or copies in a row."""
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    drawn: list[Layout] = []
    for dims in product(divisors, repeat=len(sizes)):
        for partials in divisors:
            used = prod(dims) * partials
            if devices % used or any(s % d for s, d in zip(sizes, dims, strict=True)):
                continue
            degrees = Degrees(dims, (1,) * len(dims), devices // used, partials)
            plain = default_layout(ParallelTensor(sizes, degrees))
            turned = [d for i in range(2) for d in range(i, devices, 2)]
            moved = tuple((turned[d], piece) for d, piece in plain.pieces)
            drawn += dict.fromkeys((plain, Layout(plain.type, moved)))
    return drawn


def slices(region) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in region)


def instructions(move, devices: int) -> dict:
    if pattern(move) is not None:
        by_rank = {rank: collective(move, rank, "x", "y") for rank in range(devices)}
        return {rank: own for rank, own in by_rank.items() if own is not None}
    return {rank: exchange(move, rank, "x", "y") for rank in range(devices)}


def run(own: dict, held: dict, shapes: dict) -> dict:
    """The effect of instructions in numbers: sent values are added up at their destination."""
    ours = {rank: np.zeros(shape) for rank, shape in shapes.items()}
    for rank, instruction in own.items():
        if isinstance(instruction, Exchange):
            for kept in instruction.kept:
                ours[rank][slices(kept.target)] += held[rank][slices(kept.source)]
            for part in instruction.receives:
                mine = [p for p in own[part.peer].sends if p.peer == rank]
                theirs = [p for p in instruction.receives if p.peer == part.peer]
                given = mine[theirs.index(part)]
                ours[rank][slices(part.region)] += held[part.peer][slices(given.region)]
            continue
        _, _, receives = linear_map(instruction)
        for number, peer in enumerate(instruction.group):
            sends = linear_map(own[peer]).sends
            at = instruction.group.index(rank)
            given = held[peer] if sends is None else held[peer][slices(sends[at])]
            place = ... if receives is None else slices(receives[number])
            ours[rank][place] += given.reshape(ours[rank][place].shape)
    return ours


def extents(layout: Layout) -> dict[int, tuple[int, ...]]:
    return {d: tuple(b - a for a, b in region) for d, region in layout.regions.items()}


def check_numbers(source: Layout, target: Layout, own: dict) -> None:
    rng = np.random.default_rng(0)
    partials, wanted = source.type.degrees.partials, target.type.degrees.partials
    values = rng.integers(-9, 9, (partials, *source.type.shape)).astype(float)
    held = {d: values[(p.partial, *slices(source.regions[d]))] for d, p in source.pieces}
    meant = values.reshape(wanted, partials // wanted, *values.shape[1:]).sum(axis=1)
    actual = run(own, held, extents(target))
    for device, piece in target.pieces:
        region = (piece.partial, *slices(target.regions[device]))
        np.testing.assert_array_equal(actual[device], meant[region])
    # <y, A x> = <A^T y, x>
    y = {d: rng.integers(-9, 9, shape).astype(float) for d, shape in extents(target).items()}
    x = {d: rng.integers(-9, 9, shape).astype(float) for d, shape in extents(source).items()}
    there = run(own, x, extents(target))
    back = run({rank: i.adjoint for rank, i in own.items()}, y, extents(source))
    assert sum((y[d] * there[d]).sum() for d in y) == sum((back[d] * x[d]).sum() for d in x)


def check_symbols(source: Layout, target: Layout, own: dict, value: Value) -> None:
    partials, places = source.type.degrees.partials, Places()
    tensor = PlanTensor("x", value, partials, source.type.shape, True)
    held = {
        d: Content(tensor, places.of(p.partial, p.partial + 1, source.regions[d]))
        for d, p in source.pieces
    }
    shapes, sums = extents(target), partials // target.type.degrees.partials
    actual: dict[int, Content] = {}
    for rank, instruction in own.items():
        assert is_transposed(instruction, instruction.adjoint)
        if isinstance(instruction, Exchange):
            given = {p.peer: sent(own[p.peer], held[p.peer])[rank] for p in instruction.receives}
            added = arrived(instruction, held[rank], given)
            actual[rank] = assemble(added, shapes[rank], places)
        elif rank == instruction.group[0]:
            members = [Member(r, own[r], held[r], shapes[r]) for r in instruction.group]
            actual |= dict(zip(instruction.group, collected(members, places), strict=True))
    for device, piece in target.pieces:
        first = piece.partial * sums
        expected = Content(tensor, places.of(first, first + sums, target.regions[device]))
        assert actual[device] == expected


@pytest.mark.parametrize(
    ("devices", "size"),
    [
        (2, 4),
        (4, 4),
        pytest.param(6, 6, marks=pytest.mark.soak),
        pytest.param(8, 8, marks=pytest.mark.soak),
    ],
)
def test_every_pair_of_layouts(devices, size):
    value = leaf("input", "x", (size, size))
    all_layouts = layouts(devices, (size, size))
    kinds: dict[str, int] = {}
    for source, target in product(all_layouts, all_layouts):
        if source.type.degrees.partials % target.type.degrees.partials:
            continue
        move = transfer(source, target)
        if move.kind == "none":
            continue
        own = instructions(move, devices)
        check_numbers(source, target, own)
        check_symbols(source, target, own, value)
        known = pattern(move)
        kind = known[0] if known else "messages"
        kinds[kind] = kinds.get(kind, 0) + 1
    print(devices, kinds)
    assert kinds.keys() == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "messages"}
