"""The instructions of one rank in a training step.

A program is a list of instructions over named registers, each the piece of a tensor that this
device holds. All ranks' programs are cut from one schedule, so whatever takes part in the same
communication reaches it in the same order. The backward pass runs the list in reverse; the
gradient of a register is this device's share, and the shares of all copies of a piece add up to
its gradient (a tensor with c copies and p partials has a gradient with p copies and c partials).

``position`` of an instruction is that of the schedule's step that it is a part of, the same on all
ranks. From the highest position down, steps add to gradients for the last time: of a pipeline those
of the last slice, then those that join the slices, then those that are done once.
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
from runtime.program.pipelined import Pipelined
from runtime.program.running import Running

Group = tuple[int, ...]
"""The ranks that take part in a collective, ascending."""
PassName = Literal["forward", "backward"]
"""Messages between two ranks keep their order within a pass."""
AGAIN = ", and again in the backward pass"


@dataclass(frozen=True)
class Load:
    """A piece of a leaf: data of the step, or the weight that is kept here."""

    target: str
    leaf: Leaf
    region: Region

    def __str__(self) -> str:
        return f"{self.target} = load {self.leaf.kind} {self.leaf.name}{region_text(self.region)}"


@dataclass(frozen=True)
class AllReduce:
    """The sum of the members' pieces, for every member. It is its own adjoint."""

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
class _Placed:
    """A collective between pieces and what they are side by side: the i-th member's piece is
    ``places[i]`` of that, and all places fill it."""

    source: str
    target: str
    group: Group
    places: tuple[Region, ...]
    position: int = 0


@dataclass(frozen=True)
class AllGather(_Placed):
    """The members' pieces side by side, for every member."""

    @property
    def adjoint(self) -> ReduceScatter:
        """Every member's gradient of all pieces adds up at the member that gave the piece."""
        return ReduceScatter(self.target, self.source, self.group, self.places, self.position)

    def __str__(self) -> str:
        return f"{self.target} = all_gather({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class ReduceScatter(_Placed):
    """Of the sum of what the members have side by side, its piece for each."""

    @property
    def adjoint(self) -> AllGather:
        """What each member reads of the sum has its gradient there, for all that were summed."""
        return AllGather(self.target, self.source, self.group, self.places, self.position)

    def __str__(self) -> str:
        return f"{self.target} = reduce_scatter({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class AllToAll:
    """``sends[i]`` of the source goes to the i-th member, and what comes from there fills
    ``receives[i]`` of the target. All regions of all members have as many elements."""

    source: str
    target: str
    group: Group
    sends: tuple[Region, ...]
    receives: tuple[Region, ...]
    position: int = 0

    @property
    def adjoint(self) -> AllToAll:
        """All takes the backward pass."""
        receives, sends = self.sends, self.receives
        return AllToAll(self.target, self.source, self.group, sends, receives, self.position)

    def __str__(self) -> str:
        return f"{self.target} = all_to_all({self.source}) over {_ranks(self.group)}"


@dataclass(frozen=True)
class PieceRegion:
    """A region of a piece, counted from the piece's first element, for or from another rank."""

    peer: int
    region: Region


@dataclass(frozen=True)
class LocalCopy:
    """A region of the source that becomes (or is added to) one of the target, on one device."""

    source: Region
    target: Region


@dataclass(frozen=True)
class Exchange:
    """Regions of ``source`` go to other ranks; what arrives and what is kept adds up to ``target``.

    A rank may lack either. The adjoint sends back what arrived and adds up what was sent.
    """

    source: str | None
    target: str | None
    sends: tuple[PieceRegion, ...]
    receives: tuple[PieceRegion, ...]
    kept: tuple[LocalCopy, ...]
    active: bool = False
    """Whether the target has a gradient, for the ranks that do not hold the target to know."""
    position: int = 0
    recomputed: bool = False
    """Of one that needs no other rank: whether it is done again for the backward pass."""
    stages: tuple[int, int] | None = None
    """Of slices in an interleaved pipeline, the stage that has the source, and the one that gets
    the target."""

    @property
    def adjoint(self) -> Exchange:
        """The map read backwards: gradients go back the same ways and add up at the source."""
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

    def channel(self, way: PassName) -> str:
        """The name of what its messages go by."""
        return way if self.stages is None else _channel(way, self.stages)


def _channel(way: PassName, stages: tuple[int, int]) -> str:
    source, target = stages
    return f"{way} {source}>{target}"


Collective = AllReduce | AllGather | ReduceScatter | AllToAll
Communication = Collective | Exchange


