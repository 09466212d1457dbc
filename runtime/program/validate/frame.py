"""Follow one pass of a rank over a part of its program, symbolically.

It goes step by step as ``runtime.execute.frame`` does, forward and back, with what registers hold
in place of numbers.
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
class Rank:
    """What the passes of a rank share. ``batch`` and ``part``: which slice is under way, of which
    batch, as messages are told of; ``pending``: messages that have not been waited for."""

    device: DeviceCheck
    lanes: Lanes
    where: str
    batch: int = 0
    part: int = 0
    pending: list[tuple[int, int, Posted]] = field(default_factory=list[tuple[int, int, Posted]])
    graded: set[str] = field(default_factory=set[str])
    """Weights that the block under way has added a gradient to."""
    filled: set[str] = field(default_factory=set[str])
    """Weights whose gradients are taken for complete."""
    weights: frozenset[str] = field(init=False)
    known_groups: frozenset[tuple[int, ...]] = field(init=False)
    _right: dict[int, Group] = field(default_factory=dict[int, "Group"])
    """Groups that were right, by object: they are long, and many instructions have the same."""

    def __post_init__(self) -> None:
        program = self.device.program
        self.weights = frozenset(weight.register for weight in program.weights)
        self.known_groups = frozenset(program.groups)

    def wrong(self, what: object, problem: str) -> ProgramError:
        return ProgramError(self.where, self.device.rank, what, problem)

    def check_group(self, group: Group) -> None:
        """Raise Unsound for a group that this rank can't meet."""
        if self._right.get(id(group)) is group:
            return
        rank = self.device.rank
        if rank not in group or tuple(sorted(set(group))) != group:
            raise Unsound(f"its group is {group}, expected rank {rank} in it, in order")
        if group not in self.known_groups:
            raise Unsound("its group is none of the program's")
        self._right[id(group)] = group

    def settle(self, upto: Callable[[int, int], bool]) -> Waits:
        """Wait for messages of some batches and slices to leave."""
        due = [entry for entry in self.pending if upto(entry[0], entry[1])]
        self.pending = [entry for entry in self.pending if not upto(entry[0], entry[1])]
        for _, _, operation in due:
            yield operation


