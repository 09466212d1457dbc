"""What a rank of a pipeline does with slices of the batch, as a part of its program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pcg.plan.pipeline import Turn, lag

if TYPE_CHECKING:
    from runtime.program.program import Instruction


@dataclass(frozen=True)
class Pipelined:
    """What a rank does with slices of the batch, one after the other."""

    slices: tuple[tuple[Instruction, ...], ...]
    """For each slice: what is done with it, in registers that are its own."""
    turns: tuple[Turn, ...]
    """In which order."""
    joined: tuple[str, ...]
    """Registers that slices add to, for the tail to read."""
    tail: tuple[Instruction, ...]
    """What joins the slices. It is linear in them."""
    tail_trains: bool
    """Whether anything but the slices has gradients of the tail, on any rank."""
    is_delayed: bool
    """Whether gradients are of weights one update old (PipeDream-2BW)."""
    stages: int
    """How many there are."""
    runs_on: bool
    """Whether slices of the next batch may begin before all of this one have gone back."""
    chunk_ends: tuple[int, ...] = ()
    """Where in what is done with a slice each chunk ends but the last: a slice goes through one
    after the other, and other slices in between."""
    channels: tuple[tuple[int, int], ...] = ()
    """Where there are several chunks, the stages between which slices pass by messages. Messages of
    two stages have channels to themselves, one each way: others come in another order, and would
    wait for each other."""

    @property
    def interleave(self) -> int:
        """How many chunks there are."""
        return len(self.chunk_ends) + 1

    @property
    def has_weights_pass(self) -> bool:
        """Whether slices have a pass for weights alone."""
        return any(turn.kind == "weights" for turn in self.turns)

    @property
    def lag(self) -> int:
        """Before any stage takes slice j forward, all have taken slice j - ``lag`` back."""
        return lag(self.stages, self.interleave)

    @property
    def lead(self) -> int:
        """How many slices go forward before the one that goes back first."""
        return next(i for i, turn in enumerate(self.turns) if not turn.is_forward) - 1

    def chunks(self, number: int) -> tuple[tuple[Instruction, ...], ...]:
        """What each chunk does with a slice."""
        own = self.slices[number]
        bounds = (0, *self.chunk_ends, len(own))
        return tuple(own[a:b] for a, b in pairwise(bounds))

    def lines(self) -> Iterator[str]:
        yield f"  for each of {len(self.slices)} slices, here the first:"
        for number, chunk in enumerate(self.chunks(0)):
            if self.interleave > 1:
                yield f"    chunk {number}:"
            yield from (f"    {instruction}" for instruction in chunk)
        yield f"  in the order {' '.join(map(self._shown, self.turns))}"
        if self.tail:
            yield "  after them, and for the gradients of slices before them, with zeros:"
        yield from (f"    {instruction}" for instruction in self.tail)
        if self.is_delayed:
            yield "  with the weights of one update before"
        if self.runs_on and self.lead:
            yield f"  the last {self.lead} back among the first {self.lead} of the next batch"

    def _shown(self, turn: Turn) -> str:
        """Such as ``F3``, or ``B3.1`` where there are several chunks; ``W3`` is for weights."""
        chunk = f".{turn.chunk}" if self.interleave > 1 else ""
        return f"{turn.kind[0].upper()}{turn.batch}{chunk}"
