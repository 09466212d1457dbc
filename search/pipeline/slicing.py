"""One operator of a pipeline: sliced in time, then cut in space, by rules of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import TransferParts
from pcg.placement.schedule import trace
from search.cost.derivation import Applied
from search.map.building import Builder
from search.map.rules.cuts import applied
from search.map.rules.cutting import CutNode, CutStep
from search.map.space.axes import Strategy
from search.pipeline.crossing import parted
from search.pipeline.micro import MicroBatches


@dataclass
class Slicing:
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
