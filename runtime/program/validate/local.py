"""Check the instructions that need no other rank against the typing theorem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pcg.types.operator import Call
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM
from runtime.program.program import Alias, Exchange, Group, Load, Program, Run, Weight
from runtime.program.validate.alike import Forms, Row, reading_of
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
    """What a rank is found to hold. ``statistics``: of which block registers of statistics are, by
    register, with whether it is the mean."""

    contents: Contents = field(default_factory=Contents)
    statistics: dict[str, tuple[bool, Content]] = field(
        default_factory=dict[str, "tuple[bool, Content]"]
    )


class DeviceCheck:
    """Checks the instructions of one rank that need no other, and tells what they make."""

    def __init__(self, program: Program, meaning: PlanMeaning, forms: Forms | None = None) -> None:
        self.program, self.meaning = program, meaning
        self.forms = Forms() if forms is None else forms
        self.rank, self._shapes = program.rank, program.shapes
        self._weights: dict[str, Weight] = {weight.register: weight for weight in program.weights}
        self._everyone: Group = tuple(range(program.ranks))

    def load(self, load: Load) -> Content:
        """A block of a leaf. Whether it is the right one shows where it is read."""
        content = self.meaning.block(load.leaf, load.region)
        if load.leaf.kind == "weight":
            kept = self._weights.get(load.target)
            if kept is None or kept.leaf != load.leaf or kept.region != load.region:
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
        """Operators in a row at once, if they do what some rank's were found to do; else False, and
        nothing is done. ``tensors`` and ``places``: of what the row reads."""
        form, contents = row.form, kept.contents
        if not form.is_regular or not contents.tensors.keys().isdisjoint(form.made):
            return False
        known = reading_of(
            row, tensors, places, (self.rank, self.program.ranks, part), self._shapes.get
        )
        if known is None:
            return False
        reading, made = known
        contents.hold(form.results, reading.made, made)
        return True

    def learn(self, row: Row, tensors: Sequence[PlanTensor | None], kept: Holdings) -> None:
        """Take a row that was right as an example."""
        held = kept.contents.tensors
        reads = [tensor for tensor in tensors if tensor is not None]
        made = [held[name] for name in row.form.results if name in held]
        if (
            row.form.is_regular
            and len(reads) == len(tensors)
            and len(made) == len(row.form.results)
        ):
            row.form.learn(self.meaning, reads, made)

    def run(self, run: Run, given: list[Content], part: int, kept: Holdings) -> None:
        """One task: exactly one that the plan has for this device, on just those blocks."""
        called = self.meaning.called(run.call)
        if called.only:
            self._statistics(run, run.results, given, kept)
            return
        known = called.operations.get(tuple([content[0] for content in given]))
        if known is None:
            names = ", ".join(content.tensor.name for content in given)
            raise Unsound(f"the plan has no {called.plain.name} of {names}")
        places = tuple([content[1] for content in given])
        operation, expected = self._task(run, called.plain, known, places, part)
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
            self._statistics(run, run.results[count:], given[:1], kept)

    def _task(
        self, run: Run, call: Call, known: list[Operation], places: tuple[Place, ...], part: int
    ) -> tuple[Operation, Expected]:
        """The operator, and the part of it that is this task."""
        problem = "expected on other devices"
        for operation in known:
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
        self, run: Run, names: tuple[str, ...], given: list[Content], kept: Holdings
    ) -> None:
        """Mean and variance of each channel of a block, or of the first samples of it. The block
        has to be added up."""
        if len(given) != 1:
            raise Unsound(f"statistics of {len(given)} registers, expected of one")
        tensor, place = content = given[0]
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

    def alias(self, alias: Alias, given: Content) -> Content:
        """A piece that becomes partials of a join."""
        for joining in self.meaning.joins.get(given.tensor, []):
            expected = joining.tasks.get(self.rank)
            if expected is not None and expected.operands == (given.place,):
                (place,) = expected.results
                self.shaped(alias.target, place)
                return Content(joining.result, place)
        raise Unsound(f"{given} is no operand of a join here")

    def sliced(self, exchange: Exchange, given: Content | None) -> list[Fragment]:
        """What a rank keeps."""
        return arrived(exchange, given, {})

    def together(self, parts: list[Fragment], target: str) -> Content:
        """What a register holds that parts were added to."""
        shape = self._shapes.get(target)
        if shape is None:
            raise Unsound(f"{target} has no shape")
        return assemble(parts, tuple(shape), self.meaning.places)

    def shaped(self, name: str, place: Place) -> None:
        """Raise Unsound where a register has another shape than what it holds."""
        if self._shapes.get(name) != place.extent:
            raise Unsound(f"{name} has shape {self._shapes.get(name)}, expected {place.extent}")


def _first_rows(run: Run, place: Place) -> object:
    """Of how many samples of a block the statistics are, as the kernels of
    ``runtime.program.norms``."""
    if run.call.operator == FIRST_STATISTICS:
        return run.task.attributes.get("rows")
    samples = place.extent[0]
    return samples // run.task.length("g") if run.call.operator == GROUP_NORM else samples


def _differences(run: Run, places: tuple[Place, ...], expected: Expected) -> Iterator[str]:
    for name, place, wanted in zip(run.operands, places, expected.operands, strict=True):
        if place is not wanted:
            yield f"reads {name}, {place}, expected {wanted}"
