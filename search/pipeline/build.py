"""The graph of a pipeline: the model's, sliced in time and cut in space by rules of the library.

Every operator that streams becomes ``batch(op(pipeline(x)))``; where such operators meet, the
pipeline after a batch is nothing, by another rule. Then each is cut within its stage's group of
devices as in ``search.map``. What crosses from one stage to another is the combine of its parts,
by one more rule, where it comes sooner in parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.layout import operand_layout, output_layout
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Applied, Scribe
from search.cost.progress import check_time
from search.map.building import Builder, Cut
from search.map.rules.cuts import applied
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.map.space.axes import Strategy
from search.pipeline.crossing import Crossings, parted
from search.pipeline.micro import Chosen, MicroBatches


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
    return _Builder(batches, chosen, bounds, interleave, sharded, crossings).run()


@dataclass
class _Builder:
    batches: MicroBatches
    chosen: Chosen
    bounds: Sequence[int]
    interleave: int
    sharded: int
    crossings: Crossings | None
    _views: dict[Node, MachineView] = field(init=False, default_factory=dict[Node, MachineView])
    _scribe: Scribe = field(init=False)
    _new: dict[Value, Value] = field(init=False, default_factory=dict[Value, Value])
    _cutter: Builder = field(init=False)

    def __post_init__(self) -> None:
        self._scribe = Scribe.after(self.batches.streams.opened)
        self._cutter = Builder(self.batches.spaces)

    def run(self) -> Cut:
        graph = self.batches.streams.graph
        number = {node: i for i, node in enumerate(self.batches.nodes)}
        for node in graph.nodes:
            check_time()
            if node.is_leaf:
                self._new[node.value()] = node.value()
                continue
            self._operator(node, self.chosen.strategies[number[node]], self._first(number[node]))
        outputs = tuple(self._new[value] for value in graph.outputs)
        placed = PlacedGraph(Graph(outputs), self._views)
        if self.sharded > 1:
            weights = {leaf.leaf.name for leaf in graph.leaves}
            parting = self.batches.spaces.cuts.parting
            placed = fully_sharded(placed, weights, self.sharded, parting, self._scribe)
        return Cut(placed.graph, placed.views, tuple(self._scribe.steps))

    def _first(self, number: int) -> int:
        """The first device of the stage that an operator is of."""
        stages = (len(self.bounds) - 1) // self.interleave
        stage = (bisect_right(self.bounds, number) - 1) % stages
        return stage * self.batches.cost.machine.devices

    def _operator(self, node: Node, strategy: Strategy, first: int) -> None:
        """Cut an operator by its strategy, on devices from ``first`` on."""
        made = Node(node.call, tuple(self._new[value] for value in node.inputs))
        self._scribe.rename(_same_ports(node, made))
        outer = made.outputs
        if node in self.batches.streams.axes and self.batches.slices > 1:
            outer, made = self._sliced(node, made, strategy, first)
        cut = self._cutter.cut_node(node, made, strategy, first)
        cut.write(self._scribe)
        outputs = self._replaced(outer, dict(zip(made.outputs, cut.outer, strict=True)))
        self._new.update(zip(node.outputs, outputs, strict=True))
        self._views[cut.inner] = cut.view

    def _sliced(
        self, whole: Node, node: Node, strategy: Strategy, first: int
    ) -> tuple[tuple[Value, ...], Node]:
        """The outputs of an operator in slices, and the operator on slices itself."""
        streams, slices = self.batches.streams, self.batches.slices
        sliced = applied(streams.rules[whole], node, slices)
        assert sliced is not None
        self._scribe.write(sliced)
        before = trace(sliced.made[0])[0].node
        cancelled = {value: self._cancelled(value) for value in dict.fromkeys(before.inputs)}
        ways = self._ways(whole, before, cancelled, strategy, first)
        joined = {value: self._joined(value, cancelled[value], ways.get(value)) for value in ways}
        after = Node(before.call, tuple(joined[value] for value in before.inputs))
        same = _same_ports(before, after)
        self._scribe.rename(same)
        return self._replaced(sliced.made, same), after

    def _cancelled(self, value: Value) -> Applied | None:
        """How an operand goes without a batch that a pipeline follows, if it is that."""
        if value.node.is_leaf or value.node.name != "pipeline":
            return None
        rules = self.batches.streams.cancel.get(value.rank, ())
        return next((a for rule in rules if (a := applied(rule, value.node, 1))), None)

    def _ways(
        self,
        whole: Node,
        before: Node,
        cancelled: Mapping[Value, Applied | None],
        strategy: Strategy,
        first: int,
    ) -> dict[Value, Applied | None]:
        """How each operand of an operator is made of its parts, if it crosses to its stage so."""
        plain = {value: own.made[0] if own else value for value, own in cancelled.items()}
        sources = {value: trace(own)[0] for value, own in plain.items()}
        ways: dict[Value, Applied | None] = dict.fromkeys(cancelled)
        if self.crossings is None or all(source.node.is_leaf for source in sources.values()):
            return ways
        operands = tuple(plain[value] for value in before.inputs)
        cut = self._cutter.cut_node(whole, Node(before.call, operands), strategy, first)
        for position, value in enumerate(before.inputs):
            source = sources[value]
            if source.node.is_leaf or cancelled[value] is None:
                continue
            layout = output_layout(source.node, source.port, self._views[source.node])
            how = self.crossings.best(layout, operand_layout(cut.inner, position, cut.view))
            ways[value] = how and parted(self.batches.spaces.cuts.rules, value, how)
        return ways

    def _joined(self, value: Value, cancelled: Applied | None, parts: Applied | None) -> Value:
        """An operand as the operator reads it."""
        if cancelled is None:
            return value
        plain = cancelled.made[0]
        for one in (parts, cancelled):
            if one is not None:
                self._scribe.write(one)
        if parts is None:
            return plain
        # The rule is about what this operator alone reads, before it becomes what others read too.
        (join,) = parts.made
        after = Graph((join, join.node.inputs[0])).replace({value: plain}).outputs
        self._scribe.rename(dict(zip((join, join.node.inputs[0]), after, strict=True)))
        return after[0]

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
