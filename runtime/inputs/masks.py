"""Draw masks of ones and zeros on any device, where they are read.

Problem: a mask of dropout is as large as what is dropped. To hold one from the start of a step, as
data, takes more memory than all that is trained; and any plan has to drop the same elements, also
where an operator is recomputed.
Method: counter-based generation (Salmon et al., SC 2011): a word of 64 bits is a hash of its place
in the whole tensor under a key of the step, and two neighbours in a row have a half of it each. A
piece of a tensor is drawn by itself, and again as often as it is read. The hash is that of
``runtime.inputs.seeded``, in integers of torch. Linear; about 4 ns an element on one CPU core.
Exact: integers alone, so that devices agree to the last bit. A share is a multiple of 2^-32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from pcg.graph.graph import Leaf

CHUNK = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Words that are made at a time, by the kind of device: on a CPU so many as its caches hold."""


def signed(word: int) -> int:
    """A word of 64 bits as torch's integers have it."""
    return word - (1 << 64) if word >> 63 else word


_WEYL = signed(0x9E3779B97F4A7C15)
_MIX = (signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB))


def drawn_mask(leaf: Leaf, starts: Sequence[int], extent: Sequence[int], key: Tensor) -> Tensor:
    """A piece of a mask, of bools, on the device of ``key``: one int64, which tells apart masks and
    steps. ``starts``: the piece's first element in the whole; ``extent``: its shape."""
    assert leaf.share is not None, "a mask has a share of ones"
    if not prod(extent):
        return torch.empty(tuple(extent), dtype=torch.bool, device=key.device)
    # A single number is a row of one.
    shape, at, size = leaf.shape or (1,), tuple(starts) or (0,), tuple(extent) or (1,)
    least = min(round(leaf.share * 2**32), 2**32 - 1) - 2**31
    first, stop = at[-1] // 2, -(-(at[-1] + size[-1]) // 2)
    # The hash of an index begins with its multiple of a constant, which adds up from both parts.
    # No number to the compiler, which takes products of numbers and places for places of its own,
    # without an end at 64 bits.
    weyl = (key & 0) + _WEYL
    rows = (_rows(shape, at, size, key.device) * -(-shape[-1] // 2) + 1) * weyl + key
    columns = torch.arange(first, stop, device=key.device) * weyl
    begin = at[-1] - 2 * first

    def made(of: Tensor) -> Tensor:
        halves = _mixed(of[:, None] + columns).view(torch.int32)
        return halves[:, begin : begin + size[-1]] < least

    chunk = max(1, CHUNK.get(key.device.type, 1 << 24) // (stop - first))
    if torch.compiler.is_compiling() or chunk >= len(rows):
        return made(rows).view(tuple(extent))
    mask = torch.empty((len(rows), size[-1]), dtype=torch.bool, device=key.device)
    for begin_row in range(0, len(rows), chunk):
        mask[begin_row : begin_row + chunk] = made(rows[begin_row : begin_row + chunk])
    return mask.view(tuple(extent))


def _rows(
    shape: Sequence[int], starts: Sequence[int], extent: Sequence[int], device: torch.device
) -> Tensor:
    """The numbers of a piece's rows, which run along the last dimension, among those of the whole,
    in order."""
    rows, stride = torch.zeros(1, dtype=torch.int64, device=device), 1
    for size, start, length in list(zip(shape, starts, extent, strict=True))[-2::-1]:
        own = torch.arange(start, start + length, device=device) * stride
        rows, stride = (own[:, None] + rows).view(-1), stride * size
    return rows


def _mixed(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64, in place. Shifts of signed integers bring their sign along."""
    z ^= (z >> 30) & ((1 << 34) - 1)
    z *= _MIX[0]
    z ^= (z >> 27) & ((1 << 37) - 1)
    z *= _MIX[1]
    z ^= (z >> 31) & ((1 << 33) - 1)
    return z
