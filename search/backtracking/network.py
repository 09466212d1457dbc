"""A graph as the machine mapping sees it: operators that do work, and what passes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Node
from pcg.readings.saved import differentiated
from search.backtracking.tables import (
    CostProfile,
    Flow,
    LeafUse,
    MappedNode,
    OutputUse,
    Share,
    Source,
    Tables,
)
from search.cost.cost import NOTHING
from search.cost.tasks import ProgramStep, TaskProgram, with_weights


@dataclass(frozen=True, eq=False)
class Arc:
    """Something that passes between two operators, by number."""

    source: int
    target: int
    link: Flow | Share


@dataclass(frozen=True, eq=False)
class OperatorNetwork:
    """The compute operators of a graph, numbered in the graph's order."""

    readings: tuple[MappedNode, ...]
    profiles: tuple[CostProfile, ...]
    before: tuple[tuple[Arc, ...], ...]
    """By operator, what it gets from others."""
    after: tuple[tuple[Arc, ...], ...]
    """By operator, what others get from it."""
    returned: tuple[tuple[Source, int, bool], ...]
    """The outputs that are moved: what, to which layout, and whether a gradient comes back."""
    devices: int
    """How many devices it takes at least: for its largest operator, leaf or output."""


def network(graph: Graph, tables: Tables) -> OperatorNetwork:
    """Read a graph."""
    tables.forget()
    readings = [tables.reading(n) for n in graph.nodes if not (n.is_leaf or n.is_parallel)]
    return _Builder(graph, tables, readings).build()


class _Builder:
    def __init__(self, graph: Graph, tables: Tables, readings: Sequence[MappedNode]) -> None:
        self._readings = readings
        self._number = {reading.node: i for i, reading in enumerate(readings)}
        self._outputs = [(value, tables.source(value)) for value in graph.outputs]
        self._tables = tables
        loss = graph.outputs[0].type.rank == 0
        self._ends = self._outputs[:1] if loss else self._outputs

    def build(self) -> OperatorNetwork:
        trained = self._trained()
        weights = self._trained_weights(trained)
        before: list[tuple[Arc, ...]] = []
        after: list[list[Arc]] = [[] for _ in self._readings]
        leaves: list[tuple[LeafUse, ...]] = []
        first_users: dict[Node, tuple[int, int, int]] = {}
        for i, reading in enumerate(self._readings):
            arcs = self._flows(i, reading, trained[i])
            uses, shares = self._leaves(i, reading, trained[i], weights, first_users)
            before.append((*arcs, *shares))
            leaves.append(uses)
            for arc in before[-1]:
                after[arc.source].append(arc)
        returned, outputs = self._returned()
        profiles: list[CostProfile] = []
        for i, r in enumerate(self._readings):
            uses = outputs.get(i, ())
            parts = self._parts(r, after[i], uses)
            profiles.append(CostProfile(r.kind, r.needs, trained[i], leaves[i], uses, parts))
        return OperatorNetwork(
            tuple(self._readings),
            tuple(profiles),
            tuple(before),
            tuple(map(tuple, after)),
            returned,
            self._devices(),
        )

    def _devices(self) -> int:
        sources = [source for reading in self._readings for source in reading.sources]
        sources += [source for _, source in self._outputs]
        return max(
            *(reading.tasks for reading in self._readings),
            *(source.devices for source in sources),
            *(value.type.pieces for value, _ in self._outputs),
        )

    def _trained(self) -> list[bool]:
        """Whether gradients pass through each operator: it lies between a weight and the loss."""
        reached = {self._number[s.value.node] for _, s in self._ends if s.chain < 0}
        trained = [False] * len(self._readings)
        for i in range(len(self._readings) - 1, -1, -1):
            reading = self._readings[i]
            if i in reached and reading.needs:
                trained[i] = True
                for source in reading.sources:
                    if source.chain < 0:
                        reached.add(self._number[source.value.node])
        return trained

    def _trained_weights(self, trained: Sequence[bool]) -> set[Node]:
        used = [s for i, r in enumerate(self._readings) if trained[i] for s in r.sources]
        used += [s for _, s in self._ends]
        return {s.value.node for s in used if s.chain >= 0 and s.value.node.leaf.kind == "weight"}

    def _flows(self, i: int, reading: MappedNode, trained: bool) -> list[Arc]:
        """What comes from other operators; operands that read the same value go together."""
        operands: dict[tuple[int, int], list[int]] = {}
        for operand, source in enumerate(reading.sources):
            if source.chain < 0:
                key = (self._number[source.value.node], source.value.port)
                operands.setdefault(key, []).append(operand)
        return [
            Arc(j, i, Flow(port, tuple(found), trained and found[0] in reading.needs))
            for (j, port), found in operands.items()
        ]

    def _parts(
        self, reading: MappedNode, after: Sequence[Arc], outputs: Sequence[OutputUse]
    ) -> tuple[int, ...]:
        """How many gradients of each output come back."""
        parts = [0] * len(reading.node.types)
        for arc in after:
            if isinstance(arc.link, Flow) and arc.link.moves_back:
                reader = differentiated(self._readings[arc.target].node)
                parts[arc.link.port] += len(reader.intersection(arc.link.operands))
        for use in outputs:
            parts[use.port] += use.moves_back
        return tuple(parts)

    def _leaves(
        self,
        i: int,
        reading: MappedNode,
        trained: bool,
        weights: set[Node],
        first_users: dict[Node, tuple[int, int, int]],
    ) -> tuple[tuple[LeafUse, ...], list[Arc]]:
        """The leaves that the operator is the first to use, and those that it shares."""
        uses: list[LeafUse] = []
        shares: list[Arc] = []
        for operand, source in enumerate(reading.sources):
            if source.chain < 0:
                continue
            leaf = source.value.node
            back = trained and source.gradient
            if leaf.leaf.kind == "input":
                uses.append(LeafUse(operand, source.chain, False, False))
            elif leaf not in first_users:
                first_users[leaf] = (i, operand, source.chain)
                uses.append(LeafUse(operand, source.chain, back, leaf in weights))
            else:
                user, first, chain = first_users[leaf]
                # Used twice by one operator: the second use is priced by the simulation alone.
                if user != i:
                    shares.append(Arc(user, i, Share(chain, first, operand, back)))
        return tuple(uses), shares

    def _returned(
        self,
    ) -> tuple[tuple[tuple[Source, int, bool], ...], dict[int, tuple[OutputUse, ...]]]:
        moved: list[tuple[Source, int, bool]] = []
        uses: dict[int, tuple[OutputUse, ...]] = {}
        for value, source in self._outputs:
            if source.chain < 0 and source.value == value:
                continue  # stays where it is made
            layout = self._tables.spread(value.type)
            # Nothing moves back where the loss is put together: its gradient is 1.
            ends = (end is source for _, end in self._ends if value.type.rank)
            back = source.gradient and any(ends)
            moved.append((source, layout, back))
            if source.chain < 0:
                number = self._number[source.value.node]
                use = OutputUse(source.value.port, layout, back)
                uses[number] = (*uses.get(number, ()), use)
        return tuple(moved), uses


