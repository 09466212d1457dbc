"""The graph of a pipeline: the model's graph, sliced in time and cut in space by rules of the
library.

Every operator that works on slices becomes ``batch(op(pipeline(x)))``. Between two such operators,
a pipeline cancels the batch before it, by another rule. Then each operator is cut within the
devices of its stage as in ``search.map``. A tensor that crosses from one stage to another becomes
the combine of its parts, by one more rule, if it arrives sooner in parts.

The result of the rules for an operator depends neither on its place in the graph
(``search.map.rules.templates``) nor on its group of devices. So a pipeline is built of templates:
an operator of each kind is cut once. The derivation is written only for the pipeline that is
chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import TransferParts
from pcg.placement.layout import operand_layout, output_layout
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Applied, Scribe
from search.cost.progress import check_time
from search.map.building import Builder, Cut
from search.map.rules.cuts import applied
from search.map.rules.cutting import CutNode, CutStep
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.map.rules.templates import behind_reductions
from search.map.space.axes import Strategy
from search.map.space.mapping import mapping_of
from search.pipeline.crossing import Crossings, parted
from search.pipeline.micro import GroupStrategies, MicroBatches

WHOLE = (None,)
"""No operand arrives in parts."""


@dataclass(frozen=True)
class PipelineParts:
    """The parts of which a pipeline is built. The operators between two bounds are one chunk of a
    stage, and each stage has its own group of devices. ``interleave``: the number of chunks of each
    stage; ``sharded``: the most parts in which weights are stored; ``crossings``: chooses how
    tensors arrive at a stage, by default whole."""

    batches: MicroBatches
    chosen: GroupStrategies
    bounds: Sequence[int]
    interleave: int = 1
    sharded: int = 1
    crossings: Crossings | None = None

    def placed(self) -> PlacedGraph:
        """Build the graph of the pipeline."""
        return _Builder(self).run()

    def derived(self) -> Cut:
        """Build the same graph with its derivation from the model, which takes far longer."""
        scribe = Scribe.after(self.batches.streams.unfolding)
        made = _Builder(self, scribe).run()
        return Cut(made.graph, made.views, tuple(scribe.steps))


@dataclass(frozen=True)
class StageCutter:
    """Slices and cuts operators on the devices of a stage."""

    batches: MicroBatches

    def cut(
        self,
        node: Node,
        inputs: Sequence[Value],
        strategy: Strategy,
        first: int,
        ways: Sequence[TransferParts | None] | None = None,
        scribe: Scribe | None = None,
    ) -> tuple[tuple[Value, ...], Node, MachineView]:
        """Cut an operator by its template, on the devices from ``first`` on. Returns the values
        that stand for its outputs, the operator on blocks, and its machine view. ``ways``: the
        parts in which its operands arrive, if they do; ``scribe``: if given, writes the derivation
        down."""
        parts = tuple(ways or WHOLE * len(inputs))

        def cut(made: Node) -> CutNode:
            return _Slicing(self.batches, self._builder).cut(node, made, strategy, parts)

        kind = self.batches.spaces.kind(node), strategy, parts
        outer, inner, placed = self.batches.templates.cut(kind, node, inputs, cut, _behind, scribe)
        mesh = self.batches.spaces.mesh
        return outer, inner, placed.view(mapping_of(strategy, first, mesh.primes, mesh.strides))

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.batches.spaces)


@dataclass
class _Builder:
    parts: PipelineParts
    scribe: Scribe | None = None
    """Writes the derivation down, if given."""
    _views: dict[Node, MachineView] = field(init=False, default_factory=dict[Node, MachineView])
    _new: dict[Value, Value] = field(init=False, default_factory=dict[Value, Value])
    _cutter: StageCutter = field(init=False)

    def __post_init__(self) -> None:
        self._cutter = StageCutter(self.batches)

    @property
    def batches(self) -> MicroBatches:
        return self.parts.batches

    def run(self) -> PlacedGraph:
        graph, sharded = self.batches.streams.graph, self.parts.sharded
        number = {node: i for i, node in enumerate(self.batches.nodes)}
        for node in graph.nodes:
            check_time()
            if node.is_leaf:
                self._new[node.value()] = node.value()
                continue
            strategy = self.parts.chosen.strategies[number[node]]
            self._operator(node, strategy, self._first(number[node]))
        outputs = tuple(self._new[value] for value in graph.outputs)
        made = PlacedGraph(Graph(outputs), self._views)
        if sharded == 1:
            return made
        weights = {leaf.leaf.name for leaf in graph.leaves}
        parting = self.batches.spaces.cuts.parting
        return fully_sharded(made, weights, sharded, parting, self.scribe)

    def _first(self, number: int) -> int:
        """The first device of the stage of an operator."""
        bounds = self.parts.bounds
        stages = (len(bounds) - 1) // self.parts.interleave
        return (bisect_right(bounds, number) - 1) % stages * self.batches.cost.machine.devices

    def _stage_of(self, view: MachineView) -> int:
        """The stage in whose group a view lies."""
        return view.start // self.batches.cost.machine.devices

    def _operator(self, node: Node, strategy: Strategy, first: int) -> None:
        """Cut an operator by its strategy, on the devices from ``first`` on."""
        inputs = tuple(self._new[value] for value in node.inputs)
        outer, inner, view = self._cutter.cut(node, inputs, strategy, first)
        ways = self._ways(node, inputs, inner, view)
        if any(ways) or self.scribe is not None:
            outer, inner, view = self._cutter.cut(node, inputs, strategy, first, ways, self.scribe)
        self._new.update(zip(node.outputs, outer, strict=True))
        self._views[inner] = view

    def _ways(
        self, node: Node, inputs: tuple[Value, ...], inner: Node, view: MachineView
    ) -> tuple[TransferParts | None, ...]:
        """The parts in which each operand arrives at an operator that runs as ``inner``, or None:
        only sliced operands from other stages have parts. An operand that is read twice arrives
        once."""
        ways: dict[Value, TransferParts | None] = dict.fromkeys(inputs)
        if self.parts.crossings is None or node not in self.batches.streams.axes:
            return WHOLE * len(inputs)
        stage = self._stage_of(view)
        for position, value in enumerate(inputs):
            source, _ = trace(value)
            if source.node.is_leaf or value.node.name != "batch":
                continue
            there = self._views[source.node]
            if self._stage_of(there) != stage:
                layout = output_layout(source.node, source.port, there)
                wanted = operand_layout(inner, position, view)
                ways[value] = self.parts.crossings.best(layout, wanted)
        return tuple(ways[value] for value in inputs)


def _behind(value: Value) -> list[Value]:
    """A value, the slices that it is joined from, and the values behind the last reductions."""
    if value.node.is_leaf or value.node.name != "batch":
        return behind_reductions(value)
    return [value, *behind_reductions(value.node.inputs[0])]


@dataclass
class _Slicing:
    """Slices and cuts one operator of a model."""

    batches: MicroBatches
    cutter: Builder
    _steps: list[CutStep] = field(init=False, default_factory=list[CutStep])

    def cut(
        self,
        whole: Node,
        node: Node,
        strategy: Strategy,
        ways: Sequence[TransferParts | None],
    ) -> CutNode:
        """Slice and cut an operator of the whole graph (``whole``) by a strategy.
        ``node``: the operator, reading operands that are already sliced and cut; ``ways``: the
        parts in which each sliced operand arrives, or None."""
        outer, made = node.outputs, node
        if whole in self.batches.streams.axes and self.batches.slices > 1:
            outer, made = self._sliced(whole, node, ways)
        cut = self.cutter.cut_node(whole, made, strategy)
        self._steps += cut.steps
        outputs = self._replaced(outer, dict(zip(made.outputs, cut.outer, strict=True)))
        return CutNode(outputs, cut.inner, cut.placed, tuple(self._steps))

    def _sliced(
        self, whole: Node, node: Node, ways: Sequence[TransferParts | None]
    ) -> tuple[tuple[Value, ...], Node]:
        """The outputs of an operator in slices, and the operator on slices."""
        sliced = applied(self.batches.streams.rules[whole], node, self.batches.slices)
        assert sliced is not None
        self._steps.append((sliced, {}))
        before = trace(sliced.made[0])[0].node
        # An operand that is read twice arrives once.
        hows = dict(zip(before.inputs, ways, strict=True))
        joined = {value: self._joined(value, how) for value, how in hows.items()}
        after = Node(before.call, tuple(joined[value] for value in before.inputs))
        same = dict(zip(before.outputs, after.outputs, strict=True))
        self._steps.append((None, same))
        return self._replaced(sliced.made, same), after

    def _joined(self, value: Value, how: TransferParts | None) -> Value:
        """An operand as the operator reads it. If it is a pipeline of a batch, these two are
        cancelled, and it arrives in the given parts."""
        cancelled = self._cancelled(value)
        if cancelled is None:
            return value
        plain = cancelled.made[0]
        parts = how and parted(self.batches.spaces.cuts.rules, value, how)
        for step in (parts, cancelled):
            if step is not None:
                self._steps.append((step, {}))
        if parts is None:
            return plain
        # The rule is applied to the value that this operator alone reads. Only then is that value
        # replaced by the one that others read too.
        (join,) = parts.made
        after = Graph((join, join.node.inputs[0])).replace({value: plain}).outputs
        same = dict(zip((join, join.node.inputs[0]), after, strict=True))
        self._steps.append((None, same))
        return after[0]

    def _cancelled(self, value: Value) -> Applied | None:
        """The application that cancels a pipeline and the batch before it; None if an operand is
        not of this form."""
        if value.node.is_leaf or value.node.name != "pipeline":
            return None
        rules = self.batches.streams.cancel.get(value.rank, ())
        return next((a for rule in rules if (a := applied(rule, value.node, 1))), None)

    def _replaced(
        self, values: tuple[Value, ...], replaced: Mapping[Value, Value]
    ) -> tuple[Value, ...]:
        """The values after a replacement in their operands. They keep their meaning for readers."""
        images = Graph(values).replace(replaced).outputs
        pairs = zip(values, images, strict=True)
        self._steps.append((None, {a: b for a, b in pairs if a not in replaced}))
        return images
