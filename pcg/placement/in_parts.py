"""Tensors that go to other devices in parts: copies are gathered there, sums are added up here.

Problem: where several devices want the same piece of a tensor from elsewhere, such as those of a
tensor-parallel group from the stage before, each would receive all of it over a slow link.
Method: each receives a part of it, and they gather the parts over their own fast links. Source:
the scatter/gather optimization of Narayanan et al., SC 2021, section 4.1. Complexity: the pieces.

A graph says so by a partition that a combine undoes at once. By its value that is nothing, so a
rule of the library puts it there and an audit follows it like any other. What it adds is the way:
the tensor comes cut as between the two. Gradients go the same way back: they are added up and cut
(reduce_scatter), and each part is sent where it came from.

Partial sums whose total is wanted on other devices would each be sent there, as many times the
bytes of the total as there are partial sums. They are added up first, in parts, by those that have
them (reduce_scatter). That is how any graph is scheduled, where the parts are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pcg.graph.graph import Node
from pcg.placement.layout import Layout, Piece
from pcg.types.halo import states_halo
from pcg.types.tensor import ParallelTensor


class InParts(NamedTuple):
    """Along which dimension a tensor is cut on its way, and into how many parts."""

    dim: int
    parts: int


def named_parts(chain: Sequence[Node]) -> tuple[Node, Node] | None:
    """The first partition of a chain of parallel operators that a combine undoes at once."""
    for cut, join in pairwise(chain):
        if (cut.name, join.name) == ("partition", "combine"):
            pair = cut.operator_call, join.operator_call
            if not states_halo(pair[0]) and pair[0].values == pair[1].values:
                return cut, join
    return None


def stated_parts(chain: Sequence[Node]) -> InParts | None:
    """How a chain of parallel operators says that a tensor comes in parts, if it does."""
    named = named_parts(chain)
    if named is None:
        return None
    call = named[0].operator_call
    return InParts(call.integer("dim"), call.integer("degree"))


def in_parts(source: Layout, wanted: Layout, how: InParts) -> Layout | None:
    """Where the parts of a tensor arrive that devices without any of it want: each of as many
    devices with the same piece gets one. None where some device has the tensor already, where the
    devices with a piece are no multiple of the parts, or where the parts would not be equal."""
    degrees, (dim, parts) = wanted.type.degrees, how
    if parts == 1 or degrees.halos or not set(source.devices).isdisjoint(wanted.devices):
        return None
    blocks = degrees.dims[dim] * parts
    if wanted.type.shape[dim] % (blocks * degrees.slices[dim]):
        return None
    if any(len(devices) % parts for devices in wanted.holders.values()):
        return None
    dims = tuple(blocks if i == dim else cut for i, cut in enumerate(degrees.dims))
    copies = max(degrees.copies // parts, 1)
    cut = ParallelTensor(wanted.type.shape, replace(degrees, dims=dims, copies=copies))
    # Devices next to each other get different parts, for those are linked best.
    pieces = {
        device: Piece(piece.partial, _part(piece.block, dim, parts, number % parts))
        for piece, devices in wanted.holders.items()
        for number, device in enumerate(devices)
    }
    return Layout(cut, tuple((device, pieces[device]) for device, _ in wanted.pieces))


def summed(source: Layout, wanted: Layout) -> Layout | None:
    """Where partial sums are added up whose total only other devices want: each device has a part
    of it, along the first dimension of which the parts are equal. None where nothing is added up,
    where some device has a partial sum and wants the total, or where no parts would be equal."""
    degrees = source.type.degrees
    terms = degrees.partials // wanted.type.degrees.partials
    if terms == 1 or degrees.halos or not set(source.devices).isdisjoint(wanted.devices):
        return None
    sizes = zip(source.type.shape, degrees.dims, degrees.slices, strict=True)
    equal = (i for i, (size, cut, slices) in enumerate(sizes) if not size % (cut * slices * terms))
    if (dim := next(equal, None)) is None:
        return None
    dims = tuple(cut * terms if i == dim else cut for i, cut in enumerate(degrees.dims))
    partials = degrees.partials // terms
    tensor = ParallelTensor(source.type.shape, replace(degrees, dims=dims, partials=partials))
    pieces = (
        (device, Piece(one.partial // terms, _part(one.block, dim, terms, one.partial % terms)))
        for device, one in source.pieces
    )
    return Layout(tensor, tuple(pieces))


def _part(block: tuple[int, ...], dim: int, parts: int, number: int) -> tuple[int, ...]:
    return tuple(b * parts + number if i == dim else b for i, b in enumerate(block))
