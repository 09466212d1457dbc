"""A rank's program in the blocks in which it is run: stretches that need no other rank, and the
communication between them, as ``runtime.stretch`` has it, which a test compares."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from runtime.program import Alias, Communication, Exchange, Instruction, Load, Run, sources
from runtime.validate.alike import Row

Local = Run | Alias | Exchange


@dataclass(frozen=True)
class Stretch:
    """Instructions in a row that need no other rank. ``parts``: those of them that are operators
    together."""

    instructions: tuple[Local, ...]
    parts: tuple[Row | Local, ...]


@dataclass(frozen=True)
class Meeting:
    """A communication, or what is moved into a register that slices add to."""

    instruction: Communication

    @cached_property
    def adjoint(self) -> Communication:
        """Its way back."""
        return self.instruction.adjoint


Block = Stretch | Meeting


def blocks_of(
    instructions: Iterable[Instruction], joined: frozenset[str] = frozenset()
) -> tuple[Block, ...]:
    """Instructions as blocks; loads are done before. ``joined``: what slices add to."""
    found: list[Block] = []
    pending: list[Local] = []
    for instruction in instructions:
        if type(instruction) is Run:
            pending.append(instruction)
            continue
        if isinstance(instruction, Load):
            continue
        is_local = isinstance(instruction, Run | Alias) or (
            isinstance(instruction, Exchange)
            and instruction.is_local
            and instruction.target not in joined
        )
        if is_local:
            pending.append(instruction)  # pyright: ignore[reportArgumentType]
            continue
        if pending:
            found.append(_stretch(pending))
            pending.clear()
        found.append(Meeting(instruction))  # pyright: ignore[reportArgumentType]
    if pending:
        found.append(_stretch(pending))
    return tuple(found)


def _stretch(instructions: Iterable[Local]) -> Stretch:
    parts: list[Row | Local] = []
    for is_run, some in groupby(instructions, _is_run):
        if is_run:
            parts.append(Row(tuple(some)))  # pyright: ignore[reportArgumentType]
        else:
            parts += some
    return Stretch(tuple(instructions), tuple(parts))


def _is_run(instruction: Local) -> bool:
    return type(instruction) is Run


def first_readers(blocks: Iterable[Block], names: Collection[str]) -> dict[str, int]:
    """By register, of some, the first block that reads it: the last one to add to its gradient."""
    found: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for instruction in (
            block.instructions if isinstance(block, Stretch) else [block.instruction]
        ):
            for name in sources(instruction):
                if name in names:
                    found.setdefault(name, number)
    return found
