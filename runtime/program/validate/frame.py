"""Follow one pass of a rank over a part of its program, symbolically.

It follows ``runtime.execute.frame`` step by step, forward and backward. Registers hold contents in
place of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runtime.program.program import (
    Alias,
    Collective,
    Communication,
    Exchange,
    Group,
    PassName,
    Run,
    sources,
    targets,
)
from runtime.program.validate.alike import Row
from runtime.program.validate.content import Content, Fragment, Place, PlanTensor
from runtime.program.validate.errors import ProgramError, Unsound
from runtime.program.validate.local import DeviceCheck, Holdings
from runtime.program.validate.movement import Member, arrived, collected, sent
from runtime.program.validate.order import Lanes, Posted, nothing
from runtime.program.validate.segments import (
    Block,
    MeetingBlock,
    RepeatedBlock,
    SegmentBlock,
    made_by,
)
from runtime.program.validate.transposed import is_transposed

Waits = Generator[Posted, None, None]


@dataclass
class RankState:
    """The state that the passes of a rank share."""

    device: DeviceCheck
    lanes: Lanes
    where: str
    batch: int = 0
    """The batch to which messages belong."""
    part: int = 0
    """The slice to which messages belong, counted from the first slice of the first batch."""
    pending: list[tuple[int, int, Posted]] = field(default_factory=list[tuple[int, int, Posted]])
    """Messages for which the rank has not waited yet, with their batch and slice."""
    graded: set[str] = field(default_factory=set[str])
    """The weights to whose gradients the current block has added."""
    filled: set[str] = field(default_factory=set[str])
    """The weights whose gradients count as complete."""
    weights: frozenset[str] = field(init=False)
    known_groups: frozenset[tuple[int, ...]] = field(init=False)
    _checked_groups: dict[int, Group] = field(default_factory=dict[int, "Group"])
    """Groups that were right, by id: groups are long, and many instructions share one object."""

    def __post_init__(self) -> None:
        program = self.device.program
        self.weights = frozenset(weight.register for weight in program.weights)
        self.known_groups = frozenset(program.groups)

    def wrong(self, what: object, problem: str) -> ProgramError:
        return ProgramError(self.where, self.device.rank, what, problem)

    def check_group(self, group: Group) -> None:
        """Raise Unsound unless a group contains this rank and is one of the program's groups."""
        if self._checked_groups.get(id(group)) is group:
            return
        rank = self.device.rank
        if rank not in group or tuple(sorted(set(group))) != group:
            raise Unsound(f"its group is {group}, expected rank {rank} in it, in order")
        if group not in self.known_groups:
            raise Unsound("its group is none of the program's")
        self._checked_groups[id(group)] = group

    def settle(self, is_due: Callable[[int, int], bool]) -> Waits:
        """Wait until messages have been sent. ``is_due``: which ones, by batch and slice."""
        due = [entry for entry in self.pending if is_due(entry[0], entry[1])]
        self.pending = [entry for entry in self.pending if not is_due(entry[0], entry[1])]
        for _, _, operation in due:
            yield operation


