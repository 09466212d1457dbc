"""Follow all ranks together if their programs have the same structure.

Problem. If all ranks run the same instructions on blocks of their own, as with data parallelism on
hundreds of devices, following each rank by itself repeats the same work hundreds of times.

Method. Programs have the same *structure* if they differ only in blocks, tasks and groups: they
have the same instructions on the same registers in the same order, the same weights and the same
gradients. Then all ranks are followed together, block of the program by block, with a column of
places (one per rank) for each register.

1. *Forward.* A row of operators is right if the columns that it reads are those of a match, and
   each task is the program's (``alike``). A collective is computed once per group (``movement``),
   and all members must name the same group.
2. *Backward.* The structure and the parts of the loss determine which registers have a gradient.
   Ranks that agree in this form a *class*. One rank per class is followed (``order.run``) in the
   quotient, where a group is replaced by the classes of its members. These must be the same for
   all ranks of a class. Then each rank of a class meets in its own group what the followed rank
   meets, so that all ranks of a class proceed in the same way.
3. *Order.* The quotient has fewer groups, which execute more operations one after the other. So if
   all ranks reach their end in the quotient, all ranks of the program reach theirs.

Complexity. A few operations per instruction, by built-in functions over all ranks.

Exact: a program that is accepted here is accepted by ``order.run`` with all ranks, which tests
compare. This module refuses nothing. A program that is wrong, or that has messages or slices in
time, is left to ``order.run`` with all ranks, which reports the error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, cast

from runtime.program.program import Collective, Exchange, Group, Load, Local, Program, Run
from runtime.program.validate.alike import Form, Forms, Row, matched_on_all
from runtime.program.validate.content import Content, Place, PlanTensor
from runtime.program.validate.errors import ProgramError, Unsound
from runtime.program.validate.frame import RankState, Waits
from runtime.program.validate.local import DeviceCheck, Holdings
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.movement import Member, collected
from runtime.program.validate.order import Key, Lanes, OrderError, Posted, run
from runtime.program.validate.passes import PassesCheck
from runtime.program.validate.segments import (
    Block,
    MeetingBlock,
    RepeatedBlock,
    SegmentBlock,
    blocks_of,
)
from runtime.program.validate.sync import Sync, parts_of
from runtime.program.validate.transposed import is_transposed

Column = Sequence[Place]
"""The places of a register, by rank."""

_structure = attrgetter("source", "target", "position")


class _Differs(Exception):
    """The ranks cannot be followed together."""


class NamedGroups:
    """The groups that the ranks name for the same instruction. Raises _Differs if the members of a
    group do not all name it."""

    def __init__(self, by_rank: Sequence[Group]) -> None:
        self.by_rank = by_rank
        self.distinct = list(dict.fromkeys({id(group): group for group in by_rank}.values()))
        for group in self.distinct:
            if any(by_rank[member] is not group and by_rank[member] != group for member in group):
                raise _Differs


class ClassLanes(Lanes):
    """Lanes in which one rank stands for each class."""

    def __init__(self, losses: Sequence[object], groups: Collection[NamedGroups]) -> None:
        """``losses``: the register with a part of the loss, or None, by rank. ``groups``: those of
        all instructions."""
        super().__init__()
        first: dict[int, int] = {}
        self.stands_for = [
            first.setdefault(color, rank) for rank, color in enumerate(_classes(losses, groups))
        ]
        """For each rank: the rank that is followed in its place."""
        self.followed = tuple(first.values())
        """The ranks that are followed, one per class."""

    def post(self, key: Key, operation: Posted) -> Posted:
        if operation.meet is None:
            raise _Differs
        operation.group = tuple(sorted({self.stands_for[rank] for rank in operation.group}))
        return super().post(key if isinstance(key, str) else operation.group, operation)


def _classes(losses: Sequence[object], groups: Collection[NamedGroups]) -> list[int]:
    """The class of each rank, by color refinement: the coarsest classes such that the groups of two
    ranks of a class, for any instruction, contain the same classes. O(rounds * instructions *
    ranks)."""
    count, colors = 0, _numbered(losses)
    while count < (now := len(set(colors))):
        count = now
        for named in groups:
            met = {group: frozenset([colors[rank] for rank in group]) for group in named.distinct}
            colors = _numbered(
                [(color, met[group]) for color, group in zip(colors, named.by_rank, strict=True)]
            )
    return colors


def _numbered(values: Sequence[object]) -> list[int]:
    """Replace values by numbers: equal values by equal numbers, counted from 0."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def follow_together(
    meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str, itemsize: int
) -> list[Holdings] | None:
    """Follow all ranks together. Return the contents that ``ends`` checks, by rank. None if the
    ranks have to be followed each by itself."""
    first = programs[0]
    if len(programs) == 1 or not all(_is_like(program, first) for program in programs):
        return None
    blocks = [blocks_of(program.instructions, forms=forms) for program in programs]
    if not all(_have_one_structure(of_ranks) for of_ranks in _zipped(blocks)):
        return None
    all_ranks = _AllRanks(meaning, programs, forms, where)
    try:
        all_ranks.forward(blocks)
        all_ranks.backward(itemsize)
    except (_Differs, Unsound, ProgramError, OrderError):
        return None
    return all_ranks.ends()


