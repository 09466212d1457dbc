"""Seconds of collectives such as all_reduce over the levels of a machine.

The time of every algorithm is linear in the bytes moved. So each algorithm is a *line*: a fixed
number of seconds, and seconds for each byte. A collective takes the cheapest of its lines.

- A *ring* of n devices passes blocks on n - 1 times for all_gather or reduce_scatter, and twice as
often for all_reduce: 2 (n - 1) (a + v / n b) seconds for v bytes, with latency a and bandwidth b of
its slowest link (Thakur, Rabenseifner and Gropp, IJHPCA 2005). - *Double binary trees* add up and
spread the two halves of the bytes at the same time, piece by piece: 2 log2 n steps of latency, and
2 v / b seconds for the bytes (Sanders, Speck and Träff, Parallel Computing 2009; NCCL 2.4). - *By
levels*: reduce_scatter inside the units, all_reduce between them, all_gather inside. Each of the m
members of a unit has 1/m of the bytes left to exchange with other units. This is done in m groups
side by side, which share the ports of the unit. So m cancels out, and every stage is a ring over
the bandwidth of all members together. Any consecutive levels may be one stage.

all_gather and reduce_scatter are rings, as in NCCL. all_to_all sends a message to every peer, one
after the other. A machine may state the measured rate of all_reduce between the units of a level,
whatever its algorithm. This then replaces ring and trees at that level. Measured seconds are
concave in the bytes, as libraries have different protocols for small and large messages. The least
of several lines is such a function. Groups of the same form on the other devices are taken to
communicate at the same time: a group has a part of the ports in proportion to its members
(`Machine.group_link`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Hop, Link
from pcg.plan.training import BUCKET_BYTES, FIRST_BYTES

BUCKET = float(FIRST_BYTES)
"""Bytes of the first bucket of gradients that is sent."""
FULL = float(BUCKET_BYTES)
"""Bytes of the later buckets."""

Line = tuple[float, float]
"""The fixed seconds, and the seconds a byte."""
Lines = NDArray[np.float64]
"""[algorithms, 2]: the fixed seconds and the seconds a byte of each algorithm."""


def ring(hops: Sequence[Hop]) -> Lines:
    """The lines of all_gather or reduce_scatter in a group, by the bytes of the whole tensor on a
    device."""
    return np.array(_useful(_gathers(hops)))


def all_reduce(hops: Sequence[Hop]) -> Lines:
    """The lines of all_reduce in a group, by the bytes on every device. Algorithms that are the
    cheapest for no size are left out."""
    lines = [line for stages in _stages(hops) for line in _by_levels(stages)]
    return np.array(_useful(lines) if lines else [(0.0, 0.0)])


def seconds(lines: Lines, volume: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Seconds of the cheapest algorithm for each volume in bytes. ``lines``: [..., algorithms, 2],
    one set for all volumes or one for each."""
    sizes = np.asarray(volume, np.float64)[..., None]
    return np.asarray((lines[..., 0] + lines[..., 1] * sizes).min(axis=-1))


def bucketed(lines: Lines, volume: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Seconds of the all_reduce of a weight's gradient of ``volume`` bytes. Small gradients share a
    bucket. Each counts for a part of the bucket's all_reduce, in proportion to its bytes (Li et
    al., VLDB 2020)."""
    sizes = np.asarray(volume, np.float64)
    return seconds(lines, np.maximum(sizes, BUCKET)) * np.minimum(sizes / BUCKET, 1.0)


def padded(sets: Sequence[Lines]) -> Lines:
    """[sets, algorithms, 2]: all sets in one array. Shorter sets repeat their last line."""
    most = max(map(len, sets), default=1)
    padding = [(*lines, *[lines[-1]] * (most - len(lines))) for lines in sets]
    return np.array(padding, np.float64).reshape(len(sets), most, 2)


def _by_levels(stages: Sequence[Sequence[Hop]]) -> Iterator[Line]:
    """The lines of all_reduce by levels: reduce_scatter and all_gather in all stages but the
    outermost, all_reduce in that one."""
    *inner, last = stages
    for rings in product(*map(_gathers, inner)):
        latency = 2 * sum(line[0] for line in rings)
        per_byte = 2 * sum(line[1] for line in rings)
        for fixed, slope in _outermost(last):
            yield latency + fixed, per_byte + slope


def _outermost(stage: Sequence[Hop]) -> Iterator[Line]:
    """The lines of all_reduce in one stage: as measured, or else of a ring and of trees."""
    n = prod(hop.units for hop in stage)
    if all(hop.reducing for hop in stage):
        rings = [_ring(n, links) for links in product(*(hop.reducing for hop in stage))]
    else:
        links = [hop.link for hop in stage]
        rings = [_ring(n, links)]
        yield _tree(n, links)
    for fixed, slope in rings:
        yield 2 * fixed, 2 * slope


def _gathers(hops: Sequence[Hop]) -> list[Line]:
    """The lines of all_gather or reduce_scatter."""
    n = prod(hop.units for hop in hops)
    each = [hop.gathering or (hop.link,) for hop in hops]
    return [_ring(n, links) for links in product(*each)]


def _ring(n: int, links: Sequence[Link]) -> Line:
    """The line of one pass along a ring: n - 1 steps, in which every device sends all blocks but
    its own."""
    if n == 1:
        return 0.0, 0.0
    latency, bandwidth = _slowest(links)
    return (n - 1) * latency, (n - 1) / n / bandwidth


def _tree(n: int, links: Sequence[Link]) -> Line:
    """The line of double binary trees, up and down."""
    latency, bandwidth = _slowest(links)
    return 2 * log2(n) * latency, 2 / bandwidth


def _slowest(links: Sequence[Link]) -> tuple[float, float]:
    return max(link.latency for link in links), min(link.bandwidth for link in links)


def _stages(hops: Sequence[Hop]) -> Iterator[list[Sequence[Hop]]]:
    """All ways to divide levels into stages of consecutive levels."""
    if not hops:
        return
    yield [hops]
    for i in range(1, len(hops)):
        for rest in _stages(hops[i:]):
            yield [hops[:i], *rest]


def _useful(lines: Iterable[Line]) -> list[Line]:
    """The lines with fewer seconds a byte than any line with fewer fixed seconds."""
    useful: list[Line] = []
    for fixed, slope in sorted(set(lines)):
        if not useful or slope < useful[-1][1]:
            useful.append((fixed, slope))
    return useful
