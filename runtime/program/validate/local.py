"""Check instructions that need no other rank against the typing theorem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pcg.types.operator import Call
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM
from runtime.program.program import Alias, Exchange, Group, Load, Program, Run, Weight
from runtime.program.validate.alike import Forms, Row, matched
from runtime.program.validate.content import (
    Content,
    Contents,
    Fragment,
    Place,
    PlanTensor,
    assemble,
)
from runtime.program.validate.errors import Unsound
from runtime.program.validate.meaning import Operation, PlanMeaning
from runtime.program.validate.movement import arrived
from runtime.program.validate.theorem import Expected


@dataclass
class Holdings:
    """The contents of a rank's registers."""

    contents: Contents = field(default_factory=Contents)
    statistics: dict[str, tuple[bool, Content]] = field(
        default_factory=dict[str, "tuple[bool, Content]"]
    )
    """For each register with statistics: whether it is the mean (otherwise the variance), and the
    block over which the statistics are taken."""


class DeviceCheck:
    """Checks those instructions of a rank that need no other rank, and computes the contents of
    their results. Methods raise Unsound for a wrong instruction."""

    def __init__(self, program: Program, meaning: PlanMeaning, forms: Forms | None = None) -> None:
        self.program, self.meaning = program, meaning
        self.forms = Forms() if forms is None else forms
        self.rank, self._shapes = program.rank, program.shapes
        self._weights: dict[str, Weight] = {weight.register: weight for weight in program.weights}
        self._everyone: Group = tuple(range(program.ranks))

    def load(self, load: Load) -> Content:
        """The content of a load: a block of a leaf. The instructions that read it check whether it
        is the right block."""
        content = self.meaning.block(load.leaf, load.region)
        if load.leaf.kind == "weight":
            stored = self._weights.get(load.target)
            if stored is None or stored.leaf != load.leaf or stored.region != load.region:
                raise Unsound(f"loads a weight, expected it in {load.target} as it is kept")
        self.shaped(load.target, content.place)
        return content

    def row(
        self,
        row: Row,
        tensors: Sequence[PlanTensor | None],
        places: Sequence[Place | None],
        part: int,
        kept: Holdings,
    ) -> bool:
        """Follow a row of operators at once, if it has a match from some rank. Otherwise return
        False and do nothing. ``tensors``, ``places``: of the registers that the row reads."""
        form, contents = row.form, kept.contents
        if not form.is_regular or not contents.tensors.keys().isdisjoint(form.made):
            return False
        match_and_places = matched(
            row, tensors, places, (self.rank, self.program.ranks, part), self._shapes.get
        )
        if match_and_places is None:
            return False
        match, results = match_and_places
        contents.hold(form.results, match.made, results)
        return True

    def learn(self, row: Row, tensors: Sequence[PlanTensor | None], kept: Holdings) -> None:
        """Keep a row that was checked as a match for other ranks."""
        by_register = kept.contents.tensors
        reads = [tensor for tensor in tensors if tensor is not None]
        made = [by_register[name] for name in row.form.results if name in by_register]
        if (
            row.form.is_regular
            and len(reads) == len(tensors)
            and len(made) == len(row.form.results)
        ):
            row.form.learn(self.meaning, reads, made)

    def run(self, run: Run, operands: list[Content], part: int, kept: Holdings) -> None:
        """Follow a task. It must be a task of the plan for this device, on exactly its blocks."""
        called = self.meaning.called(run.call)
        if called.only:
            self._statistics(run, run.results, operands, kept)
            return
        operations = called.operations.get(tuple([content[0] for content in operands]))
        if operations is None:
            names = ", ".join(content.tensor.name for content in operands)
            raise Unsound(f"the plan has no {called.plain.name} of {names}")
        places = tuple([content[1] for content in operands])
        operation, expected = self._task(run, called.plain, operations, places, part)
        count = len(operation.results)
        if len(run.results) != count + 2 * called.also:
            raise Unsound(f"{len(run.results)} results, expected {count + 2 * called.also}")
        contents = kept.contents
        for name, tensor, place in zip(
            run.results, operation.results, expected.results, strict=False
        ):
            self.shaped(name, place)
            if name in contents:
                raise Unsound(f"makes {name}, which is made already")
            contents[name] = Content(tensor, place)
        if called.also:
            self._statistics(run, run.results[count:], operands[:1], kept)

    def _task(
        self,
        run: Run,
        call: Call,
        operations: list[Operation],
        places: tuple[Place, ...],
        part: int,
    ) -> tuple[Operation, Expected]:
        """The operation among some to which a task belongs, and its expected task."""
        problem = "expected on other devices"
        for operation in operations:
            expected = operation.work.on(self.rank, part)
            if expected is None:
                continue
            if places != expected.operands:
                problem = next(_differences(run, places, expected))
                continue
            wrong = expected.task_problem(run.task, run.starts, call.values)
            if wrong is None and run.recomputed != operation.recomputed:
                wrong = f"recomputed={run.recomputed}, expected as in the plan"
            if wrong is None:
                return operation, expected
            problem = wrong
        raise Unsound(problem)

    def _statistics(
        self, run: Run, names: tuple[str, ...], operands: list[Content], kept: Holdings
    ) -> None:
        """Follow the mean and variance of each channel over a block, or over its first samples. The
        block has to be the sum of all partials."""
        if len(operands) != 1:
            raise Unsound(f"statistics of {len(operands)} registers, expected of one")
        tensor, place = content = operands[0]
        if (place.first, place.last) != (0, tensor.partials):
            raise Unsound(f"statistics of {content}, expected of all partials")
        if len(names) != 2:
            raise Unsound(f"{len(names)} statistics, expected mean and variance")
        rows = _first_rows(run, place)
        if not isinstance(rows, int) or not 1 <= rows <= place.extent[0]:
            raise Unsound(f"statistics of {rows} samples of {content}")
        if rows < place.extent[0]:
            first, _ = place.region[0]
            region = ((first, first + rows), *place.region[1:])
            content = Content(tensor, self.meaning.places.of(place.first, place.last, region))
        for number, name in enumerate(names):
            if self._shapes.get(name) != place.extent[1:2]:
                shape = self._shapes.get(name)
                raise Unsound(f"{name} has shape {shape}, expected {place.extent[1:2]}")
            kept.statistics[name] = number == 0, content

    def alias(self, alias: Alias, source: Content) -> Content:
        """The content of an alias: a block that becomes partials of a join."""
        for joining in self.meaning.joins.get(source.tensor, []):
            expected = joining.tasks.get(self.rank)
            if expected is not None and expected.operands == (source.place,):
                (place,) = expected.results
                self.shaped(alias.target, place)
                return Content(joining.result, place)
        raise Unsound(f"{source} is no operand of a join here")

    def sliced(self, exchange: Exchange, source: Content | None) -> list[Fragment]:
        """The fragments that a local exchange copies."""
        return arrived(exchange, source, {})

    def together(self, parts: list[Fragment], target: str) -> Content:
        """The content of a register after the parts were added to it."""
        shape = self._shapes.get(target)
        if shape is None:
            raise Unsound(f"{target} has no shape")
        return assemble(parts, tuple(shape), self.meaning.places)

    def shaped(self, name: str, place: Place) -> None:
        """Raise Unsound unless a register has the shape of a place."""
        if self._shapes.get(name) != place.extent:
            raise Unsound(f"{name} has shape {self._shapes.get(name)}, expected {place.extent}")


def _first_rows(run: Run, place: Place) -> object:
    """The number of samples of a block over which statistics are taken, as in the kernels of
    ``runtime.program.norms``."""
    if run.call.operator == FIRST_STATISTICS:
        return run.task.attributes.get("rows")
    samples = place.extent[0]
    return samples // run.task.length("g") if run.call.operator == GROUP_NORM else samples


def _differences(run: Run, places: tuple[Place, ...], expected: Expected) -> Iterator[str]:
    for name, place, required in zip(run.operands, places, expected.operands, strict=True):
        if place is not required:
            yield f"reads {name}, {place}, expected {required}"