LOADED = -1
"""The step of a tensor that is in a layout from the start."""


@dataclass(eq=False)
class Pricer:
    """Makes the program of a network's schedule, as ``pcg.placement.schedule`` orders its steps."""

    network: OperatorNetwork
    tables: Tables
    views: Sequence[int]
    """The number of the view of every operator."""
    _steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    _resharded: dict[tuple[Node, int, int], int] = field(
        default_factory=dict[tuple[Node, int, int], int]
    )
    """By tensor and layout, the step that moved it there, or LOADED."""
    _homes: dict[Node, int] = field(default_factory=dict[Node, int])
    _made: dict[Node, tuple[int, int]] = field(default_factory=dict[Node, tuple[int, int]])
    """The view of every operator so far, and its step."""
    _adds: dict[Node, set[int]] = field(default_factory=dict[Node, set[int]])
    """The weights that get a gradient, with the steps that add to it."""
    _parts: Counter[tuple[int, int, int]] = field(default_factory=Counter[tuple[int, int, int]])
    """How many gradients come back of what a step makes, by step, port and layout."""

    def program(self) -> TaskProgram:
        """The same program as that of the schedule of the graph with these views."""
        tables = self.tables
        for reading, profile, view in zip(
            self.network.readings, self.network.profiles, self.views, strict=True
        ):
            reads: dict[int, None] = {}
            added: list[Node] = []
            for operand, source in enumerate(reading.sources):
                back = profile.trained and source.gradient
                wanted = tables.wanted(profile.kind, operand, view)
                part = back and operand in differentiated(reading.node)
                step = self._fetch(source, wanted, back, part)
                if step != LOADED:
                    reads[step] = None
                elif back and source.value.node.leaf.kind == "weight":
                    added.append(source.value.node)
            for node in added:
                self._adds.setdefault(node, set()).add(len(self._steps))
            self._made[reading.node] = (view, len(self._steps))
            times, late = tables.computation(profile, view), tables.late(profile, view)
            self._steps.append(ProgramStep(*times, tuple(reads), late=late))
        for source, layout, back in self.network.returned:
            self._fetch(source, layout, back)
        return self._finished()

    def _finished(self) -> TaskProgram:
        for (number, _, layout), count in self._parts.items():
            step, made = self._steps[number], [self.tables.layout(layout)]
            back = self.tables.cost.with_sums(step.backward, made, [count])
            self._steps[number] = step._replace(backward=back)
        trained = [node for node in self._homes if node in self._adds]
        for number, node in enumerate(trained):
            for i in self._adds[node]:
                step = self._steps[i]
                self._steps[i] = step._replace(weights=(*step.weights, number))
        homes = [self.tables.layout(self._homes[node]) for node in trained]
        return with_weights(self._steps, homes, self.tables.cost)

    def _fetch(self, source: Source, wanted: int, back: bool, part: bool = False) -> int:
        """The step after which a tensor is where it is wanted, or LOADED. ``part``: whether what
        reads it there adds to its gradient."""
        node, port = source.value.node, source.value.port
        reads: tuple[int, ...] = ()
        if source.chain < 0:
            view, step = self._made[node]
            start, reads = self.tables.produced(self.tables.reading(node).kind, port, view), (step,)
        elif node.leaf.kind == "input":
            start = self.tables.home(source.chain, wanted)
            self._resharded.setdefault((node, port, start), LOADED)
        else:
            if node not in self._homes:
                self._homes[node] = self.tables.home(source.chain, wanted)
            start = self._homes[node]
        moved, returned = self.tables.moved(start, wanted)
        if moved is NOTHING:
            if reads and part:
                self._parts[reads[0], port, start] += 1
            return reads[0] if reads else LOADED
        first = (node, port, wanted) not in self._resharded
        step = self._resharded.setdefault((node, port, wanted), len(self._steps))
        if step == len(self._steps):
            gradient = returned if back else NOTHING
            self._steps.append(ProgramStep(moved, gradient, reads, reshards=True))
        elif back and step != LOADED:
            first = self._steps[step].backward is NOTHING
            self._steps[step] = self._steps[step]._replace(backward=returned)
        if back and first and reads:
            self._parts[reads[0], port, start] += 1
        if part and step != LOADED:
            self._parts[step, port, wanted] += 1
        if back and node.is_leaf and node.leaf.kind == "weight":
            self._adds.setdefault(node, set()).add(step)
        return step
