"""Segments: the instructions between two communications, run and differentiated together.

A segment is one graph of autograd. It enters by registers made before and leaves by those that are
read after it; all others are dropped as soon as nothing more of the segment reads them, and live on
only where the backward pass needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from runtime.execute.fuse import fused
from runtime.execute.kernels import BlockFunction
from runtime.program.program import (
    Communication,
    Instruction,
    Load,
    Local,
    Repeat,
    Run,
    is_local,
    sources,
    targets,
)

Sink = Callable[[Tensor], None]
"""Takes the gradient of a register."""


@dataclass(frozen=True)
class Segment:
    """Instructions of one rank in a row that need no other rank."""

    instructions: tuple[Local, ...]
    reads: tuple[str, ...]
    """Registers made before it."""
    results: tuple[str, ...]
    """Registers that it makes and that are read after it."""
    drops: tuple[tuple[str, ...], ...]
    """After each instruction, the registers that nothing more of the segment reads."""
    ends: frozenset[str]
    """The registers of ``reads`` that nothing reads after the segment."""

    @cached_property
    def has_late(self) -> bool:
        """Whether the gradient of some weight comes late."""
        return any(isinstance(i, Run) and i.late is not None for i in self.instructions)

    @property
    def makes(self) -> tuple[str, ...]:
        """The registers that are there after it."""
        return self.results

    @property
    def position(self) -> int:
        """The position of its first instruction in the schedule."""
        return self.instructions[0].position


@dataclass(frozen=True)
class Meeting:
    """A communication between segments. ``ends``: the source, if nothing reads it later;
    ``again``: the position before whose backward pass it is done again, if it is."""

    instruction: Communication
    ends: frozenset[str]
    again: int | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        source = self.instruction.source
        return () if source is None else (source,)

    @property
    def makes(self) -> tuple[str, ...]:
        """The registers that are there after it."""
        return targets(self.instruction)

    @property
    def position(self) -> int:
        return self.instruction.position


@dataclass(frozen=True)
class MeetingAgain:
    """A communication that is done again in the backward pass; forward it is nothing."""

    instruction: Communication
    position: int
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    ends: frozenset[str] = frozenset()


Block = Segment | Meeting | MeetingAgain


def blocks_of(
    instructions: Iterable[Instruction],
    kept: frozenset[str],
    joined: frozenset[str] = frozenset(),
) -> tuple[Block, ...]:
    """Instructions as segments and what is between them. ``kept``: registers that are read after
    all of them; ``joined``: those that others add to as well, so that to move something into one
    is taken for communication. Loads are left out: they are done before."""
    instructions = tuple(instructions)
    again = {i.of.position: i.position for i in instructions if isinstance(i, Repeat)}
    grouped: list[list[Local] | Communication | Repeat] = []
    for instruction in instructions:
        if isinstance(instruction, Load):
            continue
        if not is_local(instruction) or not joined.isdisjoint(targets(instruction)):
            grouped.append(instruction)  # pyright: ignore[reportArgumentType]
        elif grouped and isinstance(grouped[-1], list):
            grouped[-1].append(instruction)  # pyright: ignore[reportArgumentType]
        else:
            grouped.append([instruction])  # pyright: ignore[reportArgumentType]
    blocks: list[Block] = []
    later = set(kept)
    for group in reversed(grouped):
        if isinstance(group, list):
            block = _segment(group, later)
        elif isinstance(group, Repeat):
            block = MeetingAgain(group.of, group.position)
        else:
            block = Meeting(group, frozenset(sources(group)) - later, again.get(group.position))
        later.update(block.reads)
        blocks.append(block)
    return tuple(reversed(blocks))


def _segment(given: Sequence[Local], later: set[str]) -> Segment:
    instructions = fused(given, later)
    made = {name for instruction in instructions for name in targets(instruction)}
    reads = dict.fromkeys(
        name for instruction in instructions for name in sources(instruction) if name not in made
    )
    results = [n for i in instructions for n in targets(i) if n in later]
    drops: list[tuple[str, ...]] = []
    needed = set(results)
    for instruction in reversed(instructions):
        touched = dict.fromkeys((*sources(instruction), *targets(instruction)))
        drops.append(tuple(name for name in touched if name not in needed))
        needed.update(touched)
    ends = frozenset(reads) - later
    return Segment(instructions, tuple(reads), tuple(results), tuple(reversed(drops)), ends)


class _Enter(Function):
    """The identity, whose backward pass hands the gradient to a sink and ends there."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, sink: Sink) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sink = sink
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sink(gradient)
        return None, None, None


def entering(value: Tensor, sink: Sink) -> Tensor:
    """A value from before a segment, within autograd's record of it."""
    return enter(value, torch.empty((), requires_grad=True), sink)


def enter(value: Tensor, anchor: Tensor, sink: Sink) -> Tensor:
    """The same, by way of a leaf of autograd's record that stands for the value."""
    entered = _Enter.apply(value, anchor, sink)
    assert isinstance(entered, Tensor)
    return entered


class Action(NamedTuple):
    """An instruction of a segment, ready to run."""

    compute: BlockFunction
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    drops: tuple[str, ...]
    """The registers that nothing more of the segment reads."""


def run_segment(
    results: Sequence[str], actions: Iterable[Action], local: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """The results from the registers read, which are used up."""
    for compute, reads, makes, drops in actions:
        made = compute([local[name] for name in reads])
        for name, value in zip(makes, made, strict=False):
            local[name] = value
        for name in drops:
            local.pop(name, None)
    return tuple([local[name] for name in results])
