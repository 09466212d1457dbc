"""Follow the sums of a rank's gradients, symbolically."""

from __future__ import annotations

from pcg.placement.region import Region, elements
from runtime.program.buckets import Bucket, buckets
from runtime.program.validate.frame import RankState, Waits
from runtime.program.validate.order import Posted, nothing


class Sync:
    """The sums of a rank's gradients, posted as by ``runtime.execute.sync.GradientSync``."""

    def __init__(self, rank: RankState, itemsize: int) -> None:
        program = rank.device.program
        sizes = {w.register: itemsize * elements(w.region) for w in program.trained}
        self.buckets = buckets(program.trained, sizes)
        self._registers = [frozenset(w.register for w in b.weights) for b in self.buckets]
        self._rank, self._filled = rank, rank.filled
        self._sent: list[Posted | None] = []
        self.batch = 0

    def complete(self, register: str) -> None:
        """Note that a weight's gradient is complete. Send all buckets that are complete now."""
        self._filled.add(register)
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if not self._registers[len(self._sent)] <= self._filled:
                return
            self._send(bucket)

    def flush(self, position: int) -> None:
        """Send all buckets of a position not below ``position``."""
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if bucket.position < position:
                return
            self._filled.update(weight.register for weight in bucket.weights)
            self._send(bucket)

    def finish(self) -> Waits:
        """Send the remaining buckets, and wait for all."""
        self.flush(0)
        for sent in self._sent:
            if sent is not None:
                yield sent
        self._sent.clear()
        self._filled.clear()

    def _send(self, bucket: Bucket) -> None:
        rank = self._rank.device.rank
        if len(bucket.group) == 1:
            self._sent.append(None)
            return
        what = f"all_reduce of the gradients of {', '.join(w.register for w in bucket.weights)}"
        if rank not in bucket.group or bucket.group not in self._rank.known_groups:
            raise self._rank.wrong(what, f"over {bucket.group}, expected one of its groups")
        token = ("gradients", self.batch, parts_of(bucket))
        operation = Posted(rank, what, token, bucket.group, meet=nothing)
        self._sent.append(self._rank.lanes.post(bucket.group, operation))


def parts_of(bucket: Bucket) -> tuple[tuple[str, Region], ...]:
    """The blocks of weights in a bucket. They must be the same on all members of its group."""
    return tuple((weight.leaf.name, weight.region) for weight in bucket.weights)