@dataclass
class FrameCheck:
    """The registers of one part of the program: before the slices, a slice, or the tail."""

    rank: RankState
    blocks: Sequence[Block]
    part: int
    """The slice in time."""
    token: tuple[int, str, int]
    """The batch, the part of the program, and the slice."""
    outer: FrameCheck | None = None
    """The frame whose registers this one reads as well."""
    checks: bool = True
    """Whether the contents of registers are followed. Following them in one batch is enough."""
    sums: dict[str, list[Fragment]] = field(default_factory=dict[str, list[Fragment]])
    """The registers of the tail to which slices add, and the blocks added so far."""
    known: set[str] = field(default_factory=set[str])
    """The registers in ``sums`` that have a gradient."""
    kept: Holdings = field(default_factory=Holdings)
    """The contents of this frame's registers."""
    needed: set[str] = field(default_factory=set[str])
    """The registers that have a gradient."""

    def __post_init__(self) -> None:
        self.made = made_by(self.blocks)
        self.loads: set[str] = set()

    @cached_property
    def _meetings(self) -> Mapping[int, tuple[int, Communication]]:
        """The communications by position, each with the number of its block."""
        numbered = enumerate(self.blocks)
        return {
            block.instruction.position: (number, block.instruction)
            for number, block in numbered
            if isinstance(block, MeetingBlock)
        }

    def content(self, name: str) -> Content:
        content = self.found(name)
        if content is None:
            raise Unsound(f"reads {name}, which nothing has made")
        return content

    def found(self, name: str) -> Content | None:
        """The content of a register of this frame or of an outer one. None if nothing wrote it."""
        content = self.kept.contents.get(name)
        return content if content is not None or self.outer is None else self.outer.found(name)

    def forward(self) -> Waits:
        for block in self.blocks:
            if isinstance(block, SegmentBlock):
                if self.checks:
                    for part in block.parts:
                        self._row(part) if isinstance(part, Row) else self._local(part)
            elif isinstance(block, MeetingBlock):
                yield from self._meet(block)

    def backward(self, done: Callable[[int], None] | None = None) -> Waits:
        """Follow the backward pass. ``done`` is called with the number of each finished block."""
        for number in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[number]
            self.rank.graded.clear()
            if isinstance(block, SegmentBlock):
                self._back(block)
            elif isinstance(block, MeetingBlock):
                yield from self._meet_back(block)
                self.rank.graded.clear()  # the runtime has no gradient hook here
            else:
                yield from self._again(block, number)
            if done is not None:
                done(number)

    def _back(self, segment: SegmentBlock) -> None:
        """The registers that a segment reads have gradients if its results have."""
        needed = self.needed
        for part in reversed(segment.parts):
            if not isinstance(part, Row):
                if not needed.isdisjoint(targets(part)):
                    self._need_all(sources(part))
                continue
            results, from_outside = part.form.needs(needed)
            if results.isdisjoint(self.rank.weights):
                needed |= results
            else:
                self._need_all(sorted(results))
            self._need_all(from_outside)

    def _need_all(self, names: Iterable[str]) -> None:
        made, weights = self.made, self.rank.weights
        for name in names:
            if name in made and name not in weights:
                self.needed.add(name)
            else:
                self.need(name)

    def need(self, name: str) -> None:
        """Note that a register has a gradient, in the frame that holds it."""
        if name in self.rank.weights:
            if name in self.rank.filled:
                raise self.rank.wrong(name, "has a gradient after its gradients have been summed")
            self.rank.graded.add(name)
        frame = self
        while frame.outer is not None and name not in frame.made and name not in frame.loads:
            frame = frame.outer
        frame.needed.add(name)

    def lost(self) -> str | None:
        """A register whose gradient is lost: it depends on a weight and has a gradient, but is not
        active. None if there is none."""
        active = self.rank.device.program.active
        for name in sorted(self.needed - active):
            content = self.kept.contents.get(name)
            if content is not None and content.tensor.trains:
                return name
        return None

    def _row(self, row: Row) -> None:
        """Follow a row of operators: by the match of another rank, or operator by operator."""
        device, contents = self.rank.device, self.kept.contents
        reads = row.form.reads
        tensors, places = (
            list(map(contents.tensors.get, reads)),
            list(map(contents.places.get, reads)),
        )
        if None in tensors:
            self._from_outer(reads, tensors, places)
        if device.row(row, tensors, places, self.part, self.kept):
            return
        for instruction in row.runs:
            self._local(instruction)
        device.learn(row, tensors, self.kept)

    def _from_outer(
        self, names: Sequence[str], tensors: list[PlanTensor | None], places: list[Place | None]
    ) -> None:
        """Fill in the contents of registers that an outer frame holds."""
        for number, name in enumerate(names):
            if tensors[number] is None and self.outer is not None:
                content = self.outer.found(name)
                if content is not None:
                    tensors[number], places[number] = content

    def _local(self, instruction: Run | Alias | Exchange) -> None:
        try:
            if isinstance(instruction, Run):
                operands = [self.content(name) for name in instruction.operands]
                self.rank.device.run(instruction, operands, self.part, self.kept)
            elif isinstance(instruction, Alias):
                content = self.rank.device.alias(instruction, self.content(instruction.source))
                self._keep(instruction.target, content)
            else:
                self._put(
                    instruction, self.rank.device.sliced(instruction, self._source(instruction))
                )
        except Unsound as error:
            raise self.rank.wrong(instruction, str(error)) from error

    def _source(self, instruction: Communication) -> Content | None:
        return None if instruction.source is None else self.content(instruction.source)

    def _keep(self, name: str, content: Content) -> None:
        if name in self.kept.contents:
            raise Unsound(f"makes {name}, which is made already")
        self.kept.contents[name] = content

    def _put(self, instruction: Communication, parts: list[Fragment]) -> None:
        target = instruction.target
        if target is None:
            if parts:
                raise Unsound("gets something and has no target")
        elif target in self.sums:
            self.sums[target] += parts
        else:
            self._keep(target, self.rank.device.together(parts, target))

    def _meet(self, block: MeetingBlock) -> Waits:
        instruction = block.instruction
        try:
            source = self._source(instruction) if self.checks else None
            if self.checks and not is_transposed(instruction, block.adjoint):
                raise Unsound("its backward pass is not the transpose of its forward pass")
            if not isinstance(instruction, Exchange):
                yield from self._collective(instruction, source, "forward")
                return
            outgoing = sent(instruction, source) if self.checks else {}
            received = yield from self._messages(instruction, outgoing, "forward")
            if self.checks:
                self._put(instruction, arrived(instruction, source, received))
        except Unsound as error:
            raise self.rank.wrong(instruction, str(error)) from error

    def _meet_back(self, block: MeetingBlock) -> Waits:
        instruction = block.instruction
        is_active = isinstance(instruction, Exchange) and instruction.active
        active, target = self.rank.device.program.active, instruction.target
        if not is_active and target not in active:
            return
        has_gradient = target in (self.known if target in self.sums else self.needed)
        adjoint = block.adjoint
        if isinstance(adjoint, Exchange):
            outgoing = dict.fromkeys((part.peer for part in adjoint.sends), has_gradient)
            received = yield from self._messages(adjoint, outgoing, "backward")
            needed = any(received.values()) or (has_gradient and bool(adjoint.kept))
        else:
            needed = yield from self._collective_back(adjoint, has_gradient)
        if instruction.source is not None and needed:
            self.need(instruction.source)

    def _again(self, block: RepeatedBlock, number: int) -> Waits:
        """Follow a repeated communication of the forward pass. Its result is known, so that only
        its order among other communications is followed."""
        again = block.instruction
        at, meeting = self._meetings.get(again.position, (number, None))
        if meeting != again or at >= number:
            problem = "is done again, expected a communication from before it"
            raise self.rank.wrong(again, problem)
        try:
            if isinstance(again, Exchange):
                yield from self._messages(again, {}, "backward", again=True)
                return
            operation = self._posted(again, None, "backward", again=True)
            operation.meet = nothing
            self.rank.lanes.post(again.group, operation)
            yield operation
        except Unsound as error:
            raise self.rank.wrong(again, str(error)) from error

    def _messages(
        self,
        exchange: Exchange,
        outgoing: Mapping[int, Any],
        way: PassName,
        *,
        again: bool = False,
    ) -> Generator[Posted, None, dict[int, Any]]:
        """Post messages, and wait if any is received. Return the payload from each peer."""
        rank = self.rank
        sends = {part.peer: outgoing.get(part.peer) for part in exchange.sends}
        receives = {part.peer: None for part in exchange.receives}
        own_rank = rank.device.rank
        for peer in (*sends, *receives):
            if not 0 <= peer < rank.device.program.ranks or peer == own_rank:
                raise Unsound(f"has messages with rank {peer}, expected another rank")
        if not sends and not receives:
            return {}
        channel = exchange.channel(way)
        if exchange.stages is not None:
            members = rank.device.program.channels.get(channel, ())
            if not {own_rank, *sends, *receives} <= {*members}:
                raise Unsound(f"goes by {channel}, expected a channel of all who take part")
        token = (way, again, *self.token, exchange.position)
        operation = Posted(own_rank, exchange, token, sends=dict(sends), receives=dict(receives))
        rank.lanes.post(channel, operation)
        if receives:
            yield operation
        else:
            rank.pending.append((rank.batch, rank.part, operation))
        return operation.found or {}

    def _collective(self, collective: Collective, source: Content | None, way: PassName) -> Waits:
        target = collective.target
        if target in self.sums:
            raise Unsound(f"adds to {target}, expected messages")
        operation = self._posted(collective, source, way)
        device = self.rank.device
        if self.checks:
            shape = device.program.shapes.get(target)
            if shape is None or source is None:
                raise Unsound(f"{target} has no shape")
            operation.payload = Member(device.rank, collective, source, tuple(shape))

            def meet(members: list[Posted]) -> None:
                contents = collected([m.payload for m in members], device.meaning.places)
                for member, content in zip(members, contents, strict=True):
                    member.found = content

            operation.meet = meet
        self.rank.lanes.post(collective.group, operation)
        yield operation
        if self.checks:
            device.shaped(target, operation.found.place)
            self._keep(target, operation.found)

    def _collective_back(
        self, adjoint: Collective, has_gradient: bool
    ) -> Generator[Posted, None, bool]:
        """Follow the backward pass of a collective. Return whether its source has a gradient."""
        operation = self._posted(adjoint, has_gradient, "backward")

        def meet(members: list[Posted]) -> None:
            needed = any(member.payload for member in members)
            for member in members:
                member.found = needed

        operation.meet = meet
        self.rank.lanes.post(adjoint.group, operation)
        yield operation
        return bool(operation.found)

    def _posted(
        self, collective: Collective, payload: object, way: PassName, *, again: bool = False
    ) -> Posted:
        rank, group = self.rank.device.rank, collective.group
        self.rank.check_group(group)
        token = (way, again, type(collective).__name__, *self.token, collective.position)
        return Posted(rank, collective, token, group, payload, meet=nothing)
