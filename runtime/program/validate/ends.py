"""Check the registers of all ranks at the end of a step.

The loss, the outputs, the weights and the statistics must be present, each part of each once. The
group of a weight must be exactly the ranks that hold it.
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
from runtime.program.pipelined import PipelineProgram
from runtime.program.program import Group, Program, Weight
from runtime.program.running import NormStatistics
from runtime.program.validate.content import Box, Content, Place, PlanTensor, covers
from runtime.program.validate.errors import ProgramError
from runtime.program.validate.local import Holdings
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.theorem import region


def check_ends(
    meaning: PlanMeaning, programs: Sequence[Program], holdings: Sequence[Holdings], where: str
) -> None:
    """Check the end of a step. ``holdings``: what each rank holds. Raises ProgramError if a part is
    missing or present twice."""
    _check_loss(meaning, programs, holdings, where)
    _check_outputs(meaning, programs, holdings, where)
    _check_weights(meaning, programs, where)
    _check_statistics(meaning, programs, holdings, where)


def _check_loss(
    meaning: PlanMeaning, programs: Sequence[Program], holdings: Sequence[Holdings], where: str
) -> None:
    """The parts of the loss, whose gradients are 1, add up to the loss."""
    tensor = meaning.tensor(meaning.plan.graph.outputs[0])
    boxes: list[Box] = []
    last = 0
    for program, of_rank in zip(programs, holdings, strict=True):
        if program.loss is None:
            continue
        last = program.rank
        content = of_rank.contents.get(program.loss)
        if content is None or content.tensor is not tensor:
            raise ProgramError(where, program.rank, program.loss, f"expected {tensor.name}")
        boxes.append(_box(content.place))
    _demand_once(boxes, meaning.whole(tensor), tensor, where, last, "the loss")


def _check_outputs(
    meaning: PlanMeaning, programs: Sequence[Program], holdings: Sequence[Holdings], where: str
) -> None:
    """Each register of ``Program.outputs`` holds a piece of an output, and each piece of an output
    is in such a register."""
    registers: dict[str, list[tuple[int, Content]]] = {}
    for program, of_rank in zip(programs, holdings, strict=True):
        statistics = {n for r in program.running if r.piece for n in r.piece.registers}
        for name in program.outputs:
            if name in statistics:
                continue
            content = of_rank.contents.get(name)
            if content is None:
                raise ProgramError(where, program.rank, name, "is an output that nothing has made")
            registers.setdefault(name, []).append((program.rank, content))
    outputs = [_layouts(meaning, number) for number in range(len(meaning.plan.graph.outputs))]
    for name, contents in registers.items():
        _take_output(name, contents, outputs, where)
    for number, (tensor, layouts) in enumerate(outputs):
        if all(layout.missing for layout in layouts):
            place = min(map(str, layouts[0].missing))
            raise ProgramError(where, 0, tensor.name, f"output {number}, {place}, is on no rank")


@dataclass
class ExpectedLayout:
    """The pieces of a layout, and those of them that no rank holds so far."""

    pieces: frozenset[Place]
    missing: set[Place] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.pieces)


Layouts = tuple[PlanTensor, list[ExpectedLayout]]
"""A tensor, and its allowed layouts."""


def _layouts(meaning: PlanMeaning, number: int) -> Layouts:
    """The layout of an output by its type. The loss may also stay in the parts in which it was
    computed, because the gradient of each part is 1."""
    value = meaning.plan.graph.outputs[number]
    tensor = meaning.tensor(value)
    types = [value.type] if number else [value.type, tensor.value.type]
    return tensor, [ExpectedLayout(frozenset(_pieces_of(meaning, tensor, t))) for t in types]


def _pieces_of(
    meaning: PlanMeaning, tensor: PlanTensor, as_type: ParallelTensor
) -> Iterator[Place]:
    """The places of all pieces of a tensor with a certain type. Each of the type's partials is the
    sum of as many partials of the tensor."""
    partials = as_type.degrees.partials
    sums = tensor.partials // partials
    for sigma, *block in product(range(partials), *map(range, as_type.degrees.dims)):
        yield meaning.places.of(sigma * sums, (sigma + 1) * sums, region(as_type, block, 0))


def _take_output(
    name: str, contents: list[tuple[int, Content]], outputs: list[Layouts], where: str
) -> None:
    """A register holds a piece of the same output, in the same layout, on all ranks that have it.
    ``contents``: its content, by rank."""
    fits = False
    rank, first = contents[0]
    places = {content.place for _, content in contents}
    for tensor, layouts in outputs:
        if any(content.tensor is not tensor for _, content in contents):
            continue
        for layout in layouts:
            if places <= layout.pieces:
                layout.missing -= places
                fits = True
    if not fits:
        raise ProgramError(where, rank, name, f"{first} and its like are no pieces of an output")


def _check_weights(meaning: PlanMeaning, programs: Sequence[Program], where: str) -> None:
    """The blocks of a weight cover it, and the group of a block is exactly the ranks that hold it.
    The group sums the block's gradient, so each rank gets the gradients of all copies once."""
    holders: dict[str, dict[Place, list[int]]] = {}
    groups: list[tuple[int, Weight, Place]] = []
    for program in programs:
        seen: set[str] = set()
        for weight in program.weights:
            tensor = meaning.leaves.get(weight.leaf.name)
            if tensor is None or tensor.value.node.leaf != weight.leaf:
                raise ProgramError(where, program.rank, weight, "no weight of the plan")
            if tensor.name in seen:
                raise ProgramError(where, program.rank, weight, "is kept twice")
            seen.add(tensor.name)
            place = meaning.places.of(0, 1, weight.region)
            holders.setdefault(tensor.name, {}).setdefault(place, []).append(program.rank)
            groups.append((program.rank, weight, place))
    holders_of_block = {
        (name, place): tuple(ranks)
        for name, by_place in holders.items()
        for place, ranks in by_place.items()
    }
    for rank, weight, place in groups:
        ranks = holders_of_block[weight.leaf.name, place]
        if weight.group != ranks:
            problem = f"{region_text(weight.region)} is held by ranks {_ranks(ranks)}, summed over"
            raise ProgramError(where, rank, weight, f"{problem} {_ranks(weight.group)}")
    for name, tensor in meaning.leaves.items():
        if tensor.value.node.leaf.kind == "weight":
            boxes = [_box(place) for place in holders.get(name, {})]
            rank = min((r for ranks in holders.get(name, {}).values() for r in ranks), default=0)
            _demand_once(boxes, meaning.whole(tensor), tensor, where, rank, "weight")


