"""The part of a rank's program that a pipeline repeats for each slice (micro-batch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pcg.plan.pipeline import Turn, lag

if TYPE_CHECKING:
    from runtime.program.program import Instruction


@dataclass(frozen=True)
class PipelineProgram:
    """A rank's instructions for the slices of a batch, and the order of their passes."""

    slices: tuple[tuple[Instruction, ...], ...]
    """The instructions for each slice. Each slice has registers of its own."""
    turns: tuple[Turn, ...]
    """The passes of all slices, in their order on this rank."""
    joined: tuple[str, ...]
    """The registers to which slices add, and which the tail reads."""
    tail: tuple[Instruction, ...]
    """The instructions that join the slices. They are linear in the joined registers."""
    tail_trains: bool
    """Whether the tail, on any rank, has gradients for other registers than the joined ones."""
    is_delayed: bool
    """Whether the gradients of a step belong to weights that are one update old (PipeDream-2BW)."""
    stages: int
    """The number of stages."""
    overlaps_batches: bool
    """Whether slices of the next batch may start before the last backward pass of this batch."""
    chunk_ends: tuple[int, ...] = ()
    """The index in a slice's instructions at which each chunk ends, except the last. Passes of
    other slices may come between two chunks."""
    channels: tuple[tuple[int, int], ...] = ()
    """With several chunks: the pairs of stages between which slices pass by messages. Each pair has
    a channel for each direction. In a shared channel, messages of two pairs could be posted in
    different orders on two ranks, which would then wait for each other."""

    @property
    def interleave(self) -> int:
        """The number of chunks per stage."""
        return len(self.chunk_ends) + 1

    @property
    def has_weights_pass(self) -> bool:
        """Whether slices have a separate pass for weights (ZB-H1)."""
        return any(turn.kind == "weights" for turn in self.turns)

    @property
    def lag(self) -> int:
        """Before any stage starts the forward pass of slice j, all stages have finished the
        backward pass of slice j - ``lag``."""
        return lag(self.stages, self.interleave)

    @property
    def lead(self) -> int:
        """The number of forward passes before the first 1F1B pair: one less than the forward passes
        before the first backward pass."""
        return next(i for i, turn in enumerate(self.turns) if not turn.is_forward) - 1

    def chunks(self, number: int) -> tuple[tuple[Instruction, ...], ...]:
        """The instructions for a slice, by chunk."""
        instructions = self.slices[number]
        bounds = (0, *self.chunk_ends, len(instructions))
        return tuple(instructions[a:b] for a, b in pairwise(bounds))

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
        if self.overlaps_batches and self.lead:
            yield f"  the last {self.lead} back among the first {self.lead} of the next batch"

    def _shown(self, turn: Turn) -> str:
        """A turn as text: ``F3`` forward, ``B3`` backward, ``W3`` for weights; ``B3.1`` for chunk 1
        if there are several chunks."""
        chunk = f".{turn.chunk}" if self.interleave > 1 else ""
        return f"{turn.kind[0].upper()}{turn.batch}{chunk}"
