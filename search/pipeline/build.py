"""The graph of a pipeline: the model's, sliced in time and cut in space by rules of the library.

Every operator that streams becomes ``batch(op(pipeline(x)))``; where such operators meet, the
pipeline after a batch is nothing, by another rule. Then each is cut within its stage's group of
devices as in ``search.mesh``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Scribe
from search.mesh.plan.building import Builder, Cut
from search.mesh.rules.cuts import applied
from search.mesh.rules.fully_sharded import PlacedGraph, fully_sharded
from search.mesh.space.axes import Strategy
from search.pipeline.micro import Chosen, MicroBatches


def build(
    batches: MicroBatches,
    chosen: Chosen,
    bounds: Sequence[int],
    interleave: int = 1,
    sharded: int = 1,
) -> Cut:
    """The graph in which the operators between two bounds run as one chunk of a stage, which has a
    group of devices of its own, with the steps that led to it from the model. ``interleave``: how
    many chunks each stage has; ``sharded``: into how many parts weights go, at most."""
    return _Builder(batches, chosen, bounds, interleave, sharded).run()


@dataclass
class _Builder:
    batches: MicroBatches
    chosen: Chosen
    bounds: Sequence[int]
    interleave: int
    sharded: int
    _scribe: Scribe = field(init=False)
    _new: dict[Value, Value] = field(init=False, default_factory=dict[Value, Value])
    _cutter: Builder = field(init=False)

    def __post_init__(self) -> None:
        self._scribe = Scribe.after(self.batches.streams.opened)
        self._cutter = Builder(self.batches.spaces)

    def run(self) -> Cut:
        graph = self.batches.streams.graph
        views: dict[Node, MachineView] = {}
        devices = self.batches.cost.machine.devices
        stages = (len(self.bounds) - 1) // self.interleave
        number = {node: i for i, node in enumerate(self.batches.nodes)}
        for node in graph.nodes:
            if node.is_leaf:
                self._new[node.value()] = node.value()
                continue
            stage = (bisect_right(self.bounds, number[node]) - 1) % stages
            inner, view = self._operator(node, self.chosen.strategies[number[node]])
            views[inner] = replace(view, start=view.start + stage * devices)
        outputs = tuple(self._new[value] for value in graph.outputs)
        placed = PlacedGraph(Graph(outputs), views)
        if self.sharded > 1:
            weights = {leaf.leaf.name for leaf in graph.leaves}
            parting = self.batches.spaces.cuts.parting
            placed = fully_sharded(placed, weights, self.sharded, parting, self._scribe)
        return Cut(placed.graph, placed.views, tuple(self._scribe.steps))

    def _operator(self, node: Node, strategy: Strategy) -> tuple[Node, MachineView]:
        made = Node(node.call, tuple(self._new[value] for value in node.inputs))
        self._scribe.rename(_same_ports(node, made))
        outer = made.outputs
        if node in self.batches.streams.axes and self.batches.slices > 1:
            outer, made = self._sliced(node, made)
        cut = self._cutter.cut_node(node, made, strategy)
        cut.write(self._scribe)
        outputs = self._replaced(outer, dict(zip(made.outputs, cut.outer, strict=True)))
        self._new.update(zip(node.outputs, outputs, strict=True))
        return cut.inner, cut.view

    def _sliced(self, whole: Node, node: Node) -> tuple[tuple[Value, ...], Node]:
        """The outputs of an operator in slices, and the operator on slices itself."""
        streams, slices = self.batches.streams, self.batches.slices
        sliced = applied(streams.rules[whole], node, slices)
        assert sliced is not None
        self._scribe.write(sliced)
        before = trace(sliced.made[0])[0].node
        joined = {value: self._joined(value) for value in dict.fromkeys(before.inputs)}
        after = Node(before.call, tuple(joined[value] for value in before.inputs))
        same = _same_ports(before, after)
        self._scribe.rename(same)
        return self._replaced(sliced.made, same), after

    def _joined(self, value: Value) -> Value:
        """An operand without a batch that a pipeline follows."""
        if value.node.is_leaf or value.node.name != "pipeline":
            return value
        for cancel in self.batches.streams.cancel.get(value.rank, ()):
            cancelled = applied(cancel, value.node, 1)
            if cancelled is not None:
                self._scribe.write(cancelled)
                return cancelled.made[0]
        return value

    def _replaced(
        self, values: tuple[Value, ...], replaced: dict[Value, Value]
    ) -> tuple[Value, ...]:
        """Values with others in what they are made of, which stay what they are to readers."""
        images = Graph(values).replace(replaced).outputs
        pairs = zip(values, images, strict=True)
        self._scribe.rename({a: b for a, b in pairs if a not in replaced})
        return images


def _same_ports(before: Node, after: Node) -> dict[Value, Value]:
    return dict(zip(before.outputs, after.outputs, strict=True))
