"""Check a row of operators once for all ranks on which it is the same but for its blocks.

Problem. Hundreds of ranks run the same thousands of operators on blocks of their own. What an
instruction says is looked up for each of them in ``local``; here only what differs is.

Method. A *row* is operators that follow each other, and its *form* all that they say but for the
task: calls, registers, whether recomputed. Which result each operand is follows from the form, and
which operators of the plan these are from the form and the tensors that the row reads: that is
found out by ``local`` for the first rank, and kept as an ``OperatorMatch``. For another rank with
the same form and the same tensors, the row is right where each operator of the match has a task on
this device, the places that these ask for are those that the row reads and makes, the tasks are
those of the program, and the shapes those of the registers: the same conditions, all of them, as
lists.

Nothing is refused here: a row that fits no match is looked at instruction by instruction.

Complexity: a few steps for each instruction of each rank, inside of built-in functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from pcg.types.operator import Call
from runtime.program.program import Run
from runtime.program.validate.content import Place, PlanTensor
from runtime.program.validate.meaning import Operation, PlanMeaning, ViewedSignature
from runtime.program.validate.theorem import Expected

READINGS = 16
"""How many readings of a form are kept, and forms that begin and end alike."""

_said = attrgetter("call", "operands", "results", "recomputed")
_extent: Callable[[Place], tuple[int, ...]] = attrgetter("extent")


@dataclass(frozen=True)
class Rows:
    """What the operators of a reading ask for, by rank. ``fits``: whether each of them has a task
    there, and reads what others of the row make as these make it."""

    fits: Sequence[bool]
    tasks: Sequence[tuple[Any, ...]]
    """What is expected of each operator."""
    reads: Sequence[tuple[Any, ...]]
    """The places of what was made before."""
    made: Sequence[tuple[Any, ...]]
    """The places of all results."""


def _rows(works: Sequence[ViewedSignature], form: Form, part: int, ranks: int) -> Rows | None:
    """A column for each operator and register, turned; None where they are not those of a form."""
    columns = [work.columns(part, ranks) for work in works]
    made = [column for own in columns for column in own.results]
    asked = [column for own in columns for column in own.operands]
    if len(made) != len(form.results) or len(asked) != len(form.which):
        return None
    tasks = list(zip(*[own.tasks for own in columns], strict=True))
    fits = [None not in own for own in tasks]
    reads: dict[int, list[Place | None]] = {}
    for column, number in zip(asked, form.which, strict=True):
        there = made[number] if number >= 0 else reads.setdefault(~number, column)
        if there != column:
            alike = zip(there, column, strict=True)
            fits = [fit and a is b for fit, (a, b) in zip(fits, alike, strict=True)]
    own = [reads[number] for number in range(len(form.reads))]
    nothing: list[tuple[Any, ...]] = [()] * ranks
    return Rows(
        fits,
        tasks,
        list(zip(*own, strict=True)) if own else nothing,
        list(zip(*made, strict=True)) if made else nothing,
    )


@dataclass(eq=False)
class OperatorMatch:
    """Which operators of the plan those of a form are, where what it reads is of these tensors."""

    reads: list[PlanTensor]
    operations: Sequence[Operation]
    made: list[PlanTensor]
    """The tensors of all results."""
    _rows: dict[tuple[int, int], Rows | None] = field(
        default_factory=dict[tuple[int, int], "Rows | None"]
    )

    def rows(self, form: Form, part: int, ranks: int) -> Rows | None:
        """What it takes on so many ranks, with a slice in time."""
        key = part, ranks
        if key not in self._rows:
            self._rows[key] = _rows([own.work for own in self.operations], form, part, ranks)
        return self._rows[key]


class Form:
    """What a row says on every rank that has it."""

    def __init__(self, said: list[object], row: Sequence[Run]) -> None:
        self.said = said
        self.calls = [run.call for run in row]
        self.results = tuple(chain.from_iterable(run.results for run in row))
        self.made = frozenset(self.results)
        self.is_regular = len(self.made) == len(self.results)
        """Whether no register is made twice."""
        self.readings: list[OperatorMatch] = []
        read: dict[str, int] = {}
        places: dict[str, int] = {}
        which: list[int] = []
        for run in row:
            for name in run.operands:
                which.append(places[name] if name in places else ~read.setdefault(name, len(read)))
            for name in run.results:
                places[name] = len(places)
        self.reads = tuple(read)
        self.touched = frozenset(name for run in row for name in run.operands)
        """All that it reads, of its own results too."""
        self.which = tuple(which)
        """By operand of all operators, which result it is, or which of what is read, as ~number."""
        self._operators = tuple((run.operands, run.results) for run in row)
        self._needs: dict[tuple[bool, ...], tuple[frozenset[str], tuple[str, ...]]] = {}

    def needs(self, needed: set[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """What else has a gradient where some registers have one: those that the row makes, and
        those that it reads, from the last one that is read."""
        pattern = tuple(map(needed.__contains__, self.results))
        known = self._needs.get(pattern)
        if known is None:
            own = {name for name, has in zip(self.results, pattern, strict=True) if has}
            names: dict[str, None] = {}
            for operands, results in reversed(self._operators):
                if not own.isdisjoint(results):
                    own.update(operands)
                    names.update(dict.fromkeys(operands))
            others = tuple(name for name in names if name not in self.made)
            known = self._needs[pattern] = self.made.intersection(names), others
        return known

    def learn(
        self, meaning: PlanMeaning, reads: Sequence[PlanTensor], made: Sequence[PlanTensor]
    ) -> None:
        """Keep what a rank was found to do: of the tensors that the row reads it has made all
        others."""
        if len(self.readings) >= READINGS:
            return
        given = (made[number] if number >= 0 else reads[~number] for number in self.which)
        results, operations = 0, list[Operation]()
        for call, (operands, names) in zip(self.calls, self._operators, strict=True):
            called = meaning.called(call)
            own = list(made[results : results + len(names)])
            results += len(names)
            known = called.operations.get(tuple([next(given) for _ in operands]), [])
            if called.also or called.only or len(known) != 1 or list(known[0].results) != own:
                return
            operations.append(known[0])
        self.readings.append(OperatorMatch(list(reads), operations, list(made)))


@dataclass(eq=False, slots=True)
class Row:
    """Operators in a row."""

    runs: tuple[Run, ...]
    form: Form


class Forms:
    """The forms of all ranks."""

    def __init__(self) -> None:
        self._known: dict[object, list[Form]] = {}

    def row(self, runs: tuple[Run, ...]) -> Row:
        return Row(runs, self._of(runs))

    def _of(self, row: Sequence[Run]) -> Form:
        said: list[object] = list(map(_said, row))
        alike = self._known.setdefault((len(row), row[0].results, row[-1].results), [])
        for form in alike:
            if form.said == said:
                return form
        form = Form(said, row)
        if len(alike) < READINGS:
            alike.append(form)
        return form


def reading_of(
    row: Row,
    tensors: Sequence[PlanTensor | None],
    places: Sequence[Place | None],
    device: tuple[int, int, int],
    shapes: Callable[[str], object],
) -> tuple[OperatorMatch, Sequence[Place]] | None:
    """What a row makes, and where, of what it reads: tensors and places of these. None where it is
    right in no known reading. ``device``: which, of how many, and with which slice in time."""
    form, (rank, ranks, part) = row.form, device
    for reading in form.readings:
        if reading.reads != tensors:
            continue
        rows = reading.rows(form, part, ranks)
        if rows is None or not rows.fits[rank] or rows.reads[rank] != tuple(places):
            continue
        made = rows.made[rank]
        if tuple(map(shapes, form.results)) != tuple(map(_extent, made)):
            continue
        if _are(row.runs, rows.tasks[rank], form.calls):
            return reading, made
    return None


def made_by_all(
    rows: Sequence[Row],
    tensors: Sequence[PlanTensor],
    places: Sequence[Sequence[Place]],
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
) -> tuple[Sequence[PlanTensor], Sequence[Sequence[Place]]] | None:
    """What all ranks make of a row that they have in one form: the tensors, and a column of places
    for each. ``places``: a column for each register that is read; ``shapes``: each rank's. None
    where some rank's row is right in no known reading."""
    form = rows[0].form
    given = list(zip(*places, strict=True)) if places else [()] * len(rows)
    for reading in form.readings:
        known = reading.rows(form, 0, len(rows)) if reading.reads == tensors else None
        if known is None or not all(known.fits) or known.reads != given:
            continue
        made = list(zip(*known.made, strict=True))
        lie = (
            [own.get(name) for own in shapes] == list(map(_extent, column))
            for name, column in zip(form.results, made, strict=True)
        )
        if all(lie) and all(
            _are(row.runs, tasks, form.calls) for row, tasks in zip(rows, known.tasks, strict=True)
        ):
            return reading.made, made
    return None


def _are(row: Sequence[Run], tasks: Sequence[Expected], calls: Sequence[Call]) -> bool:
    """Whether operators have the tasks that are expected."""
    for run, expected, call in zip(row, tasks, calls, strict=True):
        if run.task is expected.task and run.starts is expected.task_starts:
            continue  # was right before
        if expected.task_problem(run.task, run.starts, call.values) is not None:
            return False
    return True
