"""An exchange carried out: regions cut, sent, kept, received and added up."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor

from pcg.transfer import Region
from runtime.collectives import World
from runtime.program import Exchange, Part


def run_exchange(
    world: World,
    exchange: Exchange,
    source: Tensor | None,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """This rank's piece of the target, of ``shape``; None where it holds none."""
    received = world.exchange(_packed(exchange.sends, source), _lengths(exchange.receives), dtype)
    if shape is None:
        return None
    if exchange.is_local and len(exchange.kept) == 1 and source is not None:
        (kept,) = exchange.kept
        if tuple(stop - start for start, stop in kept.target) == shape:
            return source[cut(kept.source)]
    target = torch.zeros(shape, dtype=dtype, device=world.device)
    for kept in exchange.kept:
        assert source is not None, "only a rank with a source keeps some of it"
        target[cut(kept.target)] += source[cut(kept.source)]
    _unpack(exchange.receives, received, target)
    return target


def cut(region: Region) -> tuple[slice, ...]:
    """A region as what an array is indexed with."""
    return tuple(slice(start, stop) for start, stop in region)


def _packed(sends: Iterable[Part], source: Tensor | None) -> dict[int, Tensor]:
    """One flat tensor for each rank that something goes to, regions in the order given.

    Both ends list what passes between them in the order of the transfer's messages.
    """
    pieces: dict[int, list[Tensor]] = {}
    for part in sends:
        assert source is not None, "only a rank with a source sends"
        pieces.setdefault(part.peer, []).append(source[cut(part.region)].reshape(-1))
    return {peer: torch.cat(flat) for peer, flat in pieces.items()}


def _lengths(receives: Iterable[Part]) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for part in receives:
        lengths[part.peer] = lengths.get(part.peer, 0) + _elements(part.region)
    return lengths


def _unpack(receives: Iterable[Part], flat: dict[int, Tensor], target: Tensor) -> None:
    used = dict.fromkeys(flat, 0)
    for part in receives:
        begin = used[part.peer]
        used[part.peer] = end = begin + _elements(part.region)
        place = target[cut(part.region)]
        place += flat[part.peer][begin:end].view(place.shape)


def _elements(region: Region) -> int:
    return prod(stop - start for start, stop in region)
