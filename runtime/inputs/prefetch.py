"""Read a user's data one batch ahead in a thread.

The thread alone touches the dataset, in the order of batches, so that a dataset need not be safe
for several. What it meets, an error too, is handed over when that batch is asked for, and a batch
that nobody will ask for is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread

import torch
from torch import Tensor

from pcg.graph.graph import Leaf
from pcg.placement.region import Region
from runtime.inputs.seeded import InputSource, LeafRegion


@dataclass
class _Batch:
    """A batch that is read or will be: its pieces, or the error instead."""

    number: int
    ready: Event = field(default_factory=Event)
    pieces: dict[LeafRegion, Tensor] = field(default_factory=dict[LeafRegion, Tensor])
    error: BaseException | None = None


class Ahead:
    """A source that reads the next batch while the last one is used. ``wanted``: the pieces that
    each batch is asked for; ``dtype``: what they are turned into; ``device``: where they go."""

    def __init__(
        self,
        source: InputSource,
        wanted: Sequence[tuple[Leaf, Region]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._source, self._dtype, self._device = source, dtype, device
        self._wanted = {LeafRegion(leaf.name, region): leaf for leaf, region in wanted}
        self._batches: dict[int, _Batch] = {}
        self._orders: SimpleQueue[_Batch] = SimpleQueue()
        self._thread: Thread | None = None
        self.end: int | None = None
        """The number of the first batch that will not be asked for; None if that is not known,
        and then nothing is read ahead."""

    @property
    def seed(self) -> int:
        return self._source.seed

    @property
    def counts(self) -> bool:
        return self._source.counts

    @property
    def constants(self) -> Collection[str]:
        return self._source.constants

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource`` says. Raises what the source did."""
        batch = self._batch(step)
        for old in [number for number in self._batches if number not in (step, step + 1)]:
            del self._batches[old]
        if self.end is not None and step + 1 < self.end:
            self._batch(step + 1)
        batch.ready.wait()
        if batch.error is not None:
            # Another try, after an update that was left out, reads again.
            self._batches.pop(step, None)
            raise batch.error
        return batch.pieces[LeafRegion(leaf.name, region)]

    def bad(self, step: int) -> list[str]:
        """The inputs of a batch, if it is still known, that are not finite."""
        batch = self._batches.get(step)
        if batch is None or not batch.ready.is_set() or batch.error is not None:
            return []
        pieces = batch.pieces.items()
        bad = (key.leaf for key, piece in pieces if not bool(piece.isfinite().all()))
        return [f"input {name}" for name in dict.fromkeys(bad)]

    def _batch(self, number: int) -> _Batch:
        if (known := self._batches.get(number)) is not None:
            return known
        made = self._batches[number] = _Batch(number)
        if self._thread is None:
            # A dataset that hangs must not keep the process from its end.
            self._thread = Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._orders.put(made)
        return made

    def _serve(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while True:
            batch = self._orders.get()
            try:
                for key, leaf in self._wanted.items():
                    batch.pieces[key] = self._read(leaf, key.region, batch.number)
            except BaseException as error:
                batch.error = error
            batch.ready.set()

    def _read(self, leaf: Leaf, region: Region, number: int) -> Tensor:
        piece = self._source.piece(leaf, region, number).to(self._dtype)
        return piece.pin_memory() if self._device.type == "cuda" else piece