def _check_statistics(
    meaning: PlanMeaning, programs: Sequence[Program], holdings: Sequence[Holdings], where: str
) -> None:
    """The parts of the statistics cover each element of the normalized tensor once. With groups of
    samples, they cover the first group."""
    first = _records(programs[0])
    for program in programs:
        if _records(program) != first:
            raise ProgramError(where, program.rank, "statistics", "are others than rank 0's")
    if tuple(record for record, _, _ in first) != tuple(meaning.plan.statistics):
        raise ProgramError(where, 0, "statistics", "are others than the plan's")
    named = named_values(meaning.plan.graph) if first else {}
    for number, (record, shape, is_known) in enumerate(first):
        pieces = list(_pieces(number, programs, holdings, where))
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
    number: int, programs: Sequence[Program], holdings: Sequence[Holdings], where: str
) -> Iterator[tuple[int, Content]]:
    """The ranks that add a part to the statistics, each with the block over which it takes them."""
    for program, of_rank in zip(programs, holdings, strict=True):
        running: NormStatistics = program.running[number]
        if (piece := running.piece) is None:
            continue
        mean, variance = [of_rank.statistics.get(name) for name in piece.registers]
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
    """Raise ProgramError if programs differ in fields that must be equal on all ranks, or in the
    plan's decisions about the pipeline."""
    groups: tuple[Group, ...] = programs[0].groups
    pipeline = plan.pipeline
    for rank, program in enumerate(programs):
        if (program.rank, program.ranks) != (rank, len(programs)):
            claimed = f"rank {program.rank} of {program.ranks}"
            raise ProgramError(where, rank, claimed, f"expected rank {rank} of {len(programs)}")
        if program.groups != groups or len(set(groups)) < len(groups):
            raise ProgramError(where, rank, "groups", "expected those of rank 0, each once")
        of_rank = program.pipeline
        if (of_rank is None) != (pipeline is None):
            raise ProgramError(where, rank, "slices", "expected as in the plan")
        if of_rank is None or pipeline is None:
            continue
        actual = (
            len(of_rank.slices),
            of_rank.stages,
            of_rank.interleave,
            of_rank.is_delayed,
            of_rank.has_weights_pass,
        )
        expected = (
            pipeline.micro_batches,
            pipeline.stages,
            pipeline.interleave,
            pipeline.schedule == "2bw",
            pipeline.has_weights_pass,
        )
        if actual != expected:
            fields = "slices, stages, chunks, whether delayed, whether weights have a pass"
            problem = f"{actual}, expected {expected}: {fields}"
            raise ProgramError(where, rank, "pipeline", problem)
        first = programs[0].pipeline
        if first is None or _shared(of_rank) != _shared(first):
            raise ProgramError(where, rank, "pipeline", "expected what rank 0 has of it")
        if of_rank.overlaps_batches and not of_rank.is_delayed:
            raise ProgramError(where, rank, "pipeline", "runs on, with weights that are not there")


def _shared(pipeline: PipelineProgram) -> tuple[object, ...]:
    """The fields of a pipeline that are equal on all ranks."""
    return pipeline.tail_trains, pipeline.overlaps_batches, pipeline.channels


def _box(place: Place) -> Box:
    return ((place.first, place.last), *place.region)


def _demand_once(
    boxes: Sequence[Box], whole: Place, tensor: PlanTensor, where: str, rank: int, what: str
) -> None:
    """Raise ProgramError unless boxes cover a place of a tensor exactly once."""
    problem = covers(boxes, _box(whole))
    if problem is None:
        return
    times, (partials, *region) = problem
    how = "missing" if not times else f"there {times} times"
    part = f"partial {partials[0]} of {tensor.name}{region_text(tuple(region))}"
    raise ProgramError(where, rank, what, f"{part} is {how}, expected once")


def _ranks(group: Group) -> str:
    return ", ".join(map(str, group))
