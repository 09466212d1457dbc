"""Tensors that move to other devices in parts: copies are gathered there, sums are reduced here.

Problem: several devices may want the same piece of a tensor from elsewhere, as a tensor-parallel
group does from the stage before it. Each would receive all of it over a slow link. Method: each
receives a part, and they gather the parts over their own fast links. Source: the scatter/gather
optimization of Narayanan et al., SC 2021, section 4.1. Complexity: linear in the pieces.

In a graph, this is a partition that a combine undoes at once. The pair does not change the value,
so a rule of the library can insert it, and an audit can follow it like any other. It changes the
transfer: the tensor arrives cut as it is between the two operators. Gradients take the same path
back: they are added up and cut (reduce_scatter), and each part is sent where it came from.

If the total of partial sums is wanted only on other devices, sending each partial sum there would
take as many times the bytes of the total as there are partial sums. So the devices that hold them
first add them up in parts (reduce_scatter). All graphs are scheduled so, if the parts are equal.
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


class TransferParts(NamedTuple):
    """The dimension along which a tensor is cut on its way, and the number of parts."""

    dim: int
    parts: int


def named_parts(chain: Sequence[Node]) -> tuple[Node, Node] | None:
    """Return the first partition in a chain of parallel operators that a combine undoes at once."""
    for cut, join in pairwise(chain):
        if (cut.name, join.name) == ("partition", "combine"):
            pair = cut.operator_call, join.operator_call
            if not states_halo(pair[0]) and pair[0].values == pair[1].values:
                return cut, join
    return None


def stated_parts(chain: Sequence[Node]) -> TransferParts | None:
    """Return the parts in which a tensor moves by a chain of parallel operators, if any."""
    named = named_parts(chain)
    if named is None:
        return None
    call = named[0].operator_call
    return TransferParts(call.integer("dim"), call.integer("degree"))


def layout_in_parts(source: Layout, wanted: Layout, split: TransferParts) -> Layout | None:
    """Return the layout in which the parts of a tensor arrive on the devices that want it.

    Devices that want the same piece share its parts evenly. None if a device has the tensor
    already, if the number of devices with a piece is no multiple of the parts, or if the parts are
    not equal.
    """
    degrees, (dim, parts) = wanted.type.degrees, split
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
    # Neighbouring devices get different parts, since they have the best links.
    pieces = {
        device: Piece(piece.partial, _part(piece.block, dim, parts, number % parts))
        for piece, devices in wanted.holders.items()
        for number, device in enumerate(devices)
    }
    return Layout(cut, tuple((device, pieces[device]) for device, _ in wanted.pieces))


def layout_of_sums(source: Layout, wanted: Layout) -> Layout | None:
    """Return the layout in which partial sums are added up if only other devices want the total.

    Each device gets a part of the total, along the first dimension with equal parts. None if
    nothing is added up, if a device with a partial sum wants the total, or if no parts are equal.
    """
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
        (
            device,
            Piece(piece.partial // terms, _part(piece.block, dim, terms, piece.partial % terms)),
        )
        for device, piece in source.pieces
    )
    return Layout(tensor, tuple(pieces))


def _part(block: tuple[int, ...], dim: int, parts: int, number: int) -> tuple[int, ...]:
    return tuple(b * parts + number if i == dim else b for i, b in enumerate(block))
