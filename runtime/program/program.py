"""The instructions of one rank in a training step.

A program is a list of instructions on named registers. A register holds this device's block of a
tensor. The programs of all ranks come from one schedule, so that the ranks of a communication reach
it in the same order. The backward pass runs the list in reverse. The gradient of a register is this
device's share: the shares of all copies of a block add up to its gradient. (A tensor with c copies
and p partials has a gradient with p copies and c partials.)

The ``position`` of an instruction is that of its step in the schedule, the same on all ranks. The
last backward passes of the steps come in the order of decreasing positions: in a pipeline first the
steps of the last slice, then the steps of the tail, then the steps before the slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pcg.graph.graph import Leaf
from pcg.placement.late import LateGradient
from pcg.placement.region import Region, region_text
from pcg.types.operator import Call
from pcg.types.task import KernelTask
from runtime.program.pipelined import PipelineProgram
from runtime.program.running import NormStatistics

Group = tuple[int, ...]
"""The ranks that take part in a collective, in ascending order."""
PassName = Literal["forward", "backward"]
"""A direction of messages. Messages between two ranks keep their order within one direction."""
AGAIN = ", and again in the backward pass"


@dataclass(frozen=True)
class Load:
    """Load a block of a leaf: an input of the step, or a weight that this rank stores."""

    target: str
    leaf: Leaf
    region: Region

    def __str__(self) -> str:
        return f"{self.target} = load {self.leaf.kind} {self.leaf.name}{region_text(self.region)}"


@dataclass(frozen=True)
class AllReduce:
    """The sum of the members' blocks, on every member. It is its own adjoint."""

    source: str
    target: str
    group: Group
    position: int = 0

    @property
    def adjoint(self) -> AllReduce:
        return AllReduce(self.target, self.source, self.group, self.position)

    def __str__(self) -> str:
        return f"{self.target} = all_reduce({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class _PlacedCollective:
    """A collective between blocks and the larger block that they form together. ``places[i]`` is
    the region of the i-th member in the larger block. All places together fill it."""

    source: str
    target: str
    group: Group
    places: tuple[Region, ...]
    position: int = 0


@dataclass(frozen=True)
class AllGather(_PlacedCollective):
    """The larger block that the members' blocks form, on every member."""

    @property
    def adjoint(self) -> ReduceScatter:
        """The gradients that all members have of a block add up on the member that holds it."""
        return ReduceScatter(self.target, self.source, self.group, self.places, self.position)

    def __str__(self) -> str:
        return f"{self.target} = all_gather({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class ReduceScatter(_PlacedCollective):
    """The sum of the members' larger blocks, of which each member gets its own block."""

    @property
    def adjoint(self) -> AllGather:
        """Each member has the gradient of its block of the sum, and all summands need all of it."""
        return AllGather(self.target, self.source, self.group, self.places, self.position)

    def __str__(self) -> str:
        return f"{self.target} = reduce_scatter({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class AllToAll:
    """Region ``sends[i]`` of the source goes to the i-th member. The region that the i-th member
    sends fills ``receives[i]`` of the target. All regions of all members have the same number of
    elements."""

    source: str
    target: str
    group: Group
    sends: tuple[Region, ...]
    receives: tuple[Region, ...]
    position: int = 0

    @property
    def adjoint(self) -> AllToAll:
        """The same with ``sends`` and ``receives`` exchanged."""
        receives, sends = self.sends, self.receives
        return AllToAll(self.target, self.source, self.group, sends, receives, self.position)

    def __str__(self) -> str:
        return f"{self.target} = all_to_all({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class PieceRegion:
    """A region of this rank's block that goes to or comes from a peer. Indices are relative to the
    block's first element."""

    peer: int
    region: Region


@dataclass(frozen=True)
class LocalCopy:
    """A region of the source that is added to a region of the target on the same device."""

    source: Region
    target: Region


