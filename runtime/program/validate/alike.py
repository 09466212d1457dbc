"""Check a row of operators once for all ranks on which only its blocks differ.

Problem. Hundreds of ranks run the same thousands of operators on blocks of their own. ``local``
looks up each instruction of each rank. This module checks only the parts that differ.

Method. A *row* is a sequence of operators without communication in between. Its *form* is all of
its instructions except the tasks: calls, registers, and whether results are recomputed. The form
tells which operand is the result of which operator. The form and the tensors that the row reads
tell which operators of the plan these are. ``local`` finds them for the first rank, and this module
keeps them as an ``OperatorMatch``. On another rank with the same form and tensors, the row is right
if each matched operator has a task on this device, its tasks read and write the places that the
registers hold, and tasks and shapes are those of the program. These are the conditions of
``local``, compared as lists.

This module refuses nothing. A row without a match is checked instruction by instruction.

Complexity. A few operations per instruction and rank, inside built-in functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from pcg.readings.differentiated import differentiated_by
from pcg.types.operator import Call
from runtime.program.program import Run
from runtime.program.validate.content import Place, PlanTensor
from runtime.program.validate.meaning import Operation, PlanMeaning, ViewedSignature
from runtime.program.validate.theorem import Expected

MATCHES = 16
"""The largest number of matches of a form, and of forms with the same first and last results."""

_fields_of_form = attrgetter("call", "operands", "results", "recomputed")
_extent: Callable[[Place], tuple[int, ...]] = attrgetter("extent")


@dataclass(frozen=True)
class ExpectedRows:
    """The tasks and places that the operators of a match require, by rank."""

    fits: Sequence[bool]
    """Whether each operator has a task on the rank, and operators of the row read the places that
    others of the row write."""
    tasks: Sequence[tuple[Any, ...]]
    """The expected task of each operator."""
    reads: Sequence[tuple[Any, ...]]
    """The places of the registers that the row reads."""
    made: Sequence[tuple[Any, ...]]
    """The places of all results."""


def _expected_rows(
    works: Sequence[ViewedSignature], form: Form, part: int, ranks: int
) -> ExpectedRows | None:
    """The expectations of a row of operators on all ranks. None if their numbers of operands and
    results are not those of the form."""
    columns = [work.columns(part, ranks) for work in works]
    results = [column for of_work in columns for column in of_work.results]
    operands = [column for of_work in columns for column in of_work.operands]
    if len(results) != len(form.results) or len(operands) != len(form.origins):
        return None
    tasks = list(zip(*[of_work.tasks for of_work in columns], strict=True))
    fits = [None not in of_rank for of_rank in tasks]
    reads: dict[int, list[Place | None]] = {}
    for column, number in zip(operands, form.origins, strict=True):
        origin = results[number] if number >= 0 else reads.setdefault(~number, column)
        if origin != column:
            pairs = zip(origin, column, strict=True)
            fits = [fit and a is b for fit, (a, b) in zip(fits, pairs, strict=True)]
    read_columns = [reads[number] for number in range(len(form.reads))]
    empty: list[tuple[Any, ...]] = [()] * ranks
    return ExpectedRows(
        fits,
        tasks,
        list(zip(*read_columns, strict=True)) if read_columns else empty,
        list(zip(*results, strict=True)) if results else empty,
    )


@dataclass(eq=False)
class OperatorMatch:
    """The operators of the plan that a row with a certain form executes if it reads certain
    tensors."""

    reads: list[PlanTensor]
    operations: Sequence[Operation]
    made: list[PlanTensor]
    """The tensors of all results."""
    _rows: dict[tuple[int, int], ExpectedRows | None] = field(
        default_factory=dict[tuple[int, int], "ExpectedRows | None"]
    )

    def rows(self, form: Form, part: int, ranks: int) -> ExpectedRows | None:
        """The expectations on ranks 0 to ``ranks`` - 1 for slice ``part`` in time. None if the form
        has other numbers of operands or results."""
        key = part, ranks
        if key not in self._rows:
            works = [operation.work for operation in self.operations]
            self._rows[key] = _expected_rows(works, form, part, ranks)
        return self._rows[key]


def graded_operands(run: Run) -> tuple[str, ...]:
    """The registers to which gradients go back from a task. The others are read for their shape
    only."""
    graded = differentiated_by(run.call, tuple(map(len, run.starts)))
    return tuple(name for position, name in enumerate(run.operands) if position in graded)


class Form:
    """The form of a row: all of its instructions except the tasks."""

    def __init__(self, fields: list[object], row: Sequence[Run]) -> None:
        """``fields``: the call, operands, results and recomputation of each operator."""
        self.fields = fields
        self.calls = [run.call for run in row]
        self.results = tuple(chain.from_iterable(run.results for run in row))
        self.made = frozenset(self.results)
        self.is_regular = len(self.made) == len(self.results)
        """Whether no register is written twice."""
        self.matches: list[OperatorMatch] = []
        reads: dict[str, int] = {}
        numbers: dict[str, int] = {}
        origins: list[int] = []
        for run in row:
            for name in run.operands:
                is_result = name in numbers
                origins.append(numbers[name] if is_result else ~reads.setdefault(name, len(reads)))
            for name in run.results:
                numbers[name] = len(numbers)
        self.reads = tuple(reads)
        """The registers that the row reads and does not write before."""
        self.operands = frozenset(name for run in row for name in run.operands)
        """All registers that the row reads, its own results included."""
        self.origins = tuple(origins)
        """The origin of each operand of each operator: the number of a result of the row, or
        ~number of a register in ``reads``."""
        self._operators = tuple((run.operands, run.results) for run in row)
        self._gradients = tuple((graded_operands(run), run.results) for run in row)
        self._needs: dict[tuple[bool, ...], tuple[frozenset[str], tuple[str, ...]]] = {}

    def needs(self, needed: set[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """The further registers that have a gradient if those in ``needed`` have one: results of
        the row, and registers that it reads. The latter are in the order of the backward pass."""
        pattern = tuple(map(needed.__contains__, self.results))
        answer = self._needs.get(pattern)
        if answer is None:
            active = {name for name, has in zip(self.results, pattern, strict=True) if has}
            names: dict[str, None] = {}
            for operands, results in reversed(self._gradients):
                if not active.isdisjoint(results):
                    active.update(operands)
                    names.update(dict.fromkeys(operands))
            from_outside = tuple(name for name in names if name not in self.made)
            answer = self._needs[pattern] = self.made.intersection(names), from_outside
        return answer

    def learn(
        self, meaning: PlanMeaning, reads: Sequence[PlanTensor], made: Sequence[PlanTensor]
    ) -> None:
        """Keep a match: a row of this form, which has been checked, read the tensors ``reads`` and
        produced the tensors ``made``."""
        if len(self.matches) >= MATCHES:
            return
        operand_tensors = (
            made[number] if number >= 0 else reads[~number] for number in self.origins
        )
        count, operations = 0, list[Operation]()
        for call, (operands, names) in zip(self.calls, self._operators, strict=True):
            called = meaning.called(call)
            results = list(made[count : count + len(names)])
            count += len(names)
            found = called.operations.get(tuple([next(operand_tensors) for _ in operands]), [])
            if called.also or called.only or len(found) != 1 or list(found[0].results) != results:
                return
            operations.append(found[0])
        self.matches.append(OperatorMatch(list(reads), operations, list(made)))


@dataclass(eq=False, slots=True)
class Row:
    """A sequence of operators, and its form."""

    runs: tuple[Run, ...]
    form: Form


class Forms:
    """The forms of the rows of all ranks."""

    def __init__(self) -> None:
        self._forms: dict[object, list[Form]] = {}

    def row(self, runs: tuple[Run, ...]) -> Row:
        return Row(runs, self._form_of(runs))

    def _form_of(self, row: Sequence[Run]) -> Form:
        fields: list[object] = list(map(_fields_of_form, row))
        similar = self._forms.setdefault((len(row), row[0].results, row[-1].results), [])
        for form in similar:
            if form.fields == fields:
                return form
        form = Form(fields, row)
        if len(similar) < MATCHES:
            similar.append(form)
        return form


def matched(
    row: Row,
    tensors: Sequence[PlanTensor | None],
    places: Sequence[Place | None],
    device: tuple[int, int, int],
    shapes: Callable[[str], object],
) -> tuple[OperatorMatch, Sequence[Place]] | None:
    """The match under which a row is right on one rank, and the places of its results. None if it
    is right under no match.

    ``tensors``, ``places``: of the registers that the row reads. ``device``: the rank, the number
    of ranks, and the slice in time. ``shapes``: from a register to its shape.
    """
    form, (rank, ranks, part) = row.form, device
    for match in form.matches:
        if match.reads != tensors:
            continue
        rows = match.rows(form, part, ranks)
        if rows is None or not rows.fits[rank] or rows.reads[rank] != tuple(places):
            continue
        made = rows.made[rank]
        if tuple(map(shapes, form.results)) != tuple(map(_extent, made)):
            continue
        if _have_tasks(row.runs, rows.tasks[rank], form.calls):
            return match, made
    return None


def matched_on_all(
    rows: Sequence[Row],
    tensors: Sequence[PlanTensor],
    places: Sequence[Sequence[Place]],
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
) -> tuple[Sequence[PlanTensor], Sequence[Sequence[Place]]] | None:
    """The results of a row that has the same form on all ranks: their tensors, and for each result
    the column of its places by rank. None if the row is right under no match on some rank.

    ``rows``: by rank. ``tensors``, ``places``: of the registers that the row reads, with a column
    of places each. ``shapes``: the shapes of registers, by rank.
    """
    form = rows[0].form
    reads = list(zip(*places, strict=True)) if places else [()] * len(rows)
    for match in form.matches:
        expected = match.rows(form, 0, len(rows)) if match.reads == tensors else None
        if expected is None or not all(expected.fits) or expected.reads != reads:
            continue
        made = list(zip(*expected.made, strict=True))
        have_shapes = (
            [of_rank.get(name) for of_rank in shapes] == list(map(_extent, column))
            for name, column in zip(form.results, made, strict=True)
        )
        if all(have_shapes) and all(
            _have_tasks(row.runs, tasks, form.calls)
            for row, tasks in zip(rows, expected.tasks, strict=True)
        ):
            return match.made, made
    return None


def _have_tasks(row: Sequence[Run], tasks: Sequence[Expected], calls: Sequence[Call]) -> bool:
    """Whether operators have the expected tasks."""
    for run, expected, call in zip(row, tasks, calls, strict=True):
        if run.task is expected.task and run.starts is expected.task_starts:
            continue  # these objects were compared before
        if expected.task_problem(run.task, run.starts, call.values) is not None:
            return False
    return True
