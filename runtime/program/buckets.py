"""Group gradients into buckets, each of which one all_reduce sums.

Small gradients share a buffer, as in PyTorch's DistributedDataParallel (Li et al., VLDB 2020,
section 3.2), so that each all_reduce has enough to do. Buffers are filled in the order in which the
backward pass completes gradients, which follows from the schedule and is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pcg.plan.training import BUCKET_BYTES, FIRST_BYTES
from runtime.program.program import Group, Weight


@dataclass(frozen=True)
class Bucket:
    """Weights whose gradients are added up together. ``position``: the step of the schedule after
    whose backward pass all of them are complete."""

    weights: tuple[Weight, ...]
    group: Group
    position: int


@dataclass
class _Filled:
    """What the buffers of a group hold. ``size``: bytes of the last one."""

    buffers: list[list[Weight]] = field(default_factory=list[list[Weight]])
    size: int = 0


def buckets(weights: Iterable[Weight], bytes_of: Mapping[str, int]) -> tuple[Bucket, ...]:
    """Weights by the buffers they share, in the order in which these are sent. ``bytes_of``:
    each weight's piece, by register."""
    filled: dict[Group, _Filled] = {}
    for weight in sorted(weights, key=lambda w: (-w.position, w.register)):
        own = filled.get(weight.group)
        if own is None:
            own = filled[weight.group] = _Filled()
        full = FIRST_BYTES if len(own.buffers) == 1 else BUCKET_BYTES
        if not own.buffers or own.size >= full:
            own.buffers.append([])
            own.size = 0
        own.buffers[-1].append(weight)
        own.size += bytes_of[weight.register]
    made = [
        Bucket(tuple(some), group, min(weight.complete for weight in some))
        for group, own in filled.items()
        for some in own.buffers
    ]
    return tuple(sorted(made, key=_order))


def _order(bucket: Bucket) -> tuple[int, int, Group, str]:
    """By when they are complete; those of one pass for weights, by when their first weight is."""
    first = bucket.weights[0]
    return -bucket.position, -first.position, bucket.group, first.register
