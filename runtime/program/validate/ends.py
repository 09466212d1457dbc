"""Check what all ranks hold at the end of a step.

The loss, the outputs, the weights with their gradients, and the statistics have to be there, each
part of each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from pcg.placement.region import region_text, whole_region
from pcg.plan.plan import Plan
from pcg.plan.statistics import RunningFile, named_values
from pcg.types.tensor import ParallelTensor
from runtime.program.pipelined import Pipelined
from runtime.program.program import Group, Program, Weight
from runtime.program.running import Running
from runtime.program.validate.content import Box, Content, Place, PlanTensor, covers
from runtime.program.validate.errors import ProgramError
from runtime.program.validate.local import Holdings
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.theorem import region


def check_ends(
    meaning: PlanMeaning, programs: Sequence[Program], made: Sequence[Holdings], where: str
) -> None:
    """Raise ProgramError where something is missing, or there twice."""
    _check_loss(meaning, programs, made, where)
    _check_outputs(meaning, programs, made, where)
    _check_weights(meaning, programs, where)
    _check_statistics(meaning, programs, made, where)


def _check_loss(
    meaning: PlanMeaning, programs: Sequence[Program], made: Sequence[Holdings], where: str
) -> None:
    """The parts of the loss that count add up to it: the gradient of each is 1."""
    tensor = meaning.tensor(meaning.plan.graph.outputs[0])
    boxes: list[Box] = []
    last = 0
    for program, kept in zip(programs, made, strict=True):
        if program.loss is None:
            continue
        last = program.rank
        content = kept.contents.get(program.loss)
        if content is None or content.tensor is not tensor:
            raise ProgramError(where, program.rank, program.loss, f"expected {tensor.name}")
        boxes.append(_box(content.place))
    _demand_once(boxes, meaning.whole(tensor), tensor, where, last, "the loss")


def _check_outputs(
    meaning: PlanMeaning, programs: Sequence[Program], made: Sequence[Holdings], where: str
) -> None:
    """Registers that are kept are pieces of outputs, and each piece of an output is one of them."""
    registers: dict[str, list[tuple[int, Content]]] = {}
    for program, kept in zip(programs, made, strict=True):
        statistics = {n for r in program.running if r.piece for n in r.piece.registers}
        for name in program.outputs:
            if name in statistics:
                continue
            content = kept.contents.get(name)
            if content is None:
                raise ProgramError(where, program.rank, name, "is an output that nothing has made")
            registers.setdefault(name, []).append((program.rank, content))
    left = [_layouts(meaning, number) for number in range(len(meaning.plan.graph.outputs))]
    for name, held in registers.items():
        _take_output(name, held, left, where)
    for number, (tensor, layouts) in enumerate(left):
        if all(layout.missing for layout in layouts):
            place = min(map(str, layouts[0].missing))
            raise ProgramError(where, 0, tensor.name, f"output {number}, {place}, is on no rank")


@dataclass
class Wanted:
    """A layout: the pieces, and those that no rank has been found to hold."""

    pieces: frozenset[Place]
    missing: set[Place] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.pieces)


Layouts = tuple[PlanTensor, list[Wanted]]
"""A tensor, and the ways in which it may lie."""


def _layouts(meaning: PlanMeaning, number: int) -> Layouts:
    """An output as its type says that it lies; the loss may also be left in the parts in which it
    was computed, as each has the gradient 1."""
    value = meaning.plan.graph.outputs[number]
    tensor = meaning.tensor(value)
    types = [value.type] if number else [value.type, tensor.value.type]
    return tensor, [Wanted(frozenset(_pieces_of(meaning, tensor, own))) for own in types]


def _pieces_of(meaning: PlanMeaning, tensor: PlanTensor, wanted: ParallelTensor) -> Iterator[Place]:
    own = wanted.degrees.partials
    sums = tensor.partials // own
    for sigma, *block in product(range(own), *map(range, wanted.degrees.dims)):
        yield meaning.places.of(sigma * sums, (sigma + 1) * sums, region(wanted, block, 0))


def _take_output(
    name: str, held: list[tuple[int, Content]], left: list[Layouts], where: str
) -> None:
    """A register is on all ranks a piece of one output, in one layout."""
    fits = False
    rank, first = held[0]
    places = {content.place for _, content in held}
    for tensor, layouts in left:
        if any(content.tensor is not tensor for _, content in held):
            continue
        for layout in layouts:
            if places <= layout.pieces:
                layout.missing -= places
                fits = True
    if not fits:
        raise ProgramError(where, rank, name, f"{first} and its like are no pieces of an output")


def _check_weights(meaning: PlanMeaning, programs: Sequence[Program], where: str) -> None:
    """The blocks of a weight make it up, and whoever holds one is in its group, which adds up its
    gradient: so each gets the sum of all gradients of all copies, once."""
    holders: dict[str, dict[Place, list[int]]] = {}
    groups: list[tuple[int, Weight, Place]] = []
    for program in programs:
        own: set[str] = set()
        for weight in program.weights:
            tensor = meaning.leaves.get(weight.leaf.name)
            if tensor is None or tensor.value.node.leaf != weight.leaf:
                raise ProgramError(where, program.rank, weight, "no weight of the plan")
            if tensor.name in own:
                raise ProgramError(where, program.rank, weight, "is kept twice")
            own.add(tensor.name)
            place = meaning.places.of(0, 1, weight.region)
            holders.setdefault(tensor.name, {}).setdefault(place, []).append(program.rank)
            groups.append((program.rank, weight, place))
    whole = {
        (name, place): tuple(ranks) for name, own in holders.items() for place, ranks in own.items()
    }
    for rank, weight, place in groups:
        held = whole[weight.leaf.name, place]
        if weight.group != held:
            problem = f"{region_text(weight.region)} is held by ranks {_ranks(held)}, summed over"
            raise ProgramError(where, rank, weight, f"{problem} {_ranks(weight.group)}")
    for name, tensor in meaning.leaves.items():
        if tensor.value.node.leaf.kind == "weight":
            boxes = [_box(place) for place in holders.get(name, {})]
            rank = min((r for held in holders.get(name, {}).values() for r in held), default=0)
            _demand_once(boxes, meaning.whole(tensor), tensor, where, rank, "weight")


def _check_statistics(
    meaning: PlanMeaning, programs: Sequence[Program], made: Sequence[Holdings], where: str
) -> None:
    """Each element of what is normed counts once; of samples in groups, those of the first."""
    first = _records(programs[0])
    for program in programs:
        if _records(program) != first:
            raise ProgramError(where, program.rank, "statistics", "are others than rank 0's")
    if tuple(record for record, _, _ in first) != tuple(meaning.plan.statistics):
        raise ProgramError(where, 0, "statistics", "are others than the plan's")
    named = named_values(meaning.plan.graph) if first else {}
    for number, (record, shape, is_known) in enumerate(first):
        pieces = list(_pieces(number, programs, made, where))
        if not is_known:
            if pieces:
                raise ProgramError(where, pieces[0][0], record.value, "has statistics")
            continue
        tensors = {content.tensor for _, content in pieces}
        if len(tensors) != 1:
            raise ProgramError(where, 0, record.value, "has no statistics, expected some")
        (tensor,) = tensors
        samples, *rest = tensor.shape
        counted = (samples // meaning.plan.norm_groups, *rest)
        if counted != shape or record.at is None or tensor is not meaning.tensor(named[record.at]):
            raise ProgramError(where, pieces[0][0], record.value, f"statistics of {tensor.name}")
        boxes = [_box(content.place) for _, content in pieces]
        rank = pieces[0][0]
        first_group = meaning.places.of(0, tensor.partials, whole_region(counted))
        _demand_once(boxes, first_group, tensor, where, rank, "statistics")


def _records(
    program: Program,
) -> tuple[tuple[RunningFile, tuple[int, ...], bool], ...]:
    return tuple((r.record, r.shape, r.is_known) for r in program.running)


def _pieces(
    number: int, programs: Sequence[Program], made: Sequence[Holdings], where: str
) -> Iterator[tuple[int, Content]]:
    """Of what blocks the ranks add statistics, with the rank."""
    for program, kept in zip(programs, made, strict=True):
        running: Running = program.running[number]
        if (piece := running.piece) is None:
            continue
        known = [kept.statistics.get(name) for name in piece.registers]
        mean, variance = known
        if mean is None or variance is None or not mean[0] or variance[0] or mean[1] != variance[1]:
            problem = "expected mean and variance of one block"
            raise ProgramError(where, program.rank, ", ".join(piece.registers), problem)
        content = mean[1]
        channels, extent = content.place.region[1], content.place.extent
        if piece.channels != channels or piece.count * extent[1] != prod(extent):
            problem = f"{piece.count} elements of channels {piece.channels}, expected {content}"
            raise ProgramError(where, program.rank, ", ".join(piece.registers), problem)
        yield program.rank, content


def check_alike(plan: Plan, programs: Sequence[Program], where: str) -> None:
    """Raise ProgramError where programs differ in what has to be one for all, or are others than
    the plan asks for."""
    groups: tuple[Group, ...] = programs[0].groups
    pipeline = plan.pipeline
    for rank, program in enumerate(programs):
        if (program.rank, program.ranks) != (rank, len(programs)):
            given = f"rank {program.rank} of {program.ranks}"
            raise ProgramError(where, rank, given, f"expected rank {rank} of {len(programs)}")
        if program.groups != groups or len(set(groups)) < len(groups):
            raise ProgramError(where, rank, "groups", "expected those of rank 0, each once")
        own = program.pipeline
        if (own is None) != (pipeline is None):
            raise ProgramError(where, rank, "slices", "expected as in the plan")
        if own is None or pipeline is None:
            continue
        decided = (
            len(own.slices),
            own.stages,
            own.interleave,
            own.is_delayed,
            own.has_weights_pass,
        )
        wanted = (
            pipeline.micro_batches,
            pipeline.stages,
            pipeline.interleave,
            pipeline.schedule == "2bw",
            pipeline.has_weights_pass,
        )
        if decided != wanted:
            what = "slices, stages, chunks, whether delayed, whether weights have a pass"
            problem = f"{decided}, expected {wanted}: {what}"
            raise ProgramError(where, rank, "pipeline", problem)
        first = programs[0].pipeline
        if first is None or _shared(own) != _shared(first):
            raise ProgramError(where, rank, "pipeline", "expected what rank 0 has of it")
        if own.runs_on and not own.is_delayed:
            raise ProgramError(where, rank, "pipeline", "runs on, with weights that are not there")


def _shared(own: Pipelined) -> tuple[object, ...]:
    """What all ranks have of a pipeline."""
    return own.tail_trains, own.runs_on, own.channels


def _box(place: Place) -> Box:
    return ((place.first, place.last), *place.region)


def _demand_once(
    boxes: Sequence[Box], whole: Place, tensor: PlanTensor, where: str, rank: int, what: str
) -> None:
    problem = covers(boxes, _box(whole))
    if problem is None:
        return
    times, (partials, *region) = problem
    how = "missing" if not times else f"there {times} times"
    part = f"partial {partials[0]} of {tensor.name}{region_text(tuple(region))}"
    raise ProgramError(where, rank, what, f"{part} is {how}, expected once")


def _ranks(group: Group) -> str:
    return ", ".join(map(str, group))
