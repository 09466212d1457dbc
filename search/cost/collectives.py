"""Seconds of collectives such as all_reduce over the levels of a machine.

All algorithms take a time that is linear in the bytes moved, so each is a *line*, the seconds that
it takes for nothing and those for each byte more, and a collective takes the cheapest of its lines.

- A *ring* of n devices passes blocks on n - 1 times for all_gather or reduce_scatter, twice as
  often for all_reduce: 2 (n - 1) (a + v / n b) seconds for v bytes, with latency a and bandwidth b
  of its slowest link (Thakur, Rabenseifner and Gropp, IJHPCA 2005).
- *Double binary trees* sum up and spread halves of the bytes at the same time, piece by piece:
  2 log2 n steps of latency, and 2 v / b for the bytes (Sanders, Speck and Träff, Parallel
  Computing 2009; NCCL 2.4).
- *By levels*: reduce_scatter inside the units, all_reduce between them, all_gather inside. Of
  m members in a unit each has 1/m of the bytes left to exchange with other units, in m groups side
  by side that share the unit's ports; so m cancels out, and every stage is a ring over all the
  bandwidth that the members have together. Any levels in a row may be one stage.

all_gather and reduce_scatter are rings, as in NCCL. all_to_all is a message to every peer, one
after the other. Where a machine says what all_reduce was measured to reach between the units of a
level, whatever algorithm is behind it, that takes the place of ring and trees there. Measured
seconds are concave in the bytes, as libraries have protocols for small messages and for large
ones; the least of several lines is such a function. Groups of the same form on the other devices
are taken to communicate at the same time: a group has its part of the ports by its members
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
"""Bytes of the first buffer of gradients that is sent."""
FULL = float(BUCKET_BYTES)
"""Bytes of the later ones."""

Line = tuple[float, float]
"""Seconds whatever the size, and seconds a byte."""
Lines = NDArray[np.float64]
"""[algorithms, 2]: seconds whatever the size, and seconds a byte, of each algorithm."""


def ring(hops: Sequence[Hop]) -> Lines:
    """all_gather or reduce_scatter in a group: by bytes on a device when the tensor is whole."""
    return np.array(_useful(_gathers(hops)))


def all_reduce(hops: Sequence[Hop]) -> Lines:
    """all_reduce in a group: by bytes on every device. Only algorithms that are the cheapest for
    some size."""
    lines = [line for stages in _stages(hops) for line in _by_levels(stages)]
    return np.array(_useful(lines) if lines else [(0.0, 0.0)])


def seconds(lines: Lines, volume: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """How long the cheapest algorithm takes for each volume. ``lines``: [..., algorithms, 2], one
    set or one for each volume."""
    sizes = np.asarray(volume, np.float64)[..., None]
    return np.asarray((lines[..., 0] + lines[..., 1] * sizes).min(axis=-1))


def bucketed(lines: Lines, volume: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """How long the all_reduce of a weight's gradient takes. Small gradients share a buffer, and so
    the latency of its all_reduce, each by its part of the bytes (Li et al., VLDB 2020)."""
    sizes = np.asarray(volume, np.float64)
    return seconds(lines, np.maximum(sizes, BUCKET)) * np.minimum(sizes / BUCKET, 1.0)


def padded(sets: Sequence[Lines]) -> Lines:
    """[sets, algorithms, 2]: the last line again in sets that have fewer."""
    most = max(map(len, sets), default=1)
    padding = [(*lines, *[lines[-1]] * (most - len(lines))) for lines in sets]
    return np.array(padding, np.float64).reshape(len(sets), most, 2)


def _by_levels(stages: Sequence[Sequence[Hop]]) -> Iterator[Line]:
    """reduce_scatter and all_gather in all stages but the outermost, all_reduce in that one."""
    *inner, last = stages
    for rings in product(*map(_gathers, inner)):
        latency = 2 * sum(line[0] for line in rings)
        per_byte = 2 * sum(line[1] for line in rings)
        for fixed, slope in _outermost(last):
            yield latency + fixed, per_byte + slope


def _outermost(stage: Sequence[Hop]) -> Iterator[Line]:
    """all_reduce in one stage: as it was measured, or else a ring or trees."""
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
    """all_gather or reduce_scatter: the ways that it may go."""
    n = prod(hop.units for hop in hops)
    each = [hop.gathering or (hop.link,) for hop in hops]
    return [_ring(n, links) for links in product(*each)]


def _ring(n: int, links: Sequence[Link]) -> Line:
    """One pass: n - 1 steps, in which every device sends all but its own block."""
    if n == 1:
        return 0.0, 0.0
    latency, bandwidth = _slowest(links)
    return (n - 1) * latency, (n - 1) / n / bandwidth


def _tree(n: int, links: Sequence[Link]) -> Line:
    """Up and down double binary trees."""
    latency, bandwidth = _slowest(links)
    return 2 * log2(n) * latency, 2 / bandwidth


def _slowest(links: Sequence[Link]) -> tuple[float, float]:
    return max(link.latency for link in links), min(link.bandwidth for link in links)


def _stages(hops: Sequence[Hop]) -> Iterator[list[Sequence[Hop]]]:
    """All ways to divide levels into stages of levels in a row."""
    if not hops:
        return
    yield [hops]
    for i in range(1, len(hops)):
        for rest in _stages(hops[i:]):
            yield [hops[:i], *rest]


def _useful(lines: Iterable[Line]) -> list[Line]:
    """The lines with less for each byte than any that begins lower."""
    useful: list[Line] = []
    for fixed, slope in sorted(set(lines)):
        if not useful or slope < useful[-1][1]:
            useful.append((fixed, slope))
    return useful
