"""Group gradients into buckets. A single all_reduce sums each bucket.

Small gradients share a buffer, as in PyTorch's DistributedDataParallel (Li et al., VLDB 2020,
section 3.2), so that no all_reduce is too small. Buckets are filled in the order in which the
backward pass completes gradients. This order follows from the schedule and is the same on all
ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pcg.plan.training import BUCKET_BYTES, FIRST_BYTES
from runtime.program.program import Group, Weight


@dataclass(frozen=True)
class Bucket:
    """Weights whose gradients are summed together. ``position``: all of these gradients are
    complete after the backward pass of the step at this position of the schedule."""

    weights: tuple[Weight, ...]
    group: Group
    position: int


@dataclass
class _GroupBuffers:
    """The weights in each buffer of a group. ``size``: the bytes in the last buffer."""

    buffers: list[list[Weight]] = field(default_factory=list[list[Weight]])
    size: int = 0


def buckets(weights: Iterable[Weight], bytes_of: Mapping[str, int]) -> tuple[Bucket, ...]:
    """The buckets of some weights, in the order in which they are sent. ``bytes_of``: the bytes of
    each weight's block on this rank, by register."""
    filled: dict[Group, _GroupBuffers] = {}
    for weight in sorted(weights, key=lambda w: (-w.position, w.register)):
        of_group = filled.get(weight.group)
        if of_group is None:
            of_group = filled[weight.group] = _GroupBuffers()
        full = FIRST_BYTES if len(of_group.buffers) == 1 else BUCKET_BYTES
        if not of_group.buffers or of_group.size >= full:
            of_group.buffers.append([])
            of_group.size = 0
        of_group.buffers[-1].append(weight)
        of_group.size += bytes_of[weight.register]
    unordered = [
        Bucket(tuple(buffer), group, min(weight.complete for weight in buffer))
        for group, of_group in filled.items()
        for buffer in of_group.buffers
    ]
    return tuple(sorted(unordered, key=_order))


def _order(bucket: Bucket) -> tuple[int, int, Group, str]:
    """A sort key: the order in which buckets are complete. Buckets of one pass for weights are
    ordered by the position of their first weight."""
    first = bucket.weights[0]
    return -bucket.position, -first.position, bucket.group, first.register