@dataclass
class FrameCheck:
    """Registers of one part. ``checks``: whether what they hold is followed, as once is enough;
    ``sums``: of a later part, to which this one adds, and ``known`` those that have a gradient."""

    rank: Rank
    blocks: Sequence[Block]
    part: int
    token: tuple[int, str, int]
    """Which batch, which part of the program, and which slice."""
    outer: FrameCheck | None = None
    checks: bool = True
    sums: dict[str, list[Fragment]] = field(default_factory=dict[str, list[Fragment]])
    known: set[str] = field(default_factory=set[str])
    kept: Holdings = field(default_factory=Holdings)
    needed: set[str] = field(default_factory=set[str])
    """Registers that have a gradient."""

    def __post_init__(self) -> None:
        self.made = made_by(self.blocks)
        self.loads: set[str] = set()

    @cached_property
    def _meetings(self) -> Mapping[int, tuple[int, Communication]]:
        """By position, the number of a block that communicates, and what it does."""
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
        """What a register holds, of this frame or of an outer one."""
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
        """``done`` is told the number of each block that has been."""
        for number in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[number]
            self.rank.graded.clear()
            if isinstance(block, SegmentBlock):
                self._back(block)
            elif isinstance(block, MeetingBlock):
                yield from self._meet_back(block)
                self.rank.graded.clear()  # without a hook
            else:
                yield from self._again(block, number)
            if done is not None:
                done(number)

    def _back(self, segment: SegmentBlock) -> None:
        """What a segment makes has gradients, so what it reads has."""
        needed = self.needed
        for part in reversed(segment.parts):
            if not isinstance(part, Row):
                if not needed.isdisjoint(targets(part)):
                    self._need_all(sources(part))
                continue
            own, others = part.form.needs(needed)
            if own.isdisjoint(self.rank.weights):
                needed |= own
            else:
                self._need_all(sorted(own))
            self._need_all(others)

    def _need_all(self, names: Iterable[str]) -> None:
        made, weights = self.made, self.rank.weights
        for name in names:
            if name in made and name not in weights:
                self.needed.add(name)
            else:
                self.need(name)

    def need(self, name: str) -> None:
        """A register has a gradient."""
        if name in self.rank.weights:
            if name in self.rank.filled:
                raise self.rank.wrong(name, "has a gradient after its gradients have been summed")
            self.rank.graded.add(name)
        frame = self
        while frame.outer is not None and name not in frame.made and name not in frame.loads:
            frame = frame.outer
        frame.needed.add(name)

    def lost(self) -> str | None:
        """A register whose gradient is lost: it depends on a weight, and a loss on it."""
        active = self.rank.device.program.active
        for name in sorted(self.needed - active):
            content = self.kept.contents.get(name)
            if content is not None and content.tensor.trains:
                return name
        return None

    def _row(self, row: Row) -> None:
        """Operators in a row: as another rank's, or each by itself."""
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
        """What other frames hold of some registers."""
        for number, name in enumerate(names):
            if tensors[number] is None and self.outer is not None:
                content = self.outer.found(name)
                if content is not None:
                    tensors[number], places[number] = content

    def _local(self, instruction: Run | Alias | Exchange) -> None:
        try:
            if isinstance(instruction, Run):
                given = [self.content(name) for name in instruction.operands]
                self.rank.device.run(instruction, given, self.part, self.kept)
            elif isinstance(instruction, Alias):
                made = self.rank.device.alias(instruction, self.content(instruction.source))
                self._keep(instruction.target, made)
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
        known = isinstance(instruction, Exchange) and instruction.active
        active, target = self.rank.device.program.active, instruction.target
        if not known and target not in active:
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
        """A communication of the forward pass once more. It brings what it brought, so that only
        its place among all others is followed."""
        again = block.instruction
        at, meeting = self._meetings.get(again.position, (number, None))
        if meeting != again or at >= number:
            problem = "is done again, expected a communication from before it"
            raise self.rank.wrong(again, problem)
        try:
            if isinstance(again, Exchange):
                yield from self._messages(again, {}, "backward", again=True)
                return
            made = self._posted(again, None, "backward", again=True)
            made.meet = nothing
            self.rank.lanes.post(again.group, made)
            yield made
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
        rank = self.rank
        sends = {part.peer: outgoing.get(part.peer) for part in exchange.sends}
        receives = {part.peer: None for part in exchange.receives}
        me = rank.device.rank
        for peer in (*sends, *receives):
            if not 0 <= peer < rank.device.program.ranks or peer == me:
                raise Unsound(f"has messages with rank {peer}, expected another rank")
        if not sends and not receives:
            return {}
        channel = exchange.channel(way)
        if exchange.stages is not None:
            members = rank.device.program.channels.get(channel, ())
            if not {me, *sends, *receives} <= {*members}:
                raise Unsound(f"goes by {channel}, expected a channel of all who take part")
        token = (way, again, *self.token, exchange.position)
        made = Posted(me, exchange, token, sends=dict(sends), receives=dict(receives))
        rank.lanes.post(channel, made)
        if receives:
            yield made
        else:
            rank.pending.append((rank.batch, rank.part, made))
        return made.found or {}

    def _collective(self, own: Collective, source: Content | None, way: PassName) -> Waits:
        if own.target in self.sums:
            raise Unsound(f"adds to {own.target}, expected messages")
        made = self._posted(own, source, way)
        device = self.rank.device
        if self.checks:
            shape = device.program.shapes.get(own.target)
            if shape is None or source is None:
                raise Unsound(f"{own.target} has no shape")
            made.payload = Member(device.rank, own, source, tuple(shape))

            def meet(members: list[Posted]) -> None:
                contents = collected([m.payload for m in members], device.meaning.places)
                for member, content in zip(members, contents, strict=True):
                    member.found = content

            made.meet = meet
        self.rank.lanes.post(own.group, made)
        yield made
        if self.checks:
            device.shaped(own.target, made.found.place)
            self._keep(own.target, made.found)

    def _collective_back(
        self, adjoint: Collective, has_gradient: bool
    ) -> Generator[Posted, None, bool]:
        made = self._posted(adjoint, has_gradient, "backward")

        def meet(members: list[Posted]) -> None:
            needed = any(member.payload for member in members)
            for member in members:
                member.found = needed

        made.meet = meet
        self.rank.lanes.post(adjoint.group, made)
        yield made
        return bool(made.found)

    def _posted(
        self, own: Collective, payload: object, way: PassName, *, again: bool = False
    ) -> Posted:
        rank = self.rank.device.rank
        self.rank.check_group(own.group)
        token = (way, again, type(own).__name__, *self.token, own.position)
        return Posted(rank, own, token, own.group, payload, meet=nothing)
