"""What it costs to bring a tensor from one way to lie to another, for all pairs of ways at once."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from search.mesh.digits import Digits, Seconds
from search.mesh.strategies import COPY, IDLE, PARTIAL, Codes


def transfer_seconds(
    sources: Codes, targets: Codes, shape: tuple[int, ...], itemsize: int, digits: Digits
) -> Seconds:
    """[sources, targets]: seconds of each transfer of a tensor of a shape; infinite where copies
    would have to vanish. Estimates: what a device receives, from how many, over the mean link to
    those that it may come from; rings for the collectives."""
    primes = np.array(digits.primes)
    a, b = sources[:, None, :], targets[None, :, :]
    elements = prod(shape) * itemsize
    moved = a != b
    cell, inner_a, inner_b = _overlap(sources, targets, len(shape), primes)
    group = _product((a == PARTIAL) & (b != PARTIAL), primes)
    target_block = elements / (cell * inner_b)
    own = elements / (cell * inner_a * inner_b)
    # Along digits that are idle before, one device has what all the others need.
    asking = _product((a == IDLE) & (b != IDLE), primes)
    received = np.maximum(target_block * group - np.where(asking > 1, 0.0, own), 0.0)
    served = asking / _product((a != IDLE) & (b == IDLE), primes)
    busiest = received * np.maximum(served, 1.0)
    messages = group * np.maximum(inner_a / inner_b, 1.0) * np.maximum(served, 1.0)
    shifted = _shifted(sources, targets, len(shape))
    mask = ((moved | shifted) * (1 << np.arange(len(primes)))).sum(axis=2)
    seconds = digits.message_seconds(mask, busiest, messages)
    ring = _Rings(a, b, shifted, mask, elements / (cell * inner_a), elements / (cell * inner_b))
    passed, reduced = ring.passes, ring.reduces
    seconds[passed] = digits.ring_seconds(mask[passed], ring.volume[passed])
    seconds[reduced] = digits.all_reduce_seconds(mask[reduced], ring.volume[reduced])
    # A device that has all it needs copies it within its memory, which is left out here.
    seconds = np.where(received <= 0, 0.0, seconds)
    vanishing = ((a == COPY) & (b != COPY)).any(axis=2)
    return np.where(vanishing, np.inf, seconds)


def _product(chosen: NDArray[np.bool_], primes: NDArray[np.int64]) -> Seconds:
    return np.where(chosen, primes, 1).prod(axis=-1).astype(float)


def _overlap(
    sources: Codes, targets: Codes, rank: int, primes: NDArray[np.int64]
) -> tuple[Seconds, Seconds, Seconds]:
    """Over all dimensions: into how many cells both cut alike, beginning with the outermost digits,
    and into how many pieces each cuts a cell further."""
    cell = np.ones((len(sources), len(targets)))
    inner_a, inner_b = cell.copy(), cell.copy()
    for dim in range(rank):
        has_a, has_b = (sources == dim)[:, None, :], (targets == dim)[None, :, :]
        same = np.ones(cell.shape, bool)
        for digit, prime in enumerate(primes):
            x, y = has_a[:, :, digit], has_b[:, :, digit]
            same &= x == y
            cell *= np.where(same & x, prime, 1)
            inner_a *= np.where(~same & x, prime, 1)
            inner_b *= np.where(~same & y, prime, 1)
    return cell, inner_a, inner_b


def _shifted(sources: Codes, targets: Codes, rank: int) -> NDArray[np.bool_]:
    """The digits that cut the same dimension on both sides, but at another place."""
    found = np.zeros((len(sources), len(targets), sources.shape[1]), bool)
    for dim in range(rank):
        has_a, has_b = (sources == dim)[:, None, :], (targets == dim)[None, :, :]
        differ = np.logical_or.accumulate(has_a != has_b, axis=2)
        found |= has_a & has_b & differ
    return found


class _Rings:
    """Where a transfer is one collective among the devices that differ in the moved digits: an
    all_gather or reduce_scatter, or an all_reduce; and the volume on each device."""

    def __init__(
        self,
        a: Codes,
        b: Codes,
        shifted: NDArray[np.bool_],
        mask: NDArray[np.int64],
        before: Seconds,
        after: Seconds,
    ) -> None:
        moved = a != b
        plain = ~shifted.any(axis=2) & (mask > 0)
        reduced = (~moved | ((a == PARTIAL) & (b == COPY))).all(axis=2)
        scattered = (~moved | ((a == PARTIAL) & (b >= 0))).all(axis=2)
        gathered = (~moved | ((a >= 0) & (b == COPY))).all(axis=2)
        self.passes = plain & (scattered | gathered) & ~reduced
        self.reduces = plain & reduced
        self.volume = np.where(gathered, after, before)