def _is_like(program: Program, first: Program) -> bool:
    """Whether two programs agree outside of their instructions, and have no slices."""
    return (
        program.pipeline is None
        and program.active == first.active
        and [w.register for w in program.weights] == [w.register for w in first.weights]
        and [r.is_known for r in program.running] == [r.is_known for r in first.running]
    )


def _zipped(blocks: Sequence[tuple[Block, ...]]) -> Iterable[tuple[Block, ...]]:
    """The blocks at each position, by rank. One empty tuple if the numbers of blocks differ."""
    if len(set(map(len, blocks))) > 1:
        return [()]
    return zip(*blocks, strict=True)


def _have_one_structure(blocks: Sequence[Block]) -> bool:
    """Whether the blocks of all ranks at one position have the same structure."""
    if not blocks or len(set(map(type, blocks))) > 1:
        return False
    first = blocks[0]
    if isinstance(first, SegmentBlock):
        segments = cast("Sequence[SegmentBlock]", blocks)
        structure = [_part_structure(part) for part in first.parts]
        return all([_part_structure(p) for p in own.parts] == structure for own in segments)
    if isinstance(first, RepeatedBlock):
        repeated = cast("Sequence[RepeatedBlock]", blocks)
        structures = {
            (b.position, type(b.instruction), *_structure(b.instruction)) for b in repeated
        }
        return len(structures) == 1 and not isinstance(first.instruction, Exchange)
    meetings = cast("Sequence[MeetingBlock]", blocks)
    kinds = {(type(block.instruction), type(block.adjoint)) for block in meetings}
    structure = _structure(first.instruction)
    return (
        len(kinds) == 1
        and not isinstance(first.instruction, Exchange)
        and all(_structure(block.instruction) == structure for block in meetings)
    )


def _part_structure(part: Row | Local) -> object:
    """The structure of a part of a segment. For a row it is the form, of which ``Forms`` keeps one
    object."""
    if isinstance(part, Row):
        return part.form
    return type(part), *(() if isinstance(part, Run) else (part.source, part.target))


