"""A rank's program in the blocks in which it is run: stretches that need no other rank, and the
communication between them, as ``runtime.stretch`` has it, which a test compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from runtime.program import Alias, Communication, Exchange, Instruction, Load, Run, sources, targets
from runtime.validate.alike import Forms, Row

Local = Run | Alias | Exchange


@dataclass(frozen=True)
class Stretch:
    """Instructions in a row that need no other rank, those of them that are operators together."""

    parts: tuple[Row | Local, ...]


@dataclass(eq=False)
class Meeting:
    """A communication, or what is moved into a register that slices add to, and its way back."""

    instruction: Communication
    adjoint: Communication = field(init=False)

    def __post_init__(self) -> None:
        self.adjoint = self.instruction.adjoint


Block = Stretch | Meeting


def blocks_of(
    instructions: Iterable[Instruction],
    joined: frozenset[str] = frozenset(),
    forms: Forms | None = None,
) -> tuple[Block, ...]:
    """Instructions as blocks; loads are done before. ``joined``: what slices add to; ``forms``:
    of operators that are known."""
    forms = Forms() if forms is None else forms
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
            found.append(_stretch(pending, forms))
            pending.clear()
        found.append(Meeting(instruction))  # pyright: ignore[reportArgumentType]
    if pending:
        found.append(_stretch(pending, forms))
    return tuple(found)


def _stretch(instructions: list[Local], forms: Forms) -> Stretch:
    parts: list[Row | Local] = []
    for is_run, some in groupby(instructions, _is_run):
        if is_run:
            parts.append(forms.row(tuple(some)))  # pyright: ignore[reportArgumentType]
        else:
            parts += some
    return Stretch(tuple(parts))


def _is_run(instruction: Local) -> bool:
    return type(instruction) is Run


def made_by(blocks: Iterable[Block]) -> set[str]:
    """The registers that blocks make."""
    found: set[str] = set()
    for part in _parts(blocks):
        found.update(part.form.made if isinstance(part, Row) else targets(part))
    return found


def first_readers(blocks: Iterable[Block], names: frozenset[str]) -> dict[str, int]:
    """By register, of some, the first block that reads it: the last one to add to its gradient."""
    found: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for part in _parts([block]):
            read = part.form.touched if isinstance(part, Row) else sources(part)
            for name in names.intersection(read):
                found.setdefault(name, number)
    return found


def _parts(blocks: Iterable[Block]) -> Iterator[Row | Local | Communication]:
    for block in blocks:
        if isinstance(block, Meeting):
            yield block.instruction
        else:
            yield from block.parts
