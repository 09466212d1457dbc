"""Follow all ranks together where their programs have the same structure.

Problem. Where all ranks do the same to blocks of their own, as with data parallelism on hundreds of
devices, following each rank by itself finds the same thing hundreds of times.

Method. Programs have one *structure* when they differ in the blocks, tasks and groups alone: the
same instructions on the same registers in the same order, the same weights and the same gradients.
Then all ranks are followed block by block, with a column of places for each register.

1. *Forward.* A row of operators is right where the columns of a reading are those that were read,
   and each task is the program's (``alike``). A collective is worked out once for each group
   (``movement``), whose members all have to name this group.
2. *Backward.* Which registers have a gradient follows from the structure and from whose part of
   the loss counts. Ranks that are alike in this are a *class*, and one of each class is followed
   (``order.run``) in the quotient: in the place of a group stand the classes of its members, which
   have to be the same for all ranks of a class. A member of a class finds in its own group what
   the one that is followed finds, so all of a class go on alike.
3. *Order.* In the quotient fewer groups do more things one after the other. So where all come to
   their ends there, all ranks come to theirs.

Nothing is refused here: what is not right, or has messages or slices in time, is left to
``order.run`` with all ranks, which says what is wrong. Exact: what is accepted here is accepted
there, which tests compare. Complexity: a few steps for each instruction, of built-in functions over
all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, cast

from runtime.program.program import Collective, Exchange, Group, Load, Local, Program, Run
from runtime.program.validate.alike import Form, Forms, Row, made_by_all
from runtime.program.validate.content import Content, Place, PlanTensor
from runtime.program.validate.errors import ProgramError, Unsound
from runtime.program.validate.frame import Rank, Waits
from runtime.program.validate.local import DeviceCheck, Holdings
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.movement import Member, collected
from runtime.program.validate.order import Blame, Key, Lanes, Posted, run
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
"""Where what a register holds lies, by rank."""

_structure = attrgetter("source", "target", "position")


class _Differs(Exception):
    """Ranks are not to be followed together."""


class NamedGroups:
    """The groups that all ranks name in one place."""

    def __init__(self, of: Sequence[Group]) -> None:
        self.of = of
        self.each = list(dict.fromkeys({id(group): group for group in of}.values()))
        """Each once."""
        for group in self.each:
            if any(of[member] is not group and of[member] != group for member in group):
                raise _Differs


class ClassLanes(Lanes):
    """Lanes of ranks that each stand for a class."""

    def __init__(self, losses: Sequence[object], groups: Collection[NamedGroups]) -> None:
        """``losses``: by rank, what it has of the loss; ``groups``: all that are named."""
        super().__init__()
        first: dict[int, int] = {}
        self.stands_for = [
            first.setdefault(color, rank) for rank, color in enumerate(_classes(losses, groups))
        ]
        """By rank, who is followed in its place."""
        self.followed = tuple(first.values())

    def post(self, key: Key, operation: Posted) -> Posted:
        if operation.meet is None:
            raise _Differs
        operation.group = tuple(sorted({self.stands_for[rank] for rank in operation.group}))
        return super().post(key if isinstance(key, str) else operation.group, operation)


def _classes(losses: Sequence[object], groups: Collection[NamedGroups]) -> list[int]:
    """The coarsest classes of ranks whose like meet the like in each of some places: by color
    refinement, O(rounds * places * ranks)."""
    count, colors = 0, _numbered(losses)
    while count < (now := len(set(colors))):
        count = now
        for own in groups:
            met = {group: frozenset([colors[rank] for rank in group]) for group in own.each}
            colors = _numbered(
                [(color, met[group]) for color, group in zip(colors, own.of, strict=True)]
            )
    return colors


def _numbered(values: Sequence[object]) -> list[int]:
    known: dict[object, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def followed(
    meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str, itemsize: int
) -> list[Holdings] | None:
    """What ranks hold in the end that ends are checked by; None where they are to be followed each
    by itself."""
    first = programs[0]
    if len(programs) == 1 or not all(_is_like(program, first) for program in programs):
        return None
    blocks = [blocks_of(program.instructions, forms=forms) for program in programs]
    if not all(_have_one_structure(own) for own in _zipped(blocks)):
        return None
    team = _Team(meaning, programs, forms, where)
    try:
        team.forward(blocks)
        team.backward(itemsize)
    except (_Differs, Unsound, ProgramError, Blame):
        return None
    return team.ends()


def _is_like(program: Program, first: Program) -> bool:
    return (
        program.pipeline is None
        and program.active == first.active
        and [w.register for w in program.weights] == [w.register for w in first.weights]
        and [r.is_known for r in program.running] == [r.is_known for r in first.running]
    )


def _zipped(blocks: Sequence[tuple[Block, ...]]) -> Iterable[tuple[Block, ...]]:
    """By block, that of each rank; one that is empty where some rank has more."""
    if len(set(map(len, blocks))) > 1:
        return [()]
    return zip(*blocks, strict=True)


def _have_one_structure(blocks: Sequence[Block]) -> bool:
    if not blocks or len(set(map(type, blocks))) > 1:
        return False
    one = blocks[0]
    if isinstance(one, SegmentBlock):
        segments = cast("Sequence[SegmentBlock]", blocks)
        wanted = [_part_structure(part) for part in one.parts]
        return all([_part_structure(p) for p in own.parts] == wanted for own in segments)
    if isinstance(one, RepeatedBlock):
        repeated = cast("Sequence[RepeatedBlock]", blocks)
        structures = {
            (b.position, type(b.instruction), *_structure(b.instruction)) for b in repeated
        }
        return len(structures) == 1 and not isinstance(one.instruction, Exchange)
    meetings = cast("Sequence[MeetingBlock]", blocks)
    kinds = {(type(own.instruction), type(own.adjoint)) for own in meetings}
    structure = _structure(one.instruction)
    return (
        len(kinds) == 1
        and not isinstance(one.instruction, Exchange)
        and all(_structure(own.instruction) == structure for own in meetings)
    )


def _part_structure(part: Row | Local) -> object:
    """A row's form, which is one object for all that are alike."""
    if isinstance(part, Row):
        return part.form
    return type(part), *(() if isinstance(part, Run) else (part.source, part.target))


