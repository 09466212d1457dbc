"""The graph of a pipeline: the model's, sliced in time and cut in space by rules of the library.

Every operator that streams becomes ``batch(op(pipeline(x)))``; where such operators meet, the
pipeline after a batch is nothing, by another rule. Then each is cut within its stage's group of
devices as in ``search.map``. What crosses from one stage to another is the combine of its parts,
by one more rule, where it comes sooner in parts.

What rules make of an operator is the same wherever it stands (``search.map.rules.templates``), and
on whichever group of devices. So a pipeline that is to be priced is made of templates, an operator
of each kind being cut once; the steps that lead to a pipeline are written for the one that is
chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import TransferParts
from pcg.placement.layout import operand_layout, output_layout
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Scribe
from search.cost.progress import check_time
from search.map.building import Builder, Cut
from search.map.rules.cutting import CutNode
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.map.rules.templates import CutTemplates, behind_reductions
from search.map.space.axes import Strategy
from search.pipeline.crossing import Crossings
from search.pipeline.micro import Chosen, MicroBatches
from search.pipeline.slicing import Slicing

WHOLE = (None,)
"""No operand comes in parts."""


def build(
    batches: MicroBatches,
    chosen: Chosen,
    bounds: Sequence[int],
    interleave: int = 1,
    sharded: int = 1,
    crossings: Crossings | None = None,
) -> Cut:
    """The graph in which the operators between two bounds run as one chunk of a stage, which has a
    group of devices of its own, with the steps that led to it from the model. ``interleave``: how
    many chunks each stage has; ``sharded``: into how many parts weights go, at most; ``crossings``:
    how tensors come to a stage, by default whole."""
    scribe = Scribe.after(batches.streams.opened)
    given = batches, chosen, bounds, interleave, sharded, crossings
    made = _Builder(*given, scribe).run()
    return Cut(made.graph, made.views, tuple(scribe.steps))


def placed(
    batches: MicroBatches,
    chosen: Chosen,
    bounds: Sequence[int],
    interleave: int = 1,
    sharded: int = 1,
    crossings: Crossings | None = None,
) -> PlacedGraph:
    """The same graph without the steps that led to it, which is made far sooner."""
    return _Builder(batches, chosen, bounds, interleave, sharded, crossings).run()


@dataclass
class _Builder:
    batches: MicroBatches
    chosen: Chosen
    bounds: Sequence[int]
    interleave: int
    sharded: int
    crossings: Crossings | None
    scribe: Scribe | None = None
    """Writes down the steps, where they are wanted."""
    _views: dict[Node, MachineView] = field(init=False, default_factory=dict[Node, MachineView])
    _new: dict[Value, Value] = field(init=False, default_factory=dict[Value, Value])
    _cutter: Builder = field(init=False)
    _templates: CutTemplates = field(init=False, default_factory=CutTemplates)

    def __post_init__(self) -> None:
        self._cutter = Builder(self.batches.spaces)

    def run(self) -> PlacedGraph:
        graph = self.batches.streams.graph
        number = {node: i for i, node in enumerate(self.batches.nodes)}
        for node in graph.nodes:
            check_time()
            if node.is_leaf:
                self._new[node.value()] = node.value()
                continue
            self._operator(node, self.chosen.strategies[number[node]], self._first(number[node]))
        outputs = tuple(self._new[value] for value in graph.outputs)
        made = PlacedGraph(Graph(outputs), self._views)
        if self.sharded == 1:
            return made
        weights = {leaf.leaf.name for leaf in graph.leaves}
        parting = self.batches.spaces.cuts.parting
        return fully_sharded(made, weights, self.sharded, parting, self.scribe)

    def _first(self, number: int) -> int:
        """The first device of the stage that an operator is of."""
        stages = (len(self.bounds) - 1) // self.interleave
        stage = (bisect_right(self.bounds, number) - 1) % stages
        return stage * self.batches.cost.machine.devices

    def _operator(self, node: Node, strategy: Strategy, first: int) -> None:
        """Cut an operator by its strategy, on devices from ``first`` on."""
        inputs = tuple(self._new[value] for value in node.inputs)
        outer, inner, view = self._templated(node, inputs, strategy, first, WHOLE * len(inputs))
        ways = self._ways(node, inputs, inner, view)
        if self.scribe is not None:
            outer, inner, view = self._derived(node, inputs, strategy, first, ways, self.scribe)
        elif any(ways):
            outer, inner, view = self._templated(node, inputs, strategy, first, ways)
        self._new.update(zip(node.outputs, outer, strict=True))
        self._views[inner] = view

    def _templated(
        self,
        node: Node,
        inputs: tuple[Value, ...],
        strategy: Strategy,
        first: int,
        ways: tuple[TransferParts | None, ...],
    ) -> tuple[tuple[Value, ...], Node, MachineView]:
        """What an operator's outputs become, the operator itself, and its view. ``ways``: in which
        parts its operands come."""

        def cut(made: Node) -> CutNode:
            return Slicing(self.batches, self._cutter).cut(node, made, strategy, 0, ways)

        kind = self.batches.spaces.kind(node), strategy, ways
        outer, inner, view = self._templates.cut(kind, node, inputs, cut, behind=_behind)
        return outer, inner, replace(view, start=view.start + first)

    def _derived(
        self,
        node: Node,
        inputs: tuple[Value, ...],
        strategy: Strategy,
        first: int,
        ways: tuple[TransferParts | None, ...],
        scribe: Scribe,
    ) -> tuple[tuple[Value, ...], Node, MachineView]:
        """The same, rule by rule."""
        made = Node(node.call, inputs)
        scribe.rename(dict(zip(node.outputs, made.outputs, strict=True)))
        slicing = Slicing(self.batches, self._cutter, scribe)
        cut = slicing.cut(node, made, strategy, first, ways)
        return cut.outer, cut.inner, cut.view

    def _ways(
        self, node: Node, inputs: tuple[Value, ...], inner: Node, view: MachineView
    ) -> tuple[TransferParts | None, ...]:
        """In which parts each operand comes to an operator that runs as ``inner``, if in any: those
        in slices that cross to its stage. An operand that is read twice comes once."""
        ways: dict[Value, TransferParts | None] = dict.fromkeys(inputs)
        if self.crossings is None or node not in self.batches.streams.axes:
            return WHOLE * len(inputs)
        devices = set(view.devices)
        for position, value in enumerate(inputs):
            source, _ = trace(value)
            if source.node.is_leaf or value.node.name != "batch":
                continue
            there = self._views[source.node]
            if devices.isdisjoint(there.devices):
                layout = output_layout(source.node, source.port, there)
                wanted = operand_layout(inner, position, view)
                ways[value] = self.crossings.best(layout, wanted)
        return tuple(ways[value] for value in inputs)


def _behind(value: Value) -> list[Value]:
    """A value, what its slices are joined from, and what is behind the reductions before that."""
    if value.node.is_leaf or value.node.name != "batch":
        return behind_reductions(value)
    return [value, *behind_reductions(value.node.inputs[0])]
