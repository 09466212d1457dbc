"""Pipelines of deep models by hand: strategies that repeat in every block, and stages of blocks.

Problem: the outlines of a deep model are chosen by a heuristic, among thousands of operators, and
cut between any two of them. What recomputation saves there is a guess.

Method: the strategies are data x tensor x sequence parallelism by hand, with each degree within a
node (``MicroBatches.by_hand``). Chunks are rows of whole blocks, as even as possible. Then all
blocks are alike. So the memory that recomputation leaves is known before a pipeline is built: the
tensors that cross from block to block, for each micro-batch under way, and one block at work. As
much is recomputed as is needed to fit, and the time is that part of one more forward pass. This is
how Megatron-LM trains (Narayanan et al., SC 2021). Such pipelines are built first, and their times
rule others out.

Complexity: dynamic programming over blocks. Exact for whole blocks and the estimates of
``outline``; the choice of strategies and of whole blocks is a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np

from pcg.graph.graph import Value
from pcg.plan.pipeline import ScheduleKind
from search.choices import Recompute
from search.pipeline.balance import Band, ChunkMemory, OperatorBytes, balanced, in_flight, sums
from search.pipeline.micro import GroupStrategies, MicroBatches
from search.pipeline.outline import Outline, estimated_seconds
from search.pipeline.stage_batches import StageBatches
from search.pipeline.stage_memory import AGAIN, PLAIN, Sparing, operator_bytes
from search.split.blocks import Blocks, blocks_of
from search.split.colours import MOST_FREE

IN_VAIN = 2
"""The numbers of chunks in a row without a gain after which no more are tried. One may gain nothing
since its chunks are uneven: three blocks of a stage make one or three chunks, but not two."""


def by_blocks(groups: StageBatches, kind: ScheduleKind, recompute: Recompute) -> Iterator[Outline]:
    """The outlines of a deep model by hand, at most one for each degree of tensor parallelism.
    There are none if the graph is small, has no blocks, or has too few for all stages; or if the
    groups are of several kinds."""
    batches = groups.each[0]
    blocks = blocks_of(batches.streams.graph) if len(batches.nodes) > MOST_FREE else None
    if blocks is None or blocks.count < groups.stages or len(set(groups.each)) > 1:
        return
    for chosen in batches.by_hand():
        made = _BlockRow(groups, chosen, blocks, kind, recompute).best()
        if made is not None:
            yield made


@dataclass(frozen=True, eq=False)
class _BlockRow:
    """A row of blocks with the same strategies in each, to be cut into chunks."""

    groups: StageBatches
    chosen: GroupStrategies
    blocks: Blocks
    kind: ScheduleKind
    recompute: Recompute

    def best(self) -> Outline | None:
        """The outline with as many chunks for each stage as gain time; None if none fits."""
        most = self.blocks.count // self.groups.stages
        if self.kind != "1f1b" or self.groups.stages == 1:
            most = 1
        best: Outline | None = None
        worse = 0
        for chunks in range(1, most + 1):
            made = self._cut(chunks)
            if made is not None and (best is None or made.seconds < best.seconds):
                best, worse = made, 0
            elif (worse := worse + 1) == IN_VAIN:
                break
        return best

    def _cut(self, interleave: int) -> Outline | None:
        """The outline with a number of chunks for each stage; None if it does not fit."""
        groups, costs = self.groups, self.chosen.costs
        places, limit = self._places, groups.limit(groups.each[0])
        seconds = np.add.reduceat(groups.slices * costs.micro + costs.once, places[:-1])
        spent = sums(seconds)
        full, working = self._fully_recomputed
        if working >= limit:
            return None
        flights = in_flight(groups.stages, groups.slices, interleave)
        for part in dict.fromkeys((1.0, 1.0 / interleave)):
            memory = ChunkMemory([full], flights, [part * (limit - working)])
            bounds = balanced(
                lambda _, starts, ends: spent(starts, ends),
                seconds,
                groups.stages * interleave,
                memory,
                lambda _: 0,
            )
            if bounds is None:
                return None
            left = self._left(bounds, flights)
            if left is not None:
                return self._outlined(tuple(places[at] for at in bounds), left, interleave)
        return None

    def _outlined(self, bounds: tuple[int, ...], left: float, interleave: int) -> Outline:
        """The outline with given bounds. ``left``: the fraction of what recomputation can save that
        is kept."""
        sparing = PLAIN
        if left < 1.0:
            sparing = Sparing(left, 1 + AGAIN * (1 - left))
        choices = (self.chosen,) * self.groups.stages
        made = Outline(
            self.groups, choices, bounds, inf, interleave, sparing, self.kind, by_hand=True
        )
        return replace(made, seconds=estimated_seconds(made))

    def _left(self, bounds: Sequence[int], flights: Sequence[float]) -> float | None:
        """The largest fraction of what recomputation can save that may be kept, so that all stages
        fit. None if a stage does not fit with full recomputation."""
        stages, limit = self.groups.stages, self.groups.limit(self.groups.each[0])
        plain, (full, working) = self._plain, self._fully_recomputed

        def held(operators: OperatorBytes) -> list[float]:
            each = [
                float(operators.held(flights[number], Band(a, a), Band(b, b))[0, 0])
                for number, (a, b) in enumerate(pairwise(bounds))
            ]
            return [sum(each[stage::stages]) for stage in range(stages)]

        most, least = held(plain), [own + working for own in held(full)]
        if max(least) > limit or (self.recompute is Recompute.NONE and max(most) > limit):
            return None
        return min(
            1.0 if a <= limit else (limit - b) / (a - b) for a, b in zip(most, least, strict=True)
        )

    @property
    def _places(self) -> tuple[int, ...]:
        """The places in the row of operators where blocks begin and end. The operators before the
        first block, and those after the last one, count as a block each."""
        own, count = self.blocks, len(self.groups.each[0].nodes)
        inner = (own.first + number * own.length for number in range(own.count + 1))
        return tuple(dict.fromkeys((0, *inner, count)))

    @property
    def _plain(self) -> OperatorBytes:
        """The memory of blocks if all is kept."""
        own = operator_bytes(self.groups.each[0], self.chosen.costs, self.kind)
        places = self._places[:-1]
        return OperatorBytes(
            np.add.reduceat(own.weights, places), np.add.reduceat(own.activations, places)
        )

    @property
    def _fully_recomputed(self) -> tuple[OperatorBytes, float]:
        """The memory of blocks if all is recomputed but the tensors between them; and the bytes of
        the block at work."""
        plain = self._plain
        between = crossing_bytes(self.groups.each[0], self.chosen, self.blocks)
        kept = np.minimum(plain.activations, between)
        return OperatorBytes(plain.weights, kept), float((plain.activations - kept).max())


def crossing_bytes(batches: MicroBatches, chosen: GroupStrategies, blocks: Blocks) -> float:
    """Bytes on a device of the tensors of one micro-batch that the block in the middle reads of the
    block before."""
    number = {node: at for at, node in enumerate(batches.nodes)}
    held: dict[Value, float] = {}
    for at in range(blocks.begin, blocks.begin + blocks.length):
        node = batches.nodes[at]
        for position, value in enumerate(node.inputs):
            if number.get(value.node, -1) in range(blocks.begin - blocks.length, blocks.begin):
                own = batches.block_bytes(value, node, position, chosen.strategies[at])
                held[value] = max(own, held.get(value, 0.0))
    return sum(held.values())