class _Team:
    """All ranks, and what their registers hold."""

    def __init__(
        self, meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str
    ) -> None:
        self._meaning, self._programs = meaning, programs
        self._devices = [DeviceCheck(program, meaning, forms) for program in programs]
        self._groups: dict[tuple[int, ...], NamedGroups] = {}
        """All that have been named, by the objects that they are."""
        self._ranks = [Rank(device, Lanes(), where) for device in self._devices]
        self._shapes = [program.shapes for program in programs]
        self._tensors: dict[str, PlanTensor] = {}
        self._places: dict[str, Column] = {}
        self._kept = [Holdings() for _ in programs]
        """What ranks were found to make one by one."""

    def forward(self, blocks: Sequence[tuple[Block, ...]]) -> None:
        self._load()
        for own in zip(*blocks, strict=True):
            if isinstance(own[0], RepeatedBlock):
                continue  # forward it is nothing
            if isinstance(own[0], MeetingBlock):
                self._meet(cast("Sequence[MeetingBlock]", own))
                continue
            segments = cast("Sequence[SegmentBlock]", own)
            for parts in zip(*[segment.parts for segment in segments], strict=True):
                if isinstance(parts[0], Row):
                    self._row(cast("Sequence[Row]", parts))
                else:
                    self._local(cast("Sequence[Local]", parts))

    def backward(self, itemsize: int) -> None:
        """One rank of each class."""
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
            own = PassesCheck(self._ranks[rank], syncs[rank])
            steps[rank] = own.back_alone(self._kept[rank])
        run(steps, lanes)

    def _named(self, groups: Sequence[Group]) -> NamedGroups:
        """Groups of all ranks. Raises _Differs where members name another."""
        key = tuple(map(id, groups))
        named = self._groups.get(key)
        if named is None:
            named = self._groups[key] = NamedGroups(groups)
        return named

    def ends(self) -> list[Holdings]:
        """What each rank holds of the loss and the outputs, and its statistics."""
        for rank, (program, kept) in enumerate(zip(self._programs, self._kept, strict=True)):
            loss = (program.loss,) if program.loss is not None else ()
            for name in {*program.outputs, *loss} & self._tensors.keys():
                kept.contents[name] = Content(self._tensors[name], self._places[name][rank])
        return self._kept

    def _load(self) -> None:
        loads = [[i for i in p.instructions if isinstance(i, Load)] for p in self._programs]
        if len(set(map(len, loads))) > 1:
            raise _Differs
        for own in zip(*loads, strict=True):
            made = [d.load(load) for d, load in zip(self._devices, own, strict=True)]
            self._hold([load.target for load in own], made)

    def _hold(self, names: Sequence[str], made: Sequence[Content]) -> None:
        """What each rank has made, in a register of its own."""
        name, tensor = names[0], made[0].tensor
        if len(set(names)) > 1 or any(own.tensor is not tensor for own in made):
            raise _Differs
        self._take(name, tensor, [own.place for own in made])

    def _take(self, name: str, tensor: PlanTensor, column: Column) -> None:
        if name in self._tensors:
            raise _Differs
        self._tensors[name], self._places[name] = tensor, column

    def _content(self, name: str) -> list[Content]:
        """What a register holds, by rank."""
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
        made = made_by_all(rows, tensors, places, self._shapes)
        if made is None:
            self._learn(form, rows[0], tensors)
            made = made_by_all(rows, tensors, places, self._shapes)
        if made is None:
            self._each(rows)
            return
        for name, tensor, column in zip(form.results, *made, strict=True):
            self._take(name, tensor, column)

    def _learn(self, form: Form, row: Row, tensors: Sequence[PlanTensor]) -> None:
        """A reading of a form, as rank 0 has it."""
        known = Holdings()
        for name, tensor in zip(form.reads, tensors, strict=True):
            known.contents[name] = Content(tensor, self._places[name][0])
        self._run(0, row, known)
        self._devices[0].learn(row, tensors, known)

    def _each(self, rows: Sequence[Row]) -> None:
        """Operators that make statistics too are looked at one by one."""
        form = rows[0].form
        for rank, row in enumerate(rows):
            own = self._kept[rank].contents
            for name in form.reads:
                own[name] = Content(self._tensors[name], self._places[name][rank])
            self._run(rank, row, self._kept[rank])
        for name in form.results:
            made = [kept.contents.get(name) for kept in self._kept]
            if any(own is not None for own in made):
                self._hold([name] * len(made), [_known(own) for own in made])

    def _run(self, rank: int, row: Row, kept: Holdings) -> None:
        for operator in row.runs:
            given = [_known(kept.contents.get(name)) for name in operator.operands]
            self._devices[rank].run(operator, given, 0, kept)

    def _local(self, parts: Sequence[Local]) -> None:
        """Slices, and pieces that become partials of a join."""
        source, target = cast("Any", parts[0]).source, cast("Any", parts[0]).target
        if source is None or target is None:
            raise _Differs
        made: list[Content] = []
        for device, part, given in zip(self._devices, parts, self._content(source), strict=True):
            if isinstance(part, Exchange):
                made.append(device.together(device.sliced(part, given), target))
            elif isinstance(part, Run):
                raise _Differs
            else:
                made.append(device.alias(part, given))
        self._hold([target] * len(made), made)

    def _meet(self, meetings: Sequence[MeetingBlock]) -> None:
        instructions = cast("Sequence[Collective]", [own.instruction for own in meetings])
        source, target = instructions[0].source, instructions[0].target
        groups = [own.group for own in instructions]
        for rank, meeting in zip(self._ranks, meetings, strict=True):
            rank.check_group(cast("Collective", meeting.instruction).group)
            if not is_transposed(meeting.instruction, meeting.adjoint):
                raise _Differs
        given = self._content(source)
        if any(target not in own for own in self._shapes):
            raise _Differs
        shapes = [tuple(own[target]) for own in self._shapes]
        made: list[Content | None] = [None] * len(groups)
        for group in self._named(groups).each:
            members = [Member(r, instructions[r], given[r], shapes[r]) for r in group]
            for rank, content in zip(group, collected(members, self._meaning.places), strict=True):
                made[rank] = content
        contents = [_known(own) for own in made]
        if [own.place.extent for own in contents] != shapes:
            raise _Differs
        self._hold([target] * len(contents), contents)

    def _check_sums(self, syncs: Sequence[Sync]) -> None:
        """Gradients are summed up by all ranks at the same places, by members alike."""
        synced = [sync.buckets for sync in syncs]
        if len(set(map(len, synced))) > 1:
            raise _Differs
        for own in zip(*synced, strict=True):
            structures = {
                (bucket.position, *[weight.register for weight in bucket.weights]) for bucket in own
            }
            if len(structures) > 1:
                raise _Differs
            groups = [bucket.group for bucket in own]
            for rank, bucket in zip(self._ranks, own, strict=True):
                if len(bucket.group) > 1:
                    rank.check_group(bucket.group)
            for group in self._named(groups).each:
                if len({parts_of(own[rank]) for rank in group}) > 1:
                    raise _Differs


def _known(content: Content | None) -> Content:
    if content is None:
        raise _Differs
    return content