@dataclass(frozen=True)
class Exchange:
    """Send regions of ``source`` to other ranks. The regions that arrive and those that are copied
    locally (``kept``) add up to ``target``.

    A rank may have no source or no target. The adjoint returns the gradients of the regions that
    arrived, and adds up the gradients of the regions that were sent.
    """

    source: str | None
    target: str | None
    sends: tuple[PieceRegion, ...]
    receives: tuple[PieceRegion, ...]
    kept: tuple[LocalCopy, ...]
    active: bool = False
    """Whether the target has a gradient. Ranks that do not hold the target need to know, too."""
    position: int = 0
    recomputed: bool = False
    """Whether the backward pass repeats the exchange. Only for a local one."""
    stages: tuple[int, int] | None = None
    """For slices in an interleaved pipeline: the stages of the source and of the target."""

    @property
    def adjoint(self) -> Exchange:
        """The transposed map: gradients take the opposite ways and add up at the source."""
        kept = tuple(LocalCopy(k.target, k.source) for k in self.kept)
        ends = self.target, self.source
        return Exchange(
            *ends,
            self.receives,
            self.sends,
            kept,
            self.active,
            self.position,
            stages=self.stages,
        )

    def __str__(self) -> str:
        words = [f"keep {region_text(k.source)} at {region_text(k.target)}" for k in self.kept]
        words += [f"send {region_text(p.region)} to {p.peer}" for p in self.sends]
        words += [f"add {region_text(p.region)} from {p.peer}" for p in self.receives]
        what = "slice" if is_local(self) else "exchange"
        target = f"{self.target} = " if self.target else ""
        note = AGAIN if self.recomputed else ""
        return f"{target}{what}({self.source or ''}): {', '.join(words)}{note}"

    def channel(self, direction: PassName) -> str:
        """The name of the channel that its messages use."""
        return direction if self.stages is None else _channel(direction, self.stages)


def _channel(direction: PassName, stages: tuple[int, int]) -> str:
    source, target = stages
    return f"{direction} {source}>{target}"


Collective = AllReduce | AllGather | ReduceScatter | AllToAll
Communication = Collective | Exchange