class _AllRanks:
    """All ranks, and the contents of their registers. Methods raise _Differs, Unsound, ProgramError
    or OrderError if the ranks cannot be followed together."""

    def __init__(
        self, meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str
    ) -> None:
        self._meaning, self._programs = meaning, programs
        self._devices = [DeviceCheck(program, meaning, forms) for program in programs]
        self._groups: dict[tuple[int, ...], NamedGroups] = {}
        """The groups of each instruction, by the ids of the ranks' objects."""
        self._ranks = [RankState(device, Lanes(), where) for device in self._devices]
        self._shapes = [program.shapes for program in programs]
        self._tensors: dict[str, PlanTensor] = {}
        self._places: dict[str, Column] = {}
        self._kept = [Holdings() for _ in programs]
        """The contents of registers that were followed rank by rank."""

    def forward(self, blocks: Sequence[tuple[Block, ...]]) -> None:
        self._load()
        for of_ranks in zip(*blocks, strict=True):
            if isinstance(of_ranks[0], RepeatedBlock):
                continue  # it belongs to the backward pass
            if isinstance(of_ranks[0], MeetingBlock):
                self._meet(cast("Sequence[MeetingBlock]", of_ranks))
                continue
            segments = cast("Sequence[SegmentBlock]", of_ranks)
            for parts in zip(*[segment.parts for segment in segments], strict=True):
                if isinstance(parts[0], Row):
                    self._row(cast("Sequence[Row]", parts))
                else:
                    self._local(cast("Sequence[Local]", parts))

    def backward(self, itemsize: int) -> None:
        """Follow the backward pass of one rank of each class."""
        syncs = [Sync(rank, itemsize) for rank in self._ranks]
        self._check_sums(syncs)
        losses = [program.loss for program in self._programs]
        lanes = ClassLanes(losses, self._groups.values())
        steps: dict[int, Waits] = {}
        for rank in lanes.followed:
            contents = self._kept[rank].contents
            contents.tensors.update(self._tensors)
            contents.places.update({name: column[rank] for name, column in self._places.items()})
            self._ranks[rank].lanes = lanes
            check = PassesCheck(self._ranks[rank], syncs[rank])
            steps[rank] = check.back_alone(self._kept[rank])
        run(steps, lanes)

    def _named(self, groups: Sequence[Group]) -> NamedGroups:
        """The groups that the ranks name for an instruction, by rank."""
        key = tuple(map(id, groups))
        named = self._groups.get(key)
        if named is None:
            named = self._groups[key] = NamedGroups(groups)
        return named

    def ends(self) -> list[Holdings]:
        """The contents of the loss, the outputs and the statistics, by rank."""
        for rank, (program, kept) in enumerate(zip(self._programs, self._kept, strict=True)):
            loss = (program.loss,) if program.loss is not None else ()
            for name in {*program.outputs, *loss} & self._tensors.keys():
                kept.contents[name] = Content(self._tensors[name], self._places[name][rank])
        return self._kept

    def _load(self) -> None:
        loads = [[i for i in p.instructions if isinstance(i, Load)] for p in self._programs]
        if len(set(map(len, loads))) > 1:
            raise _Differs
        for of_ranks in zip(*loads, strict=True):
            contents = [d.load(load) for d, load in zip(self._devices, of_ranks, strict=True)]
            self._hold([load.target for load in of_ranks], contents)

    def _hold(self, names: Sequence[str], contents: Sequence[Content]) -> None:
        """Set the content of a register on all ranks. ``names``: its name, by rank."""
        name, tensor = names[0], contents[0].tensor
        if len(set(names)) > 1 or any(content.tensor is not tensor for content in contents):
            raise _Differs
        self._take(name, tensor, [content.place for content in contents])

    def _take(self, name: str, tensor: PlanTensor, column: Column) -> None:
        if name in self._tensors:
            raise _Differs
        self._tensors[name], self._places[name] = tensor, column

    def _content(self, name: str) -> list[Content]:
        """The content of a register, by rank."""
        if name not in self._tensors:
            raise _Differs
        tensor = self._tensors[name]
        return [Content(tensor, place) for place in self._places[name]]

    def _row(self, rows: Sequence[Row]) -> None:
        form = rows[0].form
        if not form.is_regular:
            raise _Differs
        try:
            tensors = [self._tensors[name] for name in form.reads]
        except KeyError:
            raise _Differs from None
        places = [self._places[name] for name in form.reads]
        results = matched_on_all(rows, tensors, places, self._shapes)
        if results is None:
            self._learn(form, rows[0], tensors)
            results = matched_on_all(rows, tensors, places, self._shapes)
        if results is None:
            self._row_by_rank(rows)
            return
        for name, tensor, column in zip(form.results, *results, strict=True):
            self._take(name, tensor, column)

    def _learn(self, form: Form, row: Row, tensors: Sequence[PlanTensor]) -> None:
        """Check a row on rank 0, and keep it as a match of its form."""
        holdings = Holdings()
        for name, tensor in zip(form.reads, tensors, strict=True):
            holdings.contents[name] = Content(tensor, self._places[name][0])
        self._run(0, row, holdings)
        self._devices[0].learn(row, tensors, holdings)

    def _row_by_rank(self, rows: Sequence[Row]) -> None:
        """Follow a row rank by rank. Needed for operators that also return statistics."""
        form = rows[0].form
        for rank, row in enumerate(rows):
            contents = self._kept[rank].contents
            for name in form.reads:
                contents[name] = Content(self._tensors[name], self._places[name][rank])
            self._run(rank, row, self._kept[rank])
        for name in form.results:
            by_rank = [kept.contents.get(name) for kept in self._kept]
            if any(content is not None for content in by_rank):
                self._hold([name] * len(by_rank), [_present(content) for content in by_rank])

    def _run(self, rank: int, row: Row, kept: Holdings) -> None:
        for operator in row.runs:
            operands = [_present(kept.contents.get(name)) for name in operator.operands]
            self._devices[rank].run(operator, operands, 0, kept)

    def _local(self, parts: Sequence[Local]) -> None:
        """Follow local exchanges, and aliases for a join."""
        source, target = cast("Any", parts[0]).source, cast("Any", parts[0]).target
        if source is None or target is None:
            raise _Differs
        contents: list[Content] = []
        for device, part, content in zip(self._devices, parts, self._content(source), strict=True):
            if isinstance(part, Exchange):
                contents.append(device.together(device.sliced(part, content), target))
            elif isinstance(part, Run):
                raise _Differs
            else:
                contents.append(device.alias(part, content))
        self._hold([target] * len(contents), contents)

    def _meet(self, meetings: Sequence[MeetingBlock]) -> None:
        """Follow a collective of all ranks."""
        instructions = cast("Sequence[Collective]", [block.instruction for block in meetings])
        source, target = instructions[0].source, instructions[0].target
        groups = [collective.group for collective in instructions]
        for rank, meeting in zip(self._ranks, meetings, strict=True):
            rank.check_group(cast("Collective", meeting.instruction).group)
            if not is_transposed(meeting.instruction, meeting.adjoint):
                raise _Differs
        sources = self._content(source)
        if any(target not in shapes for shapes in self._shapes):
            raise _Differs
        shapes = [tuple(of_rank[target]) for of_rank in self._shapes]
        by_rank: list[Content | None] = [None] * len(groups)
        for group in self._named(groups).distinct:
            members = [Member(r, instructions[r], sources[r], shapes[r]) for r in group]
            for rank, content in zip(group, collected(members, self._meaning.places), strict=True):
                by_rank[rank] = content
        contents = [_present(content) for content in by_rank]
        if [content.place.extent for content in contents] != shapes:
            raise _Differs
        self._hold([target] * len(contents), contents)

    def _check_sums(self, syncs: Sequence[Sync]) -> None:
        """Raise _Differs unless all ranks sum the same gradients in the same order, and the members
        of each group the same blocks."""
        by_rank = [sync.buckets for sync in syncs]
        if len(set(map(len, by_rank))) > 1:
            raise _Differs
        for buckets in zip(*by_rank, strict=True):
            structures = {(b.position, *[weight.register for weight in b.weights]) for b in buckets}
            if len(structures) > 1:
                raise _Differs
            for rank, bucket in zip(self._ranks, buckets, strict=True):
                if len(bucket.group) > 1:
                    rank.check_group(bucket.group)
            for group in self._named([bucket.group for bucket in buckets]).distinct:
                if len({parts_of(buckets[rank]) for rank in group}) > 1:
                    raise _Differs


def _present(content: Content | None) -> Content:
    """The content. Raises _Differs for None."""
    if content is None:
        raise _Differs
    return content
