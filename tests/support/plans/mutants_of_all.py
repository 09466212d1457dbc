"""Mutants of programs with the same mistake on all ranks, so that the ranks agree with each
other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.program.program import AllGather, AllReduce, AllToAll, Program, ReduceScatter, Run

Programs = tuple[Program, ...]


@dataclass(frozen=True)
class Mutant:
    """A mutant. ``kind``: the mistake. ``at``: its place."""

    kind: str
    at: str
    programs: Programs


def turned(places: Sequence[Any]) -> tuple[Any, ...]:
    return (*places[1:], places[0])


def of_all(programs: Programs) -> Iterator[Mutant]:
    """All mutants with the same mistake on all ranks."""
    for number, instruction in enumerate(programs[0].instructions):
        same = [p.instructions[number : number + 1] for p in programs]
        if not all(i and type(i[0]) is type(instruction) for i in same):
            continue
        at = str(instruction)[:80]
        if isinstance(instruction, AllReduce | AllGather | ReduceScatter | AllToAll):
            yield Mutant("dropped collective", f"all ranks: {at}", _without(programs, number))
        if isinstance(instruction, AllReduce):
            yield Mutant("doubled sum", f"all ranks: {at}", _again(programs, number))
        if isinstance(instruction, AllGather | ReduceScatter):
            yield Mutant("swapped slices", f"all ranks: {at}", _all_turned(programs, number))
        if isinstance(instruction, Run) and "factor" in instruction.call.values:
            yield Mutant("wrong scale", f"all ranks: {at}", _scaled(programs, number))
    for register in sorted({w.register for p in programs for w in p.weights if len(w.group) > 1}):
        yield Mutant(
            "gradient exchange left out", f"all ranks: {register}", _alone(programs, register)
        )
    trained = sorted({w.register for p in programs for w in p.trained})
    for register in trained:
        made = tuple(replace(p, active=p.active - {register}) for p in programs)
        yield Mutant("gradient left out", f"all ranks: {register}", made)
    loss = next(p.loss for p in programs if p.loss is not None)
    if sum(p.loss is not None for p in programs) < sum(loss in p.shapes for p in programs):
        made = tuple(replace(p, loss=loss if loss in p.shapes else None) for p in programs)
        yield Mutant("loss counted twice", "all ranks", made)


def _without(programs: Programs, number: int) -> Programs:
    return tuple(
        replace(p, instructions=(*p.instructions[:number], *p.instructions[number + 1 :]))
        for p in programs
    )


def _again(programs: Programs, number: int) -> Programs:
    """The sum is summed once more."""
    made: list[Program] = []
    for program in programs:
        own = program.instructions[number]
        assert isinstance(own, AllReduce)
        twice = replace(own, target=f"{own.target}.once"), replace(own, source=f"{own.target}.once")
        shapes = {**program.shapes, f"{own.target}.once": program.shapes[own.target]}
        rest = program.instructions[:number], program.instructions[number + 1 :]
        changed = replace(program, instructions=(*rest[0], *twice, *rest[1]), shapes=shapes)
        made.append(replace(changed, active=changed.active | {f"{own.target}.once"}))
    return tuple(made)


def _all_turned(programs: Programs, number: int) -> Programs:
    return _each(programs, number, lambda own: replace(own, places=turned(own.places)))


def _scaled(programs: Programs, number: int) -> Programs:
    def scaled(own: Any) -> Any:
        values = {**own.call.values, "factor": own.call.values["factor"] * 2}
        task = replace(own.task, attributes=values)
        return replace(own, call=own.call.operator(**values), task=task)

    return _each(programs, number, scaled)


def _each(programs: Programs, number: int, change: Callable[[Any], Any]) -> Programs:
    return tuple(
        replace(
            p,
            instructions=(
                *p.instructions[:number],
                change(p.instructions[number]),
                *p.instructions[number + 1 :],
            ),
        )
        for p in programs
    )


def _alone(programs: Programs, register: str) -> Programs:
    return tuple(
        replace(
            p,
            weights=tuple(
                replace(w, group=(p.rank,)) if w.register == register else w for w in p.weights
            ),
        )
        for p in programs
    )