@dataclass(frozen=True)
class Run:
    """One task of an operator. ``starts``: the global index of each operand's first element."""

    call: Call
    task: KernelTask
    starts: tuple[tuple[int, ...], ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    recomputed: bool = False
    """Whether the results are recomputed for the backward pass, instead of kept."""
    position: int = 0
    late: LateGradient | None = None
    """The gradient of a weight that may come late, with the position of what it is beside."""

    def __str__(self) -> str:
        given = [*self.operands, *(f"{name}={value}" for name, value in self.call.attributes)]
        note = AGAIN if self.recomputed else ""
        return f"{', '.join(self.results)} = {self.call.name}({', '.join(given)}){note}"


@dataclass(frozen=True)
class Alias:
    """A piece under another name: join makes the pieces of its operands partials of one tensor."""

    source: str
    target: str
    position: int = 0

    def __str__(self) -> str:
        return f"{self.target} = {self.source}"


@dataclass(frozen=True)
class Repeat:
    """In the backward pass, before that of ``position`` and all before it: a communication of the
    forward pass once more, whose target was not kept."""

    of: Communication
    position: int

    def __str__(self) -> str:
        return f"{self.of}{AGAIN}, before that of what comes above"


Local = Run | Alias | Exchange
"""What needs no other rank, where the exchange is within one."""
Instruction = Load | Communication | Run | Alias | Repeat


def is_local(instruction: Instruction) -> bool:
    """Whether an instruction computes, and needs no other rank for that."""
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
    """The registers that an instruction makes."""
    if isinstance(instruction, Run):
        return instruction.results
    if isinstance(instruction, Repeat):
        return ()
    return () if instruction.target is None else (instruction.target,)


@dataclass(frozen=True)
class Weight:
    """A piece of a weight that lives here, and who else holds it and shares its gradient."""

    register: str
    leaf: Leaf
    region: Region
    group: Group
    position: int = 0
    """The lowest one of the steps that read it: the last one to add to its gradient."""
    late: int | None = None
    """The position of the communication beside which its gradient may be computed, if it may, or
    ``WEIGHTS_PASS``."""

    @property
    def complete(self) -> int:
        """The position after whose backward pass its gradient is complete."""
        return self.position if self.late is None else self.late

    def __str__(self) -> str:
        shared = f", all_reduce over {_ranks(self.group)}" if len(self.group) > 1 else ""
        return f"{self.register} -= lr * gradient({self.register}){shared}"


@dataclass(frozen=True)
class Program:
    """A rank's share of a training step."""

    rank: int
    ranks: int
    instructions: tuple[Instruction, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each register's piece."""
    active: frozenset[str]
    """Registers that depend on a weight and on which the loss depends: these have gradients."""
    weights: tuple[Weight, ...]
    loss: str | None
    """The register of the loss, or of this rank's part of it, where it counts: on the first
    holder of each piece. There its gradient starts at 1, and at 0 everywhere else."""
    outputs: tuple[str, ...]
    """The registers that hold pieces of the graph's outputs, and statistics: kept when a step has
    ended."""
    groups: tuple[Group, ...]
    """Every group of a collective in any rank's program, in the same order on all ranks."""
    pipeline: Pipelined | None = None
    """What follows ``instructions`` where the batch is taken in slices."""
    running: tuple[Running, ...] = ()
    """What the module's batch norms keep, in the order in which they do."""
    wide: frozenset[str] = frozenset()
    """Registers that stay wide where a run computes in a narrow format."""

    @property
    def inputs(self) -> tuple[Load, ...]:
        """What is loaded of inputs, for slices of the batch too, but for masks."""
        loads = (i for i in self._every if isinstance(i, Load) and i.leaf.kind != "weight")
        return tuple(load for load in loads if load.target not in self.masks)

    @cached_property
    def masks(self) -> Mapping[str, Leaf]:
        """By register, the masks that operators draw for themselves: those that nothing but
        operators reads, and that are no outputs. In the register is the key of a step's mask."""
        loads = (i for i in self._every if isinstance(i, Load) and i.leaf.share is not None)
        drawn = {load.target: load.leaf for load in loads}
        moved = {name for i in self._every if not isinstance(i, Run) for name in sources(i)}
        return {n: leaf for n, leaf in drawn.items() if n not in moved.union(self.outputs)}

    @property
    def _every(self) -> Iterator[Instruction]:
        later = () if self.pipeline is None else (*self.pipeline.slices, self.pipeline.tail)
        return (i for part in (self.instructions, *later) for i in part)

    @cached_property
    def channels(self) -> Mapping[str, Group]:
        """What messages go by besides the channels that all ranks have, in one order on all, with
        the ranks of each."""
        if self.pipeline is None:
            return {}
        size = self.ranks // self.pipeline.stages
        ways: tuple[PassName, ...] = ("forward", "backward")
        return {
            _channel(way, stages): tuple(
                stage * size + rank for stage in sorted(set(stages)) for rank in range(size)
            )
            for stages in self.pipeline.channels
            for way in ways
        }

    @property
    def trained(self) -> tuple[Weight, ...]:
        """The weights that the loss depends on, which a step updates."""
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
