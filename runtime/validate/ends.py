"""What all ranks together have in the end: the loss, the outputs, the weights and their gradients,
and statistics, each part of each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from pcg.plan import Plan
from pcg.statistics import named_values
from pcg.tensor import ParallelTensor
from runtime.program import Group, Program, Running, Weight
from runtime.validate.content import Box, Content, Place, Tensor, covers, shown
from runtime.validate.errors import ProgramError
from runtime.validate.local import Kept
from runtime.validate.meaning import Meaning


def check_ends(
    meaning: Meaning, programs: Sequence[Program], made: Sequence[Kept], where: str
) -> None:
    """Raise ProgramError where something is missing, or there twice."""
    _check_loss(meaning, programs, made, where)
    _check_outputs(meaning, programs, made, where)
    _check_weights(meaning, programs, where)
    _check_statistics(meaning, programs, made, where)


def _check_loss(
    meaning: Meaning, programs: Sequence[Program], made: Sequence[Kept], where: str
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
    meaning: Meaning, programs: Sequence[Program], made: Sequence[Kept], where: str
) -> None:
    """Each block of each partial of each output is kept by some rank."""
    kept_of: dict[Tensor, set[Place]] = {}
    for program, kept in zip(programs, made, strict=True):
        statistics = {n for r in program.running if r.piece for n in r.piece.registers}
        for name in program.outputs:
            if name in statistics:
                continue
            content = kept.contents.get(name)
            if content is None:
                raise ProgramError(where, program.rank, name, "is an output that nothing has made")
            kept_of.setdefault(content.tensor, set()).add(content.place)
    for value in meaning.plan.graph.outputs[1:]:
        tensor = meaning.tensor(value)
        found = kept_of.get(tensor, set())
        boxes = [_box(p) for p in found if p.last - p.first == _sums(tensor, value.type)]
        # Outputs may lie in several layouts, so that a block may be there more than once.
        missing = _uncovered(boxes, meaning.whole(tensor))
        if missing is not None:
            raise ProgramError(where, 0, tensor.name, f"output {missing} is on no rank")


def _sums(tensor: Tensor, wanted: ParallelTensor) -> int:
    return tensor.partials // wanted.degrees.partials


def _check_weights(meaning: Meaning, programs: Sequence[Program], where: str) -> None:
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
    for rank, weight, place in groups:
        held = tuple(holders[weight.leaf.name][place])
        if weight.group != held:
            problem = f"{shown(weight.region)} is held by ranks {_ranks(held)}, summed over"
            raise ProgramError(where, rank, weight, f"{problem} {_ranks(weight.group)}")
    for name, tensor in meaning.leaves.items():
        if tensor.value.node.leaf.kind == "weight":
            boxes = [_box(place) for place in holders.get(name, {})]
            rank = min((r for held in holders.get(name, {}).values() for r in held), default=0)
            _demand_once(boxes, meaning.whole(tensor), tensor, where, rank, "weight")


def _check_statistics(
    meaning: Meaning, programs: Sequence[Program], made: Sequence[Kept], where: str
) -> None:
    """Each element of what is normed counts once."""
    first = _records(programs[0])
    for program in programs:
        if _records(program) != first:
            raise ProgramError(where, program.rank, "statistics", "are others than rank 0's")
    if tuple(record for record, _, _ in first) != tuple(meaning.plan.statistics):
        raise ProgramError(where, 0, "statistics", "are others than the plan's")
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
        if tensor.shape != shape or tensor is not _watched(meaning, record.at):
            raise ProgramError(where, pieces[0][0], record.value, f"statistics of {tensor.name}")
        boxes = [_box(content.place) for _, content in pieces]
        rank = pieces[0][0]
        _demand_once(boxes, meaning.whole(tensor), tensor, where, rank, "statistics")


def _watched(meaning: Meaning, at: str | None) -> Tensor | None:
    return None if at is None else meaning.tensor(named_values(meaning.plan.graph)[at])


def _records(program: Program) -> tuple[tuple[object, ...], ...]:
    return tuple((r.record, r.shape, r.is_known) for r in program.running)


def _pieces(
    number: int, programs: Sequence[Program], made: Sequence[Kept], where: str
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
        region, extent = content.place.region, content.place.extent
        if piece.channels != region[1] or piece.count * extent[1] != prod(extent):
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
            found = f"rank {program.rank} of {program.ranks}"
            raise ProgramError(where, rank, found, f"expected rank {rank} of {len(programs)}")
        if program.groups != groups or len(set(groups)) < len(groups):
            raise ProgramError(where, rank, "groups", "expected those of rank 0, each once")
        own = program.pipeline
        if (own is None) != (pipeline is None):
            raise ProgramError(where, rank, "slices", "expected as in the plan")
        if own is None or pipeline is None:
            continue
        decided = (len(own.slices), own.stages, own.is_delayed)
        wanted = (pipeline.micro_batches, pipeline.stages, pipeline.schedule == "2bw")
        if decided != wanted:
            problem = f"{decided}, expected {wanted}: slices, stages, whether delayed"
            raise ProgramError(where, rank, "pipeline", problem)
        first = programs[0].pipeline
        if first is None or (own.tail_trains, own.runs_on) != (first.tail_trains, first.runs_on):
            raise ProgramError(where, rank, "pipeline", "expected what rank 0 has of it")
        if own.runs_on and not own.is_delayed:
            raise ProgramError(where, rank, "pipeline", "runs on, with weights that are not there")


def _box(place: Place) -> Box:
    return ((place.first, place.last), *place.region)


def _demand_once(
    boxes: Sequence[Box], whole: Place, tensor: Tensor, where: str, rank: int, what: str
) -> None:
    problem = covers(boxes, _box(whole))
    if problem is None:
        return
    times, (partials, *region) = problem
    how = "missing" if not times else f"there {times} times"
    part = f"partial {partials[0]} of {tensor.name}{shown(tuple(region))}"
    raise ProgramError(where, rank, what, f"{part} is {how}, expected once")


def _uncovered(boxes: Sequence[Box], whole: Place) -> str | None:
    """A part that no box covers."""
    left = list(dict.fromkeys(boxes))
    problem = covers(left, _box(whole))
    while problem is not None and problem[0] > 1:
        # Leave out one that is there in another layout too.
        _, cell = problem
        inside = [b for b in left if all(s <= c < e for (s, e), (c, _) in zip(b, cell, strict=True))]
        left.remove(min(inside))
        problem = covers(left, _box(whole))
    if problem is None or problem[0] > 0:
        return None
    _, (partials, *region) = problem
    return f"partial {partials[0]}, {shown(tuple(region))}"


def _ranks(group: Group) -> str:
    return ", ".join(map(str, group))
