"""Run one part of a rank's program forward and backward, and hold its registers.

The backward pass follows the program's order, reversed. It is not left to autograd, so that all
ranks communicate in the same order. Autograd differentiates the segments in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from runtime.execute.casts import in_formats
from runtime.execute.compiling import SegmentFunction, compiled, function_of
from runtime.execute.kernels import BlockFunction, prepare
from runtime.execute.late import DelayedGradient, WeightsPass, parted
from runtime.execute.masks import with_masks
from runtime.execute.narrow import NarrowWeights
from runtime.execute.precision import RunFormats
from runtime.execute.recompute import Notes, RepeatedCommunication
from runtime.execute.segment import (
    Action,
    Block,
    Meeting,
    Segment,
    entering,
    is_recomputed,
    run_segment,
)
from runtime.program.program import (
    Alias,
    Communication,
    Exchange,
    Local,
    PassName,
    Program,
    Run,
    sources,
    targets,
)
from runtime.world.collectives import Meanwhile, World
from runtime.world.messages import communicate, run_exchange


@dataclass
class FrameContext:
    """The context that all frames of a program share: the world, the number formats, the weights,
    and the functions of its segments."""

    program: Program
    world: World
    formats: RunFormats
    compiles: bool = False
    """Whether segments go through torch.compile."""
    leaves: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Weights by register, as leaves of autograd. Trained ones collect their gradients."""
    narrow: NarrowWeights | None = None
    """The weights in the narrow format, for mixed precision."""
    _actions: dict[int, tuple[Action, ...]] = field(default_factory=dict[int, tuple[Action, ...]])
    """The actions of each segment, by its id."""
    _compiled: dict[int, SegmentFunction] = field(default_factory=dict[int, SegmentFunction])
    """The compiled function of each segment, by its id."""

    def format_of(self, register: str | None) -> torch.dtype:
        """The number format of a register and of its gradient."""
        is_wide = register is None or register in self.program.wide
        return self.formats.wide if is_wide else self.formats.narrow

    def read(self, registers: Iterable[str]) -> Mapping[str, Tensor]:
        """The weights among some registers, as operands: leaves of autograd."""
        weights = [register for register in registers if register in self.leaves]
        if self.narrow is not None:
            return self.narrow.read(weights)
        return {register: self.leaves[register] for register in weights}

    def actions(self, segment: Segment) -> tuple[Action, ...]:
        """The instructions of a segment, ready to run."""
        actions = self._actions.get(id(segment))
        if actions is None:
            actions = tuple(
                Action(
                    self._compute(instruction), sources(instruction), targets(instruction), drops
                )
                for instruction, drops in zip(segment.instructions, segment.drops, strict=True)
            )
            self._actions[id(segment)] = actions
        return actions

    def compiled(self, segment: Segment) -> SegmentFunction:
        """A segment as a function of the registers that it reads. The first call returns a function
        that is not compiled: in its run kernels look up torch's functions, which torch.compile
        could not follow. Later calls return the compiled function."""
        if (known := self._compiled.get(id(segment))) is not None:
            return known
        function = function_of(segment, self.actions(segment))
        self._compiled[id(segment)] = compiled(function)
        return function

    def _compute(self, instruction: Local) -> BlockFunction:
        match instruction:
            case Run():
                return self._run(instruction)
            case Alias():
                return tuple
            case Exchange(target=target):
                shape = self.program.shapes[target] if target else None
                return partial(_slice, self.world, instruction, shape, self.format_of(target))

    def _run(self, instruction: Run) -> BlockFunction:
        compute = prepare(instruction.call, instruction.task, instruction.starts)
        if not instruction.starts:
            compute = partial(_constant, self.world.device, self.formats.wide, compute)
        if self.formats.is_mixed:
            compute = in_formats(instruction, compute, self.program.wide, self.formats)
        program, wide = self.program, self.formats.wide
        return with_masks(compute, instruction, program.masks, program.shapes, wide)


