"""Draw masks of ones and zeros on any device, when they are read.

Problem. A dropout mask is as large as the tensor that it masks. Masks that are held as data from
the start of a step can take more memory than all weights. Any plan has to drop the same elements,
even if an operator is recomputed.

Method. Counter-based random numbers (Salmon et al., SC 2011). A word of 64 bits is a hash of its
index in the whole tensor, under a key of the step. Two neighbours in a row use one half of it each.
A block of a mask is drawn by itself, and drawn again each time it is read. The hash is that of
``runtime.inputs.seeded``, computed with torch's integers.

Complexity. Linear; about 4 ns per element on one CPU core.

Exact: only integers are used, so that all devices agree bitwise. The fraction of ones is rounded to
a multiple of 2^-32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from pcg.graph.graph import Leaf

CHUNK = {"cpu": 1 << 15, "cuda": 1 << 24}
"""The words that are computed at a time, by kind of device. On a CPU they fit in its caches."""


def signed(word: int) -> int:
    """A word of 64 bits as a signed integer, the kind that torch has."""
    return word - (1 << 64) if word >> 63 else word


_WEYL = signed(0x9E3779B97F4A7C15)
_MIX = (signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB))


def drawn_mask(leaf: Leaf, starts: Sequence[int], extent: Sequence[int], key: Tensor) -> Tensor:
    """A block of a mask, as bools on the device of ``key``. ``key``: an int64 scalar, different for
    each mask and step. ``starts``: the global index of the block's first element. ``extent``: the
    block's shape."""
    assert leaf.share is not None, "a mask has a share of ones"
    if not prod(extent):
        return torch.empty(tuple(extent), dtype=torch.bool, device=key.device)
    # A scalar counts as a row of one element.
    shape, start, size = leaf.shape or (1,), tuple(starts) or (0,), tuple(extent) or (1,)
    threshold = min(round(leaf.share * 2**32), 2**32 - 1) - 2**31
    first, stop = start[-1] // 2, -(-(start[-1] + size[-1]) // 2)
    # The hash of an index starts with its product by a constant, which is the sum of the products
    # for its row and its column. The constant is a tensor here: torch.compile would compute with a
    # Python number in index arithmetic, which does not wrap around at 64 bits.
    weyl = (key & 0) + _WEYL
    rows = (_rows(shape, start, size, key.device) * -(-shape[-1] // 2) + 1) * weyl + key
    columns = torch.arange(first, stop, device=key.device) * weyl
    begin = start[-1] - 2 * first

    def mask_of(some_rows: Tensor) -> Tensor:
        halves = _mixed(some_rows[:, None] + columns).view(torch.int32)
        return halves[:, begin : begin + size[-1]] < threshold

    chunk = max(1, CHUNK.get(key.device.type, 1 << 24) // (stop - first))
    if torch.compiler.is_compiling() or chunk >= len(rows):
        return mask_of(rows).view(tuple(extent))
    mask = torch.empty((len(rows), size[-1]), dtype=torch.bool, device=key.device)
    for begin_row in range(0, len(rows), chunk):
        mask[begin_row : begin_row + chunk] = mask_of(rows[begin_row : begin_row + chunk])
    return mask.view(tuple(extent))


def _rows(
    shape: Sequence[int], starts: Sequence[int], extent: Sequence[int], device: torch.device
) -> Tensor:
    """The numbers of a block's rows among the rows of the whole tensor, in order. Rows run along
    the last dimension."""
    rows, stride = torch.zeros(1, dtype=torch.int64, device=device), 1
    for size, start, length in list(zip(shape, starts, extent, strict=True))[-2::-1]:
        offsets = torch.arange(start, start + length, device=device) * stride
        rows, stride = (offsets[:, None] + rows).view(-1), stride * size
    return rows


def _mixed(z: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64 in place. The masks remove the copies of the sign that a
    shift of a signed integer brings in."""
    z ^= (z >> 30) & ((1 << 34) - 1)
    z *= _MIX[0]
    z ^= (z >> 27) & ((1 << 37) - 1)
    z *= _MIX[1]
    z ^= (z >> 31) & ((1 << 33) - 1)
    return z
