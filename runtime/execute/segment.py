"""Segments: the instructions between two communications, run and differentiated together.

A segment is one graph of autograd. Its inputs are registers from before, and its results are the
registers that are read after it. All other registers are dropped as soon as no instruction of the
segment reads them any more. Their tensors live on only if the backward pass needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from pcg.graph.graph import Leaf
from runtime.execute.fuse import fused, looked_up
from runtime.execute.kernels import BlockFunction
from runtime.program.program import (
    Alias,
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


def is_recomputed(instruction: Local) -> bool:
    """Whether the backward pass computes an instruction again."""
    return not isinstance(instruction, Alias) and instruction.recomputed


Sink = Callable[[Tensor], None]
"""Receives the gradient of a register."""


@dataclass(frozen=True)
class Segment:
    """A sequence of instructions of one rank that need no other rank."""

    instructions: tuple[Local, ...]
    reads: tuple[str, ...]
    """The registers from before the segment that it reads."""
    results: tuple[str, ...]
    """The registers that it writes and that are read after it."""
    drops: tuple[tuple[str, ...], ...]
    """For each instruction: the registers that no later instruction of the segment reads."""
    ends: frozenset[str]
    """The registers of ``reads`` that nothing reads after the segment."""

    @cached_property
    def has_late(self) -> bool:
        """Whether the gradient of any weight is computed late."""
        return any(isinstance(i, Run) and i.late is not None for i in self.instructions)

    @cached_property
    def recomputes(self) -> bool:
        """Whether the backward pass computes any instruction again."""
        return any(map(is_recomputed, self.instructions))

    @property
    def makes(self) -> tuple[str, ...]:
        """The registers that it leaves behind."""
        return self.results

    @property
    def position(self) -> int:
        """The position of its first instruction."""
        return self.instructions[0].position


@dataclass(frozen=True)
class Meeting:
    """A communication between segments. ``ends``: the source, if nothing reads it later.
    ``again``: if the communication is repeated, the position before whose backward pass that is."""

    instruction: Communication
    ends: frozenset[str]
    again: int | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        source = self.instruction.source
        return () if source is None else (source,)

    @property
    def makes(self) -> tuple[str, ...]:
        """The registers that it leaves behind."""
        return targets(self.instruction)

    @property
    def position(self) -> int:
        return self.instruction.position


@dataclass(frozen=True)
class RepeatedMeeting:
    """A communication that the backward pass repeats. The forward pass skips it."""

    instruction: Communication
    position: int
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    ends: frozenset[str] = frozenset()


Block = Segment | Meeting | RepeatedMeeting


def blocks_of(
    instructions: Iterable[Instruction],
    kept: frozenset[str],
    joined: frozenset[str] = frozenset(),
) -> tuple[Block, ...]:
    """Split instructions into segments and the communications between them.

    ``kept``: the registers that are read after all instructions. ``joined``: registers to which
    several slices add; a local exchange into one counts as communication. Loads are left out,
    because they run before.
    """
    instructions = tuple(instructions)
    inputs = {i.target: i.leaf for i in instructions if isinstance(i, Load)}
    again = {i.of.position: i.position for i in instructions if isinstance(i, Repeat)}
    groups: list[list[Local] | Communication | Repeat] = []
    for instruction in instructions:
        if isinstance(instruction, Load):
            continue
        if not is_local(instruction) or not joined.isdisjoint(targets(instruction)):
            groups.append(instruction)  # pyright: ignore[reportArgumentType]
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(instruction)  # pyright: ignore[reportArgumentType]
        else:
            groups.append([instruction])  # pyright: ignore[reportArgumentType]
    blocks: list[Block] = []
    later = set(kept)
    for group in reversed(groups):
        if isinstance(group, list):
            block = _segment(group, later, inputs)
        elif isinstance(group, Repeat):
            block = RepeatedMeeting(group.of, group.position)
        else:
            block = Meeting(group, frozenset(sources(group)) - later, again.get(group.position))
        later.update(block.reads)
        blocks.append(block)
    return tuple(reversed(blocks))


def _segment(group: Sequence[Local], later: set[str], inputs: Mapping[str, Leaf]) -> Segment:
    """A segment of some instructions. ``later``: the registers that are read after it. ``inputs``:
    the inputs of the step, by register."""
    instructions = fused([looked_up(i, inputs) for i in group], later)
    written = {name for instruction in instructions for name in targets(instruction)}
    reads = dict.fromkeys(
        name for instruction in instructions for name in sources(instruction) if name not in written
    )
    results = [n for i in instructions for n in targets(i) if n in later]
    drops: list[tuple[str, ...]] = []
    needed = set(results)
    for instruction in reversed(instructions):
        registers = dict.fromkeys((*sources(instruction), *targets(instruction)))
        drops.append(tuple(name for name in registers if name not in needed))
        needed.update(registers)
    ends = frozenset(reads) - later
    return Segment(instructions, tuple(reads), tuple(results), tuple(reversed(drops)), ends)


class _Enter(Function):
    """The identity. Its backward pass passes the gradient to a sink and ends there."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, sink: Sink) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sink = sink
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sink(gradient)
        return None, None, None


def entering(value: Tensor, sink: Sink) -> Tensor:
    """A value from before a segment, as an input of the segment's graph of autograd. ``sink`` gets
    its gradient."""
    return enter(value, torch.empty((), requires_grad=True), sink)


def enter(value: Tensor, anchor: Tensor, sink: Sink) -> Tensor:
    """As ``entering``, with a given leaf of autograd. A backward pass that asks for the gradient of
    ``anchor`` calls ``sink``."""
    entered = _Enter.apply(value, anchor, sink)
    assert isinstance(entered, Tensor)
    return entered


class Action(NamedTuple):
    """An instruction of a segment, ready to run."""

    compute: BlockFunction
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    drops: tuple[str, ...]
    """The registers that no later instruction of the segment reads."""


def run_segment(
    results: Sequence[str], actions: Iterable[Action], local: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """Run a segment. ``local``: the registers that it reads; they are removed from it. Return the
    values of the registers ``results``."""
    for compute, reads, makes, drops in actions:
        values = compute([local[name] for name in reads])
        for name, value in zip(makes, values, strict=False):
            local[name] = value
        for name in drops:
            local.pop(name, None)
    return tuple([local[name] for name in results])
