"""Read a user's data one batch ahead in a thread.

Only this thread uses the dataset, in the order of batches, so that a dataset need not be
thread-safe. An error is raised when its batch is requested. A batch that will not be requested is
not read. The thread ends with its prefetcher, so that a process may train many plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread
from weakref import finalize

import torch
from torch import Tensor

from pcg.graph.graph import Leaf
from pcg.placement.region import Region
from runtime.inputs.seeded import InputSource, LeafRegion


@dataclass
class _Batch:
    """A batch that has been or will be read: its blocks, or the error."""

    number: int
    ready: Event = field(default_factory=Event)
    pieces: dict[LeafRegion, Tensor] = field(default_factory=dict[LeafRegion, Tensor])
    error: BaseException | None = None


@dataclass(frozen=True)
class _Reader:
    """The thread's work. It does not refer to the prefetcher, which the thread would keep alive."""

    source: InputSource
    blocks: dict[LeafRegion, Leaf]
    dtype: torch.dtype
    device: torch.device

    def serve(self, orders: SimpleQueue[_Batch | None]) -> None:
        """Read batches in the order in which they are requested, until None comes."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        while (batch := orders.get()) is not None:
            try:
                for key, leaf in self.blocks.items():
                    batch.pieces[key] = self._read(leaf, key.region, batch.number)
            except BaseException as error:
                batch.error = error
            batch.ready.set()

    def _read(self, leaf: Leaf, region: Region, number: int) -> Tensor:
        piece = self.source.piece(leaf, region, number).to(self.dtype)
        return piece.pin_memory() if self.device.type == "cuda" else piece


class Prefetcher:
    """A source that reads the next batch while the last one is used. ``blocks``: the blocks that
    this rank reads of each batch. ``dtype``: the number format to which they are converted.
    ``device``: the device that will read them."""

    def __init__(
        self,
        source: InputSource,
        blocks: Sequence[tuple[Leaf, Region]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        wanted = {LeafRegion(leaf.name, region): leaf for leaf, region in blocks}
        self._reader = _Reader(source, wanted, dtype, device)
        self._batches: dict[int, _Batch] = {}
        self._orders: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread: Thread | None = None
        self.end: int | None = None
        """The number of the first batch that will not be requested. None if unknown; then nothing
        is read ahead."""

    @property
    def seed(self) -> int:
        return self._reader.source.seed

    @property
    def counts(self) -> bool:
        return self._reader.source.counts

    @property
    def constants(self) -> Collection[str]:
        return self._reader.source.constants

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource.piece``. Raises the source's error for the
        batch."""
        batch = self._batch(step)
        for old in [number for number in self._batches if number not in (step, step + 1)]:
            del self._batches[old]
        if self.end is not None and step + 1 < self.end:
            self._batch(step + 1)
        batch.ready.wait()
        if batch.error is not None:
            # The batch is read again if it is requested again.
            self._batches.pop(step, None)
            raise batch.error
        return batch.pieces[LeafRegion(leaf.name, region)]

    def bad(self, step: int) -> list[str]:
        """The inputs of a batch that are not finite. Empty if the batch is not kept any more."""
        batch = self._batches.get(step)
        if batch is None or not batch.ready.is_set() or batch.error is not None:
            return []
        pieces = batch.pieces.items()
        bad = (key.leaf for key, piece in pieces if not bool(piece.isfinite().all()))
        return [f"input {name}" for name in dict.fromkeys(bad)]

    def _batch(self, number: int) -> _Batch:
        """The batch of a number. It is requested from the thread if it has not been."""
        if (requested := self._batches.get(number)) is not None:
            return requested
        batch = self._batches[number] = _Batch(number)
        if self._thread is None:
            # A daemon: if the dataset hangs, the process can end nevertheless.
            self._thread = Thread(target=self._reader.serve, args=(self._orders,), daemon=True)
            self._thread.start()
            finalize(self, self._orders.put, None)
        self._orders.put(batch)
        return batch
