"""Mutants of the programs of all ranks: one mistake each, in one place, on one or several ranks.

Each mutant is another program, never the same program in other words: the change is in a tensor or
message that some instruction reads or waits for. The place of the mutation ensures that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from support.plans.mutants_of_all import Mutant, Programs, of_all, turned

from runtime.program.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    Instruction,
    Load,
    PieceRegion,
    Program,
    ReduceScatter,
    Repeat,
    Run,
    is_local,
    sources,
    targets,
)

Change = Callable[[Instruction], Iterator[tuple[str, list[Instruction]]]]


def mutants(programs: Programs) -> Iterator[Mutant]:
    """Every mutant, always in the same order."""
    for program in programs:
        for mutant in (*_of_instructions(program), *_of_orders(program), *_of_program(program)):
            kind, at, made = mutant
            altered = tuple(made if p.rank == program.rank else p for p in programs)
            yield Mutant(kind, f"rank {program.rank}: {at}", altered)
    yield from of_all(programs)


def lists(program: Program) -> Iterator[tuple[tuple[Instruction, ...], Callable[..., Program]]]:
    """The lists of instructions of a program, each with a function that replaces it."""
    yield program.instructions, lambda made: replace(program, instructions=made)
    pipeline = program.pipeline
    if pipeline is None:
        return
    for number, part in enumerate(pipeline.slices):

        def sliced(made: tuple[Instruction, ...], number: int = number) -> Program:
            slices = (*pipeline.slices[:number], made, *pipeline.slices[number + 1 :])
            return replace(program, pipeline=replace(pipeline, slices=slices))

        yield part, sliced
    yield pipeline.tail, lambda made: replace(program, pipeline=replace(pipeline, tail=made))


def _of_instructions(program: Program) -> Iterator[tuple[str, str, Program]]:
    for instructions, put in lists(program):
        read = {name for i in instructions for name in sources(i)}
        for number, instruction in enumerate(instructions):
            for kind, made in _changes(program, instruction, read):
                changed = (*instructions[:number], *made, *instructions[number + 1 :])
                yield kind, str(instruction)[:80], put(changed)


def _changes(
    program: Program, instruction: Instruction, read: set[str]
) -> Iterator[tuple[str, list[Instruction]]]:
    if isinstance(instruction, AllReduce | AllGather | ReduceScatter | AllToAll):
        yield "dropped collective", []
        yield from _other_groups(program, instruction)
    if isinstance(instruction, AllReduce):
        yield "other kind", [_gathered(program, instruction)]
    if isinstance(instruction, AllGather):
        yield "swapped slices", [replace(instruction, places=turned(instruction.places))]
        yield "wrong transpose", [_as(instruction, BackGather)]
    if isinstance(instruction, ReduceScatter):
        yield "swapped slices", [replace(instruction, places=turned(instruction.places))]
        own, places = _whole(program, instruction.target), instruction.places
        group, ends = instruction.group, (instruction.source, instruction.target)
        receives = (own,) * len(group)
        yield "sum left out", [AllToAll(*ends, group, places, receives, instruction.position)]
    if isinstance(instruction, AllToAll):
        yield "swapped slices", [replace(instruction, sends=turned(instruction.sends))]
        yield "swapped slices", [replace(instruction, receives=turned(instruction.receives))]
        yield "wrong transpose", [_as(instruction, BackSwap)]
    if isinstance(instruction, Exchange):
        yield from _messages(instruction)
    if isinstance(instruction, Repeat):
        yield "dropped collective", []
    if isinstance(instruction, Load):
        yield from _loads(instruction)
    if isinstance(instruction, Run):
        yield from _runs(program, instruction, read)


@dataclass(frozen=True)
class BackGather(AllGather):
    """A gather whose backward pass takes the parts in another order."""

    @property
    def adjoint(self) -> ReduceScatter:
        return replace(super().adjoint, places=turned(self.places))


@dataclass(frozen=True)
class BackSwap(AllToAll):
    """An exchange whose backward pass takes the parts in another order."""

    @property
    def adjoint(self) -> AllToAll:
        return replace(super().adjoint, receives=turned(self.sends))


@dataclass(frozen=True)
class BackMessages(Exchange):
    """Messages whose backward pass takes a saved tensor for another."""

    @property
    def adjoint(self) -> Exchange:
        return replace(super().adjoint, sends=self.receives[1:])


def _as(instruction: Any, other: Any) -> Any:
    return other(**{name: getattr(instruction, name) for name in vars(instruction)})


def _other_groups(program: Program, own: Any) -> Iterator[tuple[str, list[Instruction]]]:
    everyone = set(range(program.ranks))
    others = sorted(everyone - set(own.group))
    if others:
        gone = next(member for member in own.group if member != program.rank)
        swapped = tuple(sorted({*own.group, others[0]} - {gone}))
        yield "swapped member", [replace(own, group=swapped)]
    turned = own.group[::-1]
    yield "group in another order", [replace(own, group=turned)]
    if len(own.group) > 2:
        less = tuple(m for m in own.group if m != next(x for x in own.group if x != program.rank))
        yield "missing member", [replace(own, group=less)]
    known = [g for g in program.groups if g != own.group and len(g) == len(own.group)]
    for group in known[:1]:
        yield "another group", [replace(own, group=group)]


def _gathered(program: Program, own: AllReduce) -> AllGather:
    whole = _whole(program, own.target)
    return AllGather(own.source, own.target, own.group, (whole,) * len(own.group), own.position)


def _whole(program: Program, register: str) -> Any:
    return tuple((0, size) for size in program.shapes[register])


def _messages(own: Exchange) -> Iterator[tuple[str, list[Instruction]]]:
    for number, part in enumerate(own.sends):
        rest = own.sends[:number], own.sends[number + 1 :]
        yield "missing send", [replace(own, sends=(*rest[0], *rest[1]))]
        yield "doubled send", [replace(own, sends=(*rest[0], part, part, *rest[1]))]
        yield (
            "other peer",
            [
                replace(
                    own, sends=(*rest[0], PieceRegion(own_peer(own, part), part.region), *rest[1])
                )
            ],
        )
        for region in _moved(part.region):
            yield (
                "wrong offset",
                [replace(own, sends=(*rest[0], PieceRegion(part.peer, region), *rest[1]))],
            )
    for number, part in enumerate(own.receives):
        rest = own.receives[:number], own.receives[number + 1 :]
        yield "missing receive", [replace(own, receives=(*rest[0], *rest[1]))]
        yield "doubled sum", [replace(own, receives=(*rest[0], part, part, *rest[1]))]
        for region in _moved(part.region):
            made = (*rest[0], PieceRegion(part.peer, region), *rest[1])
            yield "wrong offset", [replace(own, receives=made)]
    for number, kept in enumerate(own.kept):
        rest = own.kept[:number], own.kept[number + 1 :]
        yield "missing piece", [replace(own, kept=(*rest[0], *rest[1]))]
        yield "doubled sum", [replace(own, kept=(*rest[0], kept, kept, *rest[1]))]
        for region in _moved(kept.source):
            yield (
                "wrong offset",
                [replace(own, kept=(*rest[0], replace(kept, source=region), *rest[1]))],
            )
    if own.sends or own.receives:
        yield "dropped messages", []
    if own.receives:
        yield "wrong transpose", [_as(own, BackMessages)]
    if own.active and own.target is None and own.sends:
        yield "gradient left out", [replace(own, active=False)]


def own_peer(own: Exchange, part: PieceRegion) -> int:
    """A rank that a part is not sent to."""
    others = {p.peer for p in (*own.sends, *own.receives)} - {part.peer}
    return min(others, default=part.peer + 1)


def _moved(region: Any) -> Iterator[Any]:
    """A region, moved by one element in the first dimension, and shorter if it is long enough."""
    if not region:
        return
    (start, stop), *rest = region
    yield ((start + 1, stop + 1), *rest)
    if stop - start > 1:
        yield ((start, stop - 1), *rest)


def _loads(own: Load) -> Iterator[tuple[str, list[Instruction]]]:
    for region in _moved(own.region):
        yield "wrong offset", [replace(own, region=region)]


def _runs(program: Program, own: Run, read: set[str]) -> Iterator[tuple[str, list[Instruction]]]:
    if read & set(own.results):
        yield "dropped operator", []
    others = [n for n in program.shapes if n not in (*own.operands, *own.results)]
    same = [n for n in others if program.shapes[n] == program.shapes[own.operands[0]]]
    for name in same[:1]:
        yield "other operand", [replace(own, operands=(name, *own.operands[1:]))]
    for index, (start, stop) in list(own.task.ranges.items())[:1]:
        moved = {**own.task.ranges, index: (start + 1, stop + 1)}
        yield "wrong offset of a task", [replace(own, task=replace(own.task, ranges=moved))]
        wider = {**own.task.ranges, index: (start, stop + (stop - start))}
        yield "wrong block of a task", [replace(own, task=replace(own.task, ranges=wider))]
    for number, starts in enumerate(own.starts):
        if starts:
            made = (starts[0] + 1, *starts[1:])
            placed = (*own.starts[:number], made, *own.starts[number + 1 :])
            yield "wrong offset of an operand", [replace(own, starts=placed)]
            break
    for name, size in list(own.task.sizes.items())[:1]:
        sizes = {**own.task.sizes, name: size * 2}
        yield "wrong size", [replace(own, task=replace(own.task, sizes=sizes))]
    yield "recomputed or not", [replace(own, recomputed=not own.recomputed)]


def _of_orders(program: Program) -> Iterator[tuple[str, str, Program]]:
    """Two communications of one group, or of the same kinds with the same peers, in another order.
    Each then meets the other end of the other one."""
    for instructions, put in lists(program):
        at = [n for n, i in enumerate(instructions) if _lane(i) is not None]
        for first, second in pairwise(at):
            one, other = instructions[first], instructions[second]
            if _lane(one) != _lane(other):
                continue
            made = list(instructions)
            made[first], made[second] = other, one
            yield "other order", str(one)[:80], put(tuple(made))


def _lane(instruction: Instruction) -> object:
    """The lane of a communication: equal for those that meet their other ends in the order of
    posting."""
    if isinstance(instruction, Exchange):
        ends = [
            {part.peer for part in parts} for parts in (instruction.sends, instruction.receives)
        ]
        return None if is_local(instruction) else tuple(map(frozenset, ends))
    return getattr(instruction, "group", None)


def _of_program(program: Program) -> Iterator[tuple[str, str, Program]]:
    for number, weight in enumerate(program.weights):
        rest = program.weights[:number], program.weights[number + 1 :]
        if len(weight.group) > 1:
            alone = replace(weight, group=(program.rank,))
            made = replace(program, weights=(*rest[0], alone, *rest[1]))
            yield "gradient exchange left out", str(weight), made
        others = sorted(set(range(program.ranks)) - set(weight.group))
        for other in others[:1]:
            more = replace(weight, group=tuple(sorted((*weight.group, other))))
            made = replace(program, weights=(*rest[0], more, *rest[1]))
            yield "gradient of others added", str(weight), made
        made = replace(program, active=program.active - {weight.register})
        if weight.register in program.active:
            yield "gradient left out", str(weight), made
        yield "weight forgotten", str(weight), replace(program, weights=(*rest[0], *rest[1]))
    known = {n for listed, _ in lists(program) for i in listed for n in targets(i)}
    for name in sorted(program.shapes):
        if program.shapes[name] and name in known:
            shape = (program.shapes[name][0] + 1, *program.shapes[name][1:])
            shapes = {**program.shapes, name: shape}
            yield "wrong shape", name, replace(program, shapes=shapes)
    if program.loss is not None:
        yield "loss left out", program.loss, replace(program, loss=None)
    else:
        held = [n for n in program.outputs if program.shapes[n] == ()]
        for name in held[:1]:
            yield "loss counted twice", name, replace(program, loss=name)
    if len(program.groups) > 1:
        yield "groups in another order", "", replace(program, groups=program.groups[::-1])
    if program.groups:
        yield "group not created", "", replace(program, groups=program.groups[1:])
    yield from _of_pipeline(program)


def _of_pipeline(program: Program) -> Iterator[tuple[str, str, Program]]:
    own = program.pipeline
    if own is None:
        return

    def made(**changes: Any) -> Program:
        return replace(program, pipeline=replace(own, **changes))

    if own.slices != own.slices[::-1]:  # a rank may take no part in them
        yield "slices swapped", "", made(slices=own.slices[::-1])
    yield "slice left out", "", made(turns=own.turns[:-1])
    yield "slice back twice", "", made(turns=(*own.turns, own.turns[-1]))
    backward = [t for t in own.turns if not t[0]]
    forward = [t for t in own.turns if t[0]]
    if own.turns != (*backward, *forward):
        yield "back before forward", "", made(turns=(*backward, *forward))
    yield "delayed or not", "", made(is_delayed=not own.is_delayed)
    yield "other stages", "", made(stages=own.stages + 1)
    yield "runs on or not", "", made(overlaps_batches=not own.overlaps_batches)
    if own.joined:
        yield "not joined", own.joined[0], made(joined=own.joined[1:])
