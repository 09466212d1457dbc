"""Execute a communication instruction: cut out regions, send and receive them, add them up."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pcg.placement.region import Region, as_slices, elements, extent, whole_region
from runtime.program.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Communication,
    Exchange,
    PassName,
    PieceRegion,
    ReduceScatter,
    is_local,
)
from runtime.world.collectives import Meanwhile, World


def communicate(
    world: World,
    instruction: Communication,
    source: Tensor | None,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
    channel: PassName = "forward",
    meanwhile: Meanwhile | None = None,
) -> Tensor | None:
    """Execute a communication instruction. Return this rank's block of the target, of ``shape``, or
    None if this rank holds none. ``meanwhile`` is called while the communication is under way."""
    meanwhile = meanwhile or _nothing
    if isinstance(instruction, Exchange):
        return run_exchange(world, instruction, source, shape, dtype, channel, meanwhile)
    assert source is not None, "members of a collective hold both of its ends"
    assert shape is not None, "members of a collective hold both of its ends"
    match instruction:
        case AllReduce(group=group):
            return world.all_reduce(source, group, meanwhile)
        case AllGather(group=group, places=places):
            return _assemble(world.all_gather(_flat(source), group, meanwhile), places, shape)
        case ReduceScatter(group=group, places=places):
            return world.reduce_scatter(_chunks(source, places), group, meanwhile).view(shape)
        case AllToAll(group=group, sends=sends, receives=receives):
            received = world.all_to_all(_chunks(source, sends), group, meanwhile)
            return _assemble(received, receives, shape)


def run_exchange(
    world: World,
    exchange: Exchange,
    source: Tensor | None,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
    channel: PassName = "forward",
    meanwhile: Meanwhile | None = None,
) -> Tensor | None:
    """Send and receive the messages of an exchange. Return this rank's block of the target, or None
    if this rank holds none. A local exchange can be differentiated."""
    meanwhile = meanwhile or _nothing
    if is_local(exchange):
        meanwhile()
        return None if shape is None else _local(world, exchange, source, shape, dtype)
    sent, lengths = _packed(exchange.sends, source), _lengths(exchange.receives)
    received = world.exchange(sent, lengths, dtype, exchange.channel(channel), meanwhile)
    if shape is None:
        return None
    if len(exchange.receives) == 1 and not exchange.kept:
        (part,) = exchange.receives
        if extent(part.region) == shape:
            return received[part.peer].view(shape)
    target = _local(world, exchange, source, shape, dtype)
    _unpack(exchange.receives, received, target)
    return target


def _local(
    world: World,
    exchange: Exchange,
    source: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """The target block, filled with the regions that this rank copies from its own source. A view
    of the source if the exchange is local and copies a single region."""
    if is_local(exchange) and len(exchange.kept) == 1 and source is not None:
        (kept,) = exchange.kept
        if extent(kept.target) == shape:
            return source[as_slices(kept.source)]
    target = torch.zeros(shape, dtype=dtype, device=world.device)
    for kept in exchange.kept:
        assert source is not None, "only a rank with a source copies regions of it"
        target[as_slices(kept.target)] += source[as_slices(kept.source)]
    return target


def _packed(sends: Iterable[PieceRegion], source: Tensor | None) -> dict[int, Tensor]:
    """One flat tensor per receiving rank, with its regions in the order of ``sends``.

    Sender and receiver list the regions between them in the same order, that of the transfer.
    """
    pieces: dict[int, list[Tensor]] = {}
    for part in sends:
        assert source is not None, "only a rank with a source sends"
        pieces.setdefault(part.peer, []).append(_flat(source[as_slices(part.region)]))
    return {peer: _joined(flat) for peer, flat in pieces.items()}


def _lengths(receives: Iterable[PieceRegion]) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for part in receives:
        lengths[part.peer] = lengths.get(part.peer, 0) + elements(part.region)
    return lengths


def _unpack(receives: Iterable[PieceRegion], flat: dict[int, Tensor], target: Tensor) -> None:
    used = dict.fromkeys(flat, 0)
    for part in receives:
        begin = used[part.peer]
        used[part.peer] = end = begin + elements(part.region)
        place = target[as_slices(part.region)]
        place += flat[part.peer][begin:end].view(place.shape)


def _chunks(source: Tensor, regions: Iterable[Region]) -> Tensor:
    """The concatenation of regions of the same size, flattened."""
    regions = tuple(regions)
    if _are_rows(regions, tuple(source.shape)):
        return _flat(source)
    return _joined([_flat(source[as_slices(region)]) for region in regions])


def _assemble(flat: Tensor, places: tuple[Region, ...], shape: tuple[int, ...]) -> Tensor:
    """A tensor of ``shape``, filled with the chunks of a flat tensor, each at its place."""
    if _are_rows(places, shape):
        return flat.view(shape)
    target = flat.new_empty(shape)
    for place, chunk in zip(places, flat.chunk(len(places)), strict=True):
        target[as_slices(place)] = chunk.view(extent(place))
    return target


def _are_rows(regions: tuple[Region, ...], shape: tuple[int, ...]) -> bool:
    """Whether regions are blocks of whole rows in order, so that they are contiguous in memory."""
    row = whole_region(shape[1:])
    next_row = 0
    for region in regions:
        if not region or region[1:] != row or region[0][0] != next_row:
            return False
        next_row = region[0][1]
    return next_row == shape[0]


def _flat(values: Tensor) -> Tensor:
    return values.reshape(-1)


def _joined(flat: list[Tensor]) -> Tensor:
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _nothing() -> None:
    """Do nothing while communication is under way."""
