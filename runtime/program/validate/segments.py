"""Split a rank's program into segments and the communications between them.

``runtime.execute.segment`` splits it in the same way. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
from runtime.program.validate.alike import Forms, Row


@dataclass(frozen=True)
class SegmentBlock:
    """A sequence of instructions that need no other rank. Operators without another instruction in
    between are joined to rows."""

    parts: tuple[Row | Local, ...]


@dataclass(eq=False, slots=True)
class MeetingBlock:
    """A communication and its backward pass. A local exchange is one, too, if its target is a
    register to which slices add."""

    instruction: Communication
    adjoint: Communication = field(init=False)

    def __post_init__(self) -> None:
        self.adjoint = self.instruction.adjoint


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """A communication that the backward pass repeats, before the backward pass of ``position``."""

    instruction: Communication
    position: int


Block = SegmentBlock | MeetingBlock | RepeatedBlock


def blocks_of(
    instructions: Iterable[Instruction],
    joined: frozenset[str] = frozenset(),
    forms: Forms | None = None,
) -> tuple[Block, ...]:
    """Split instructions into blocks. Loads are left out. ``joined``: the registers to which slices
    add. ``forms``: where the forms of rows are kept."""
    forms = Forms() if forms is None else forms
    blocks: list[Block] = []
    parts: list[Row | Local] = []
    runs: list[Run] = []

    def close(row: list[Run], segment: bool) -> None:
        if row:
            parts.append(forms.row(tuple(row)))
            row.clear()
        if segment and parts:
            blocks.append(SegmentBlock(tuple(parts)))
            parts.clear()

    for instruction in instructions:
        if type(instruction) is Run:
            runs.append(instruction)
        elif isinstance(instruction, Repeat):
            close(runs, segment=True)
            blocks.append(RepeatedBlock(instruction.of, instruction.position))
        elif not isinstance(instruction, Load):
            stays = is_local(instruction) and joined.isdisjoint(targets(instruction))
            close(runs, not stays)
            if stays:
                parts.append(instruction)  # pyright: ignore[reportArgumentType]
            else:
                blocks.append(MeetingBlock(instruction))  # pyright: ignore[reportArgumentType]
    close(runs, segment=True)
    return tuple(blocks)


def made_by(blocks: Iterable[Block]) -> set[str]:
    """The registers that blocks write."""
    made: set[str] = set()
    for part in _parts(blocks):
        made.update(part.form.made if isinstance(part, Row) else targets(part))
    return made


def first_readers(blocks: Iterable[Block], names: frozenset[str]) -> dict[str, int]:
    """The first block that reads each of some registers, by register. In the backward pass it is
    the last one to add to the register's gradient."""
    readers: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for part in _parts([block]):
            read = part.form.operands if isinstance(part, Row) else sources(part)
            for name in names.intersection(read):
                readers.setdefault(name, number)
    return readers


def _parts(blocks: Iterable[Block]) -> Iterator[Row | Local | Communication]:
    for block in blocks:
        if isinstance(block, MeetingBlock):
            yield block.instruction
        elif isinstance(block, SegmentBlock):
            yield from block.parts