def _constant(
    device: torch.device, dtype: torch.dtype, make: BlockFunction, blocks: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Run an operator without operands, and convert its results to the run's device and format. The
    host does not wait for the device."""
    return tuple(tensor.to(device, dtype, non_blocking=True) for tensor in make(blocks))


def _slice(
    world: World,
    exchange: Exchange,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
    operands: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Run a local exchange."""
    part = run_exchange(world, exchange, operands[0] if operands else None, shape, dtype)
    return () if part is None else (part,)


@dataclass
class Frame:
    """One forward and backward pass over a part of a program."""

    shared: FrameContext
    blocks: Sequence[Block]
    outer: Frame | None = None
    """The frame of the part before. Its registers can be read, and get gradients."""
    sums: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Registers of a later part, to which this part adds."""
    known: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The gradients of ``sums``, which are known before."""
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The registers of this part."""
    gradients: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The gradients so far, by register."""
    _records: list[list[tuple[str, GradientEdge, torch.dtype]]] = field(
        default_factory=list[list[tuple[str, GradientEdge, torch.dtype]]]
    )
    """For each segment: its active results, with the edges at which its backward pass begins."""
    _notes: Notes = field(default_factory=Notes)
    _moved: dict[int, RepeatedCommunication] = field(
        default_factory=dict[int, RepeatedCommunication]
    )
    """The communications that the backward pass repeats, by position."""
    weights_pass: WeightsPass = field(default_factory=WeightsPass)
    """The gradients of weights that the pass for weights computes after the backward pass."""
    _off: DelayedGradient = field(default_factory=DelayedGradient)

    def forward(self) -> None:
        """Run the forward pass. Registers that no later part reads are dropped."""
        self.shared.world.begin("forward")
        for number, block in enumerate(self.blocks):
            self._notes.begin(number, block.position)
            if isinstance(block, Segment):
                self._run(block)
            elif isinstance(block, Meeting):
                self._meet(block)
            for name in block.ends:
                self.values.pop(name, None)

    def backward(self, done: Callable[[int], None] | None = None) -> None:
        """Run the backward pass. ``done`` is called with the number of each finished block."""
        self.shared.world.begin("backward")
        for number in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[number]
            if isinstance(block, Segment):
                self._differentiate(self._records.pop())
            elif isinstance(block, Meeting):
                self._meet_back(block)
            else:
                self._moved.pop(block.instruction.position).again()
            following = self.blocks[number - 1] if number else None
            if not isinstance(following, Meeting) or following.position != self._off.beside:
                self._off.settle()
            self._notes.end(number)
            if done is not None:
                done(number)

    def value(self, name: str) -> Tensor:
        """A register of this part, a weight, or a register of the part before."""
        for registers in (self.values, self.shared.leaves):
            if name in registers:
                return registers[name]
        assert self.outer is not None, f"nothing has made {name}"
        return self.outer.value(name)

    def add(self, name: str, gradient: Tensor) -> None:
        """Add to the gradient of a register, a weight, or a register of the part before."""
        leaf = self.shared.leaves.get(name)
        if leaf is not None:
            gradient = gradient.to(leaf.dtype)
            leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        elif name in self._made:
            total = self.gradients.get(name)
            self.gradients[name] = gradient if total is None else total + gradient
        else:
            assert self.outer is not None, f"nothing has made {name}"
            self.outer.add(name, gradient)

    def take(self, name: str) -> Tensor:
        """Remove and return a register's gradient, zeros if it has none. It is complete, because
        all readers of the register come later in the program."""
        gradient = self.known.get(name) if name in self.sums else self.gradients.pop(name, None)
        if gradient is not None:
            return gradient
        shape, device = self.shared.program.shapes[name], self.shared.world.device
        return torch.zeros(shape, dtype=self.shared.format_of(name), device=device)

    def __post_init__(self) -> None:
        self._made: set[str] = set()
        """The registers whose gradients this frame collects."""
        self._made.update(self.values)
        for block in self.blocks:
            self._made.update(block.makes)

    def _run(self, segment: Segment) -> None:
        active = self.shared.program.active
        tracked = any(name in active for name in segment.results)
        with torch.set_grad_enabled(tracked), self.shared.formats.context():
            again = bool(self._notes) or segment.recomputes
            noted = again and bool(active)
            local = self._entered(segment, tracked=tracked)
            results = self._results(segment, local, noted=noted, tracked=tracked)
        record: list[tuple[str, GradientEdge, torch.dtype]] = []
        for name, result in zip(segment.results, results, strict=True):
            if name in active and result.requires_grad:
                record.append((name, get_gradient_edge(result), result.dtype))
            self.values[name] = result.detach()
        self._records.append(record)

    def _entered(self, segment: Segment, *, tracked: bool) -> dict[str, Tensor]:
        """The values of the registers that a segment reads. Its backward pass sends their gradients
        to ``add``."""
        local, weights = dict[str, Tensor](), self.shared.read(segment.reads)
        for name in segment.reads:
            value = weights.get(name)
            if value is None:
                value = self.value(name)
                if tracked and name in self.shared.program.active:
                    value = entering(value, partial(self.add, name))
            local[name] = value
            if name in segment.ends:
                self.values.pop(name, None)
        return local

    def _results(
        self, segment: Segment, local: dict[str, Tensor], *, noted: bool, tracked: bool
    ) -> tuple[Tensor, ...]:
        if not noted and self.shared.compiles:
            return self.shared.compiled(segment)(*(local[name] for name in segment.reads))
        actions: Sequence[Action] = self.shared.actions(segment)
        if noted or (tracked and segment.has_late):
            pairs = zip(segment.instructions, actions, strict=True)
            actions = [
                self._action(instruction, action, noted=noted) for instruction, action in pairs
            ]
        with self._notes.hooks() if noted else nullcontext():
            return run_segment(segment.results, actions, local)

    def _action(self, instruction: Local, action: Action, *, noted: bool) -> Action:
        """The action of an instruction in this pass: one that can be recomputed, or one that puts
        the gradient of its weight off. ``noted``: whether its saved tensors may be recomputed."""
        compute = action.compute
        if is_recomputed(instruction):
            compute = partial(self._notes.run, partial(_compute, self.shared.formats, compute))
        elif isinstance(instruction, Run) and instruction.late and not self.shared.compiles:
            operand, beside = instruction.late
            register = instruction.operands[operand]
            leaf = self.shared.read([register])[register]
            if not instruction.late.in_weights_pass:
                compute = partial(parted, compute, operand, leaf, self._off.put_off, beside)
            else:
                delay, pack = self.weights_pass.of(register), self._notes.pack if noted else None
                compute = partial(parted, compute, operand, leaf, delay, beside, pack=pack)
        return action._replace(compute=compute)

    def _differentiate(self, record: list[tuple[str, GradientEdge, torch.dtype]]) -> None:
        """Run the backward pass of a segment. ``record``: its entry of ``_records``."""
        roots: list[GradientEdge] = []
        gradients: list[Tensor] = []
        for name, edge, dtype in record:
            gradient = self.gradients.pop(name, None)
            if gradient is not None:
                roots.append(edge)
                gradients.append(gradient.to(dtype))
        if roots:
            torch.autograd.backward(roots, gradients)

    def _meet(self, block: Meeting) -> None:
        instruction = block.instruction
        source = None if instruction.source is None else self.value(instruction.source)
        received = self._communicate(instruction, source, "forward")
        if block.again is not None and self.shared.program.active:
            communicate_again = partial(self._communicate, instruction, channel="backward")
            repeated = self._notes.moved(communicate_again, block.again, source, received)
            self._moved[instruction.position] = repeated
        if received is None or instruction.target is None:
            return
        if instruction.target in self.sums:
            self.sums[instruction.target].add_(received)
        else:
            self.values[instruction.target] = received

    def _meet_back(self, block: Meeting) -> None:
        instruction, active = block.instruction, self.shared.program.active
        is_active = isinstance(instruction, Exchange) and instruction.active
        if not is_active and instruction.target not in active:
            self._off.settle()
            return
        target, source = instruction.target, instruction.source
        gradient = None if target is None else self.take(target)
        received = self._communicate(instruction.adjoint, gradient, "backward", self._off.settle)
        if source is not None and received is not None:
            self.add(source, received)

    def _communicate(
        self,
        instruction: Communication,
        source: Tensor | None,
        channel: PassName,
        meanwhile: Meanwhile | None = None,
    ) -> Tensor | None:
        shared = self.shared
        shape = None if instruction.target is None else shared.program.shapes[instruction.target]
        dtype = shared.format_of(instruction.source or instruction.target)
        block = None if source is None else source.to(dtype)
        return communicate(shared.world, instruction, block, shape, dtype, channel, meanwhile)


def _compute(
    formats: RunFormats, kernel: BlockFunction, operands: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with formats.context():
        return kernel(operands)