@dataclass(frozen=True)
class Run:
    """Run one task of an operator. ``starts``: the global index of each operand's first element."""

    call: Call
    task: KernelTask
    starts: tuple[tuple[int, ...], ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    recomputed: bool = False
    """Whether the backward pass recomputes the results, instead of keeping them."""
    position: int = 0
    late: LateGradient | None = None
    """The operand, a weight, whose gradient may be computed later, and when."""

    def __str__(self) -> str:
        arguments = [*self.operands, *(f"{name}={value}" for name, value in self.call.attributes)]
        note = AGAIN if self.recomputed else ""
        return f"{', '.join(self.results)} = {self.call.name}({', '.join(arguments)}){note}"


@dataclass(frozen=True)
class Alias:
    """A second name for a register. A join makes the blocks of its operands partials of one tensor,
    without moving data."""

    source: str
    target: str
    position: int = 0

    def __str__(self) -> str:
        return f"{self.target} = {self.source}"


@dataclass(frozen=True)
class Repeat:
    """Repeat a communication of the forward pass, whose target was not kept. It is repeated in the
    backward pass, before the backward pass of ``position``."""

    of: Communication
    position: int

    def __str__(self) -> str:
        return f"{self.of}{AGAIN}, before that of what comes above"


Local = Run | Alias | Exchange
"""Instructions that need no other rank, if the exchange is local."""
Instruction = Load | Communication | Run | Alias | Repeat


def is_local(instruction: Instruction) -> bool:
    """Whether an instruction is a ``Run``, an ``Alias``, or an exchange without messages."""
    if isinstance(instruction, Exchange):
        return not instruction.sends and not instruction.receives
    return isinstance(instruction, Run | Alias)


def sources(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction reads."""
    if isinstance(instruction, Load | Repeat):
        return ()
    if isinstance(instruction, Run):
        return instruction.operands
    return () if instruction.source is None else (instruction.source,)


def targets(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction writes."""
    if isinstance(instruction, Run):
        return instruction.results
    if isinstance(instruction, Repeat):
        return ()
    return () if instruction.target is None else (instruction.target,)


@dataclass(frozen=True)
class Weight:
    """A block of a weight that this rank stores. ``group``: all ranks that store the same block,
    and sum its gradient."""

    register: str
    leaf: Leaf
    region: Region
    group: Group
    position: int = 0
    """The lowest position of a step that reads it. This step is the last to add to its gradient."""
    late: int | None = None
    """If its gradient may be computed late: the position of the communication beside which it is
    computed, or ``WEIGHTS_PASS``."""

    @property
    def complete(self) -> int:
        """Its gradient is complete after the backward pass of this position."""
        return self.position if self.late is None else self.late

    def __str__(self) -> str:
        shared = f", all_reduce over {_ranks(self.group)}" if len(self.group) > 1 else ""
        return f"{self.register} -= lr * gradient({self.register}){shared}"


@dataclass(frozen=True)
class Program:
    """All instructions of a rank in a training step."""

    rank: int
    ranks: int
    instructions: tuple[Instruction, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of the block in each register."""
    active: frozenset[str]
    """The registers that have gradients: they depend on a weight, and the loss depends on them."""
    weights: tuple[Weight, ...]
    loss: str | None
    """The register with this rank's part of the loss, on the first holder of each piece. There the
    gradient starts at 1. None on all other ranks."""
    outputs: tuple[str, ...]
    """The registers with blocks of the graph's outputs, and with statistics. They are kept at the
    end of a step."""
    groups: tuple[Group, ...]
    """All groups of collectives in any rank's program, in the same order on all ranks."""
    pipeline: PipelineProgram | None = None
    """The instructions after ``instructions``, if the batch is cut in slices."""
    running: tuple[NormStatistics, ...] = ()
    """The running statistics of the module's batch norms, in the module's order."""
    wide: frozenset[str] = frozenset()
    """The registers that stay wide in a run that computes in a narrow number format."""

    @property
    def inputs(self) -> tuple[Load, ...]:
        """The loads of inputs, those of slices included, without ``masks``."""
        loads = (i for i in self._all if isinstance(i, Load) and i.leaf.kind != "weight")
        return tuple(load for load in loads if load.target not in self.masks)

    @cached_property
    def masks(self) -> Mapping[str, Leaf]:
        """The masks that operators draw themselves, by register. Only operators read such a mask,
        and it is no output. Its register holds the key from which the operator draws it."""
        loads = (i for i in self._all if isinstance(i, Load) and i.leaf.share is not None)
        candidates = {load.target: load.leaf for load in loads}
        moved = {name for i in self._all if not isinstance(i, Run) for name in sources(i)}
        return {n: leaf for n, leaf in candidates.items() if n not in moved.union(self.outputs)}

    @property
    def _all(self) -> Iterator[Instruction]:
        later = () if self.pipeline is None else (*self.pipeline.slices, self.pipeline.tail)
        return (i for part in (self.instructions, *later) for i in part)

    @cached_property
    def channels(self) -> Mapping[str, Group]:
        """The ranks of each channel between two stages, by name. The order is the same on all
        ranks."""
        if self.pipeline is None:
            return {}
        size = self.ranks // self.pipeline.stages
        directions: tuple[PassName, ...] = ("forward", "backward")
        return {
            _channel(direction, stages): tuple(
                stage * size + rank for stage in sorted(set(stages)) for rank in range(size)
            )
            for stages in self.pipeline.channels
            for direction in directions
        }

    @property
    def trained(self) -> tuple[Weight, ...]:
        """The weights on which the loss depends. A step updates them."""
        return tuple(weight for weight in self.weights if weight.register in self.active)

    def __str__(self) -> str:
        return "\n".join([f"rank {self.rank} of {self.ranks}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for instruction in self.instructions:
            yield f"  {instruction}{self._shapes(instruction)}"
        if self.pipeline is not None:
            yield from self.pipeline.lines()
        if self.loss is not None:
            yield f"  gradient({self.loss}) = 1"
        if self.active:
            yield "  backward: the same in reverse, every move as its adjoint"
        for weight in self.trained:
            yield f"  {weight}"

    def _shapes(self, instruction: Instruction) -> str:
        return "".join(f"  {list(self.shapes[name])}" for name in targets(instruction))


def _ranks(group: Group) -> str:
    return ", ".join(map(str, group))
