"""The strategies of a pipeline, chosen again for its stages.

Problem: the strategies of an outline are chosen before its stages are known, as if every tensor
stayed within a group of devices. A tensor that crosses to the next stage is sent there, in whatever
layout its readers want. So operators at the bounds of stages may be cut otherwise at no cost.

Method: the same variable elimination as before, once the bounds are known. The table of a tensor
within a stage is that of its resharding. The table of a tensor between stages has the seconds for
which both are busy with it as it runs (``search.pipeline.crossing``), for each pair of layouts.
Operators are priced on the devices of their own stage. Seconds count by the weights of their
chunks (``chunk_weights``).

Complexity: that of the choice, and for each tensor between stages a transfer for each pair of
different layouts. Exact for the weighted sum of all stages, if no operator at a bound has more
strategies than are asked for: of more, those are considered that are best if tensors cross for
free, and the one before. This sum is not yet the time of a step, and bytes have no price in it. So
a pipeline with these strategies is built, and taken if it is faster and fits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pcg.graph.graph import Node, Value
from pcg.placement.layout import Layout, operand_layout, output_layout
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.progress import check_time
from search.map.choose.choosing import least_places
from search.map.choose.factors import Factor, PairTable, Places, restricted
from search.map.choose.marginals import promising
from search.map.choose.resharding import NEVER
from search.map.space.axes import Strategy
from search.map.space.strategies import Space
from search.pipeline.built.build import StageCutter
from search.pipeline.built.chunk_weights import ChunkWeights, plain_weights
from search.pipeline.crossing import Crossings
from search.pipeline.micro import MicroBatches, MicroResharding
from search.pipeline.outline import Outline
from search.pipeline.stage_batches import by_kind


def chosen_in_stages(
    one: Outline, crossings: Crossings, most: int, weights: ChunkWeights | None = None
) -> Outline:
    """The outline with the strategies whose seconds in all its stages, and between them, are
    least. ``crossings``: on the whole machine; ``most``: how many strategies of an operator at a
    bound are considered, if all are too many; ``weights``: what seconds count, by default alike."""
    if weights is None:
        weights = plain_weights(len(one.bounds) - 1, one.groups.slices)
    places = _Stages(one, crossings, most, weights).least_places()
    return replace(one, choices=by_kind(one.groups.each, lambda own: own.chosen(places)))


@dataclass(frozen=True)
class _Stages:
    """The choice of strategies of an outline with known bounds."""

    outline: Outline
    crossings: Crossings
    most: int
    weights: ChunkWeights

    def least_places(self) -> list[int]:
        """The place of each operator's strategy."""
        batches = self.outline.batches
        spaces = [self._space(number) for number in range(len(batches.nodes))]
        pairs = zip(batches.nodes, spaces, strict=True)
        masks = [np.flatnonzero(batches.allowed(*pair)) for pair in pairs]
        factors = [*self._alone(), *self._within()]
        masks = self._few_at_bounds(masks, factors)
        factors += self._between(masks)
        return least_places([len(space) for space in spaces], masks, factors)[1]

    def _few_at_bounds(self, masks: list[Places], factors: Sequence[Factor]) -> list[Places]:
        """The places of strategies with few for each operator at a bound."""
        ends = {end for own in self._crossing for end in (own.source, own.target)}
        if all(len(masks[end]) <= self.most for end in ends):
            return masks
        sizes = [len(mask) for mask in masks]
        best = promising(sizes, restricted(factors, masks), self.most, [self._known(masks)])
        return [
            mask[few] if at in ends else mask
            for at, (mask, few) in enumerate(zip(masks, best, strict=True))
        ]

    def _known(self, masks: Sequence[Places]) -> list[int]:
        """The numbers of the strategies before among those that may be used."""
        strategies = enumerate(self.outline.chosen.strategies)
        places = [self._space(number).place(strategy) or 0 for number, strategy in strategies]
        return [int(np.searchsorted(*pair)) for pair in zip(masks, places, strict=True)]

    def _chunk(self, number: int) -> int:
        """The chunk of an operator."""
        return bisect_right(self.outline.bounds, number) - 1

    def _stage(self, number: int) -> int:
        """The stage of an operator."""
        return self._chunk(number) % self.outline.stages

    def _group(self, number: int) -> MicroBatches:
        """The micro-batches on the group of an operator's stage."""
        return self.outline.groups.each[self._stage(number)]

    def _alone(self) -> Iterator[Factor]:
        micro, once = self.weights
        for at in range(len(self.outline.batches.nodes)):
            costs, chunk = self._group(at).tables()[0][at], self._chunk(at)
            yield Factor((at,), micro[chunk] * costs.micro + once[chunk] * costs.once)

    def _within(self) -> Iterator[Factor]:
        """The reshardings within stages."""
        for group in dict.fromkeys(self.outline.groups.each):
            for own in group.tables()[1]:
                if self._group(own.target) is group and not self._crosses(own):
                    yield own.seconds.factor(own.source, own.target, self._times(own))

    def _times(self, own: MicroResharding) -> float:
        """What a second of a resharding counts: half of it for each end."""
        weights = self.weights.micro if own.repeated else self.weights.once
        ends = self._chunk(own.source), self._chunk(own.target)
        return own.times * sum(weights[chunk] for chunk in ends) / 2

    def _crosses(self, own: MicroResharding) -> bool:
        return self._stage(own.source) != self._stage(own.target)

    def _between(self, masks: Sequence[Places]) -> Iterator[Factor]:
        """The tensors between stages."""
        for own in self._crossing:
            table = self._table(own, masks[own.source], masks[own.target])
            yield table.factor(own.source, own.target, self._times(own))

    @cached_property
    def _crossing(self) -> list[MicroResharding]:
        """The tensors between stages, as they would be resharded within one."""
        return [own for own in self.outline.batches.tables()[1] if self._crosses(own)]

    def _table(self, own: MicroResharding, sources: Places, targets: Places) -> PairTable:
        """The seconds of one way of a tensor, for the strategies that may be used."""
        made = [self._made(own, strategy) for strategy in self._strategies(own.source, sources)]
        read = [self._read(own, strategy) for strategy in self._strategies(own.target, targets)]
        before, after = list(dict.fromkeys(made)), list(dict.fromkeys(read))
        each = np.array([[self._seconds(a, b) for b in after] for a in before], np.float32)
        rows, columns = [before.index(one) for one in made], [after.index(one) for one in read]
        shape = len(self._space(own.source)), len(self._space(own.target))
        table = np.full(shape, NEVER, np.float32)
        table[np.ix_(sources, targets)] = each[np.ix_(rows, columns)]
        return PairTable.of(table)

    def _seconds(self, source: Layout, wanted: Layout) -> float:
        check_time()
        return self.crossings.seconds(source, wanted)

    def _made(self, own: MicroResharding, strategy: Strategy) -> Layout:
        """The layout in which a tensor is made."""
        outer, _, view = self._cut(own.source, strategy)
        source, _ = trace(outer[own.value.port])
        return output_layout(source.node, source.port, view)

    def _read(self, own: MicroResharding, strategy: Strategy) -> Layout:
        """The layout in which a tensor is read."""
        _, inner, view = self._cut(own.target, strategy)
        return operand_layout(inner, own.position, view)

    def _cut(self, number: int, strategy: Strategy) -> tuple[tuple[Value, ...], Node, MachineView]:
        """An operator as it runs in its stage, with operands that are neither sliced nor cut."""
        group, node = self._group(number), self.outline.batches.nodes[number]
        first = self._stage(number) * self.outline.groups.size
        return StageCutter(group).cut(node, node.inputs, strategy, first)

    def _space(self, number: int) -> Space:
        batches = self.outline.batches
        return batches.spaces.of(batches.nodes[number])

    def _strategies(self, number: int, places: Places) -> Iterator[Strategy]:
        return (self._space(number).strategy(at) for at in places)
