"""Follow a training step of a rank, symbolically.

It posts, waits and produces registers step by step as ``executor``, ``passes`` and ``batch`` of
``runtime.execute`` do. Registers hold contents in place of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from runtime.program.pipelined import PipelineProgram
from runtime.program.program import Instruction, Load, Program, Run
from runtime.program.validate.content import Content, Fragment
from runtime.program.validate.errors import Unsound
from runtime.program.validate.frame import FrameCheck, RankState, Waits
from runtime.program.validate.local import Holdings
from runtime.program.validate.order import Posted, nothing
from runtime.program.validate.segments import (
    Block,
    MeetingBlock,
    RepeatedBlock,
    blocks_of,
    first_readers,
)
from runtime.program.validate.sync import Sync

BlockDone = Callable[[int], None]
"""Called with the number of each block whose backward pass has finished."""
BATCHES = 3
"""The number of overlapping batches to follow: the middle one begins before the one before has
ended, and ends after the next one has begun."""


@dataclass
class SlicedBatchCheck:
    """A batch that is cut in slices, as ``runtime.execute.batch.SlicedBatch`` runs it."""

    number: int
    passes: PassesCheck
    pipeline: PipelineProgram
    started: list[int] = field(init=False)
    """By chunk: how many slices have gone forward through it."""
    frames: dict[tuple[int, int], FrameCheck] = field(
        default_factory=dict[tuple[int, int], FrameCheck]
    )
    """The frames between forward and backward pass, by slice and chunk."""
    sums: dict[str, list[Fragment]] = field(default_factory=dict[str, list[Fragment]])
    """As ``FrameCheck.sums``."""
    known: set[str] = field(default_factory=set[str])
    """The registers in ``sums`` that have a gradient."""

    def __post_init__(self) -> None:
        self.before = self.passes.frame(self.number, "before", self.passes.before)
        self.started = [0] * self.pipeline.interleave
        self.tail: FrameCheck | None = None
        self.left: set[tuple[int, int]] = set()
        """The slices between backward pass and pass for weights, each with its chunk."""

    @property
    def is_complete(self) -> bool:
        """Whether all slices have had all their passes in all chunks."""
        all_started = set(self.started) == {len(self.pipeline.slices)}
        return all_started and not self.frames and not self.left

    def forward(self, part: int, chunk: int) -> Waits:
        """Follow the forward pass of a slice through a chunk."""
        passes = self.passes
        rank, pipeline = passes.rank, self.pipeline
        if part != self.started[chunk] or (chunk and (part, chunk - 1) not in self.frames):
            problem = f"slice {part} goes through chunk {chunk}, expected those before it first"
            raise rank.wrong("order of slices", problem)
        self._enter(part)
        last = rank.part - pipeline.lag
        yield from rank.settle(lambda _, sent: sent <= last)
        if not (part or chunk):
            yield from self.before.forward()
            self.sums = {name: [] for name in pipeline.joined}
            yield from self._gradients_of_joined()
        outer = self.frames[part, chunk - 1] if chunk else self.before
        frame = passes.frame(self.number, "slice", passes.slices[part][chunk], part, outer)
        frame.sums, frame.known = self.sums, self.known
        passes.load(frame, pipeline.chunks(part)[chunk])
        self.frames[part, chunk] = frame
        yield from frame.forward()
        self.started[chunk] += 1

    def backward(self, part: int, chunk: int, done: BlockDone) -> Waits:
        """Follow the backward pass of a slice through a chunk."""
        passes = self.passes
        self._enter(part)
        frame = self.frames.pop((part, chunk), None)
        if frame is None or (part, chunk + 1) in self.frames:
            problem = f"slice {part} goes back, expected it to have gone forward"
            raise passes.rank.wrong("order of slices", problem)
        if self.pipeline.has_weights_pass or passes.late_in_pass:
            self.left.add((part, chunk))
        is_last = part == len(passes.slices) - 1
        before = (passes.before, passes.tail, *passes.slices[part][:chunk])
        yield from _go_back(frame, done if is_last else None, sum(map(len, before)))
        passes.lost(frame)

    def weights(self, part: int, chunk: int) -> None:
        """Follow the pass for weights of a slice through a chunk."""
        rank = self.passes.rank
        if (part, chunk) not in self.left:
            problem = f"slice {part} has its pass for weights, expected it to have gone back"
            raise rank.wrong("order of slices", problem)
        self.left.remove((part, chunk))
        for name in self.passes.late_in_pass:
            if name in rank.filled:
                raise rank.wrong(name, "has a gradient after its gradients have been summed")
        if part == len(self.passes.slices) - 1:
            self.passes.weights_done()

    def finish(self, done: BlockDone) -> Waits:
        """Follow the tail after the last slice."""
        passes = self.passes
        tail = self._tail(checks=self.before.checks)
        self.tail = tail
        if tail.checks:
            device = passes.rank.device
            for name, parts in self.sums.items():
                try:
                    tail.kept.contents[name] = device.together(parts, name)
                except Unsound as error:
                    raise passes.rank.wrong(f"{name}, which slices add to", str(error)) from error
        yield from tail.forward()
        if self.pipeline.tail_trains:
            passes.begin_back(tail)
            yield from _go_back(tail, done, len(passes.before))
            passes.lost(tail)

    def go_back(self, done: BlockDone) -> Waits:
        """Follow the backward pass of the part before the slices."""
        yield from _go_back(self.before, done, 0)
        self.passes.lost(self.before)

    def _tail(self, *, checks: bool) -> FrameCheck:
        passes = self.passes
        tail = passes.frame(self.number, "tail", passes.tail, 0, self.before)
        tail.checks = checks
        tail.loads.update(self.pipeline.joined)
        if checks:
            passes.load(tail, self.pipeline.tail)
        return tail

    def _gradients_of_joined(self) -> Waits:
        """Follow the tail forward and backward on zeros, before the slices. The gradients of the
        joined registers do not depend on their values."""
        passes = self.passes
        tail = self._tail(checks=False)
        tail.token = (self.number, "zeros", 0)
        yield from tail.forward()
        passes.begin_back(tail)
        yield from tail.backward()
        self.known = tail.needed & set(self.pipeline.joined)
        if not self.pipeline.tail_trains:
            self._demand_no_other()
        # Other gradients depend on the values. The second run of the tail, in finish, has these.
        self.before.needed.clear()

    def _demand_no_other(self) -> None:
        """Raise ProgramError if the tail has gradients for other registers than the joined ones."""
        contents = self.before.kept.contents
        for name in sorted(self.before.needed & contents.tensors.keys()):
            if contents.tensors[name].trains:
                problem = "has a gradient of the tail, which does not go back with its values"
                raise self.passes.rank.wrong(name, problem)

    def _enter(self, part: int) -> None:
        rank = self.passes.rank
        rank.batch = self.number
        rank.part = self.number * len(self.passes.slices) + part


class PassesCheck:
    """The training steps of a rank. The contents of registers are followed in the first one."""

    def __init__(self, rank: RankState, sync: Sync) -> None:
        """``sync`` follows the sums of the rank's gradients."""
        self.rank, program = rank, rank.device.program
        self.program: Program = program
        self.pipeline = program.pipeline
        joined = frozenset(self.pipeline.joined if self.pipeline else ())
        forms = rank.device.forms
        self.before = blocks_of(program.instructions, forms=forms)
        count = len(self.pipeline.slices) if self.pipeline else 0
        self.slices = [
            [blocks_of(chunk, joined, forms) for chunk in self.pipeline.chunks(number)]
            for number in range(count)
            if self.pipeline is not None
        ]
        self.tail = blocks_of(self.pipeline.tail if self.pipeline else (), forms=forms)
        last = [block for chunk in self.slices[-1] for block in chunk] if self.slices else ()
        self.backward_blocks: tuple[Block, ...] = (*self.before, *self.tail, *last)
        self._sync = sync
        trained = frozenset(weight.register for weight in program.trained)
        closing = first_readers(self.backward_blocks, trained)
        self._closing: dict[int, list[str]] = {}
        self._late = {w.register for w in program.trained if w.late is not None}
        self.late_in_pass = tuple(self._put_off())
        """The weights whose gradients are computed in passes for weights, in that order."""
        for weight in program.trained:
            if weight.register in closing:
                self._closing.setdefault(closing[weight.register], []).append(weight.register)
        self._under_way: SlicedBatchCheck | None = None
        self._totals: list[Posted] = []
        self.made: Holdings = Holdings()
        """The contents of the rank's registers after the first step."""

    def steps(self) -> Waits:
        """Follow one step, or ``BATCHES`` steps if batches overlap."""
        count = BATCHES if self.pipeline is not None and self.pipeline.overlaps_batches else 1
        for number in range(count):
            self._sync.batch = number
            if self.pipeline is None:
                yield from self._whole(number)
            else:
                yield from self._sliced(self.pipeline, number, number + 1 < count)
            yield from self._close(number)

    def back_alone(self, kept: Holdings) -> Waits:
        """Follow the first step of a program without slices, from the end of its forward pass on.
        ``kept``: the contents of registers at that time."""
        frame = self.frame(0, "before", self.before)
        frame.kept = kept
        yield from self._back(frame, 0)
        yield from self._close(0)

    def _close(self, number: int) -> Waits:
        yield from self._sync.finish()
        yield from self.rank.settle(lambda batch, _: batch <= self.rank.batch)
        yield from self._statistics(number)
        yield from self._totals
        self._totals.clear()

    def frame(
        self,
        number: int,
        name: str,
        blocks: Iterable[Block],
        part: int = 0,
        outer: FrameCheck | None = None,
    ) -> FrameCheck:
        token = (number, name, part)
        frame = FrameCheck(self.rank, tuple(blocks), part, token, outer, checks=number == 0)
        if name == "before":
            self.load(frame, self.program.instructions)
        return frame

    def load(self, frame: FrameCheck, instructions: Iterable[Instruction]) -> None:
        """Follow the loads among some instructions."""
        for load in instructions:
            if not isinstance(load, Load):
                continue
            frame.loads.add(load.target)
            if frame.checks:
                try:
                    content: Content = self.rank.device.load(load)
                except Unsound as error:
                    raise self.rank.wrong(load, str(error)) from error
                if load.target in frame.kept.contents:
                    raise self.rank.wrong(load, "is loaded already")
                frame.kept.contents[load.target] = content

    def begin_back(self, frame: FrameCheck) -> None:
        if self.program.loss is not None and self.program.loss in self.program.active:
            frame.need(self.program.loss)

    def lost(self, frame: FrameCheck) -> None:
        """Raise ProgramError if a gradient of a frame is lost."""
        if frame.checks and (name := frame.lost()) is not None:
            raise self.rank.wrong(name, "has a gradient and is not active, so that it is lost")

    def _whole(self, number: int) -> Waits:
        frame = self.frame(number, "before", self.before)
        yield from frame.forward()
        self.made = frame.kept
        yield from self._back(frame, number)

    def _back(self, frame: FrameCheck, number: int) -> Waits:
        self._tell_loss(number)
        self.begin_back(frame)
        self._done(len(self.backward_blocks))
        yield from frame.backward(self._done)
        self.lost(frame)

    def _sliced(self, pipeline: PipelineProgram, number: int, more: bool) -> Waits:
        batch = self._under_way or SlicedBatchCheck(number, self, pipeline)
        self._under_way = None
        ahead = SlicedBatchCheck(number + 1, self, pipeline) if more and pipeline.lead else None
        self.rank.batch = number
        has_no_loss = self.program.loss is None
        if has_no_loss:
            self._tell_loss(number)
        for kind, part, chunk in pipeline.turns:
            if not 0 <= chunk < pipeline.interleave:
                raise self.rank.wrong("order of slices", f"there is no chunk {chunk}")
            if kind == "weights":
                batch.weights(part, chunk)
                continue
            if kind == "forward":
                if part >= batch.started[chunk]:
                    yield from batch.forward(part, chunk)
                continue
            if ahead is not None and part + pipeline.lead >= len(pipeline.slices):
                yield from ahead.forward(ahead.started[0], 0)
            yield from batch.backward(part, chunk, self._done)
        if not batch.is_complete:
            raise self.rank.wrong("order of slices", "expected all of them, forward and back")
        yield from batch.finish(self._done)
        if not number and batch.tail is not None:
            self.made = batch.tail.kept
            before = batch.before.kept
            self.made.contents.update(before.contents)
        if not has_no_loss:
            self._tell_loss(number)
        yield from batch.go_back(self._done)
        self._under_way = ahead

    def _put_off(self) -> Iterator[str]:
        """The weights whose gradients are put off to the pass for weights, as the last slice has
        them. Raises ProgramError for one outside of slices."""
        slices = self.pipeline.slices if self.pipeline else ()
        for number, part in enumerate((self.program.instructions, *slices)):
            for run in reversed(part):
                if isinstance(run, Run) and run.late is not None and run.late.in_weights_pass:
                    if not number:
                        raise self.rank.wrong(run, "puts a gradient off, and is of no slice")
                    if number == len(slices):
                        yield run.operands[run.late.operand]

    def weights_done(self) -> None:
        """Handle the end of the last slice's pass for weights: its gradients are complete."""
        for register in self.late_in_pass:
            self._sync.complete(register)

    def _tell_loss(self, number: int) -> None:
        ranks = tuple(range(self.program.ranks))
        if len(ranks) == 1:
            return
        what, rank = "the sum of the loss", self.rank.device.rank
        operation = Posted(rank, what, ("loss", number), ranks, meet=nothing)
        self._totals.append(self.rank.lanes.post("total", operation))

    def _statistics(self, number: int) -> Waits:
        ranks = tuple(range(self.program.ranks))
        if len(ranks) == 1 or not any(running.is_known for running in self.program.running):
            return
        what, rank = "the sum of statistics", self.rank.device.rank
        operation = Posted(rank, what, ("statistics", number), ranks, meet=nothing)
        yield self.rank.lanes.post(ranks, operation)

    def _done(self, number: int) -> None:
        """Handle the end of a block's backward pass: send buckets that are complete."""
        for register in self._closing.get(number, ()):
            if register in self.rank.graded and register not in self._late:
                self._sync.complete(register)
        block = self.backward_blocks[number] if number < len(self.backward_blocks) else None
        if isinstance(block, MeetingBlock):
            self._sync.flush(block.instruction.position)
        if not number:
            return
        following = self.backward_blocks[number - 1]
        if isinstance(following, MeetingBlock):
            self._sync.flush(following.instruction.position + 1)
        elif isinstance(following, RepeatedBlock):
            self._sync.flush(following.position + 1)


def _go_back(frame: FrameCheck, done: BlockDone | None, first: int) -> Waits:
    """Follow the backward pass of a frame, whose blocks are numbered from ``first`` on."""
    if done is None:
        yield from frame.backward()
        return
    frame.rank.graded.clear()
    done(first + len(frame.blocks))
    yield from frame.backward(lambda number: done(first + number))
