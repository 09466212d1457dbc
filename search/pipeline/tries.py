"""The numbers of stages and micro-batches that are tried, and the resulting outlines.

Problem: choosing strategies for one number of stages and one of micro-batches takes a fraction of a
second, and there may be hundreds of both numbers. Method: with few micro-batches stages wait for
each other, and with many each pays for its kernels. So the time of a step first falls and then
rises with their number. For each number of stages, the rungs of a ladder are tried, each at least
twice the one before, until a step takes clearly longer than with the best (``WORSE``). In the end,
the numbers between the best rung and its neighbours are tried, on each side until they gain
nothing. Numbers of stages are tried downwards from ``USUAL_STAGES``, and upwards from there as long
as deeper pipelines are not clearly slower or nothing fits. Exact if the time falls and then rises
in either number; strategies that change from one number to the next may disturb that slightly.
Complexity: the product of two logarithms, times the choice of strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import NamedTuple

from pcg.machine import Machine
from pcg.plan.pipeline import ScheduleKind
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.progress import Phases, Teller
from search.map.choose.resharding import Transfers
from search.map.rules.cuts import Cuts
from search.map.space.allow import Allowed
from search.map.space.axes import Mesh, Strategy
from search.pipeline.by_blocks import by_blocks
from search.pipeline.micro import GroupStrategies, MicroBatches
from search.pipeline.outline import (
    ByStage,
    Outline,
    interleaved,
    micro_batch_counts,
    outline,
    stage_counts,
    with_weights_pass,
)
from search.pipeline.stage_batches import StageBatches, by_kind, group_costs, least_of
from search.pipeline.stage_memory import AGAIN, PLAIN, Sparing
from search.pipeline.streams import Streams
from search.split.blocks import blocks_of
from search.split.colours import MOST_FREE

USUAL_STAGES = 16
"""Deeper pipelines are tried if this many stages are hardly worse than fewer, or do not fit."""
FEW_OPERATORS = 24
"""The number of operators up to which outlines are cheap."""
SLACK = 1.2
"""For few operators, outlines up to this many times as slow as the best are tried, as the best by
estimate may not fit once it is built."""
WORSE = 1.1
"""A rung, or a number of stages, may take this many times as long as the best before, and the
search goes on. Other chunks, or other degrees within a stage, disturb the order of neighbours."""
GROWTH = 2
"""The least factor between a rung of the ladder and the one before."""
SPARING = {
    Recompute.SELECTIVE: Sparing(left=0.7, time=1.05),
    Recompute.FULL: Sparing(left=0.1, time=1 + AGAIN),
    Recompute.AUTO: Sparing(left=0.1, time=1 + AGAIN),
}
"""The assumed effect of recomputation in outlines. Built pipelines are counted and simulated.
Recomputing all is one more forward pass beside one forward and one backward pass, which is twice as
long."""
NEAR = 1.5
"""Outlines that guess the effect of recomputation are not made if one by hand, in which it is
counted, takes at most this many times their bound."""
PLAIN_FIRST = (Recompute.AUTO, Recompute.NONE)
"""The modes in which a pipeline that fits recomputes nothing."""


def ladder(counts: Sequence[int]) -> list[int]:
    """Some of ascending counts: the first, and then always the next one that is at least ``GROWTH``
    times as large."""
    rungs: list[int] = []
    for count in counts:
        if not rungs or count >= GROWTH * rungs[-1]:
            rungs.append(count)
    return rungs


def beside(counts: Sequence[int], rung: int) -> tuple[list[int], list[int]]:
    """The counts between a rung and its neighbours: the smaller ones and the larger ones, each in
    the order away from the rung."""
    rungs = ladder(counts)
    at = rungs.index(rung)
    first = rungs[at - 1] if at else 0
    last = rungs[at + 1] if at + 1 < len(rungs) else inf
    smaller = [count for count in counts if first < count < rung]
    return smaller[::-1], [count for count in counts if rung < count < last]


@dataclass(frozen=True)
class _Groups:
    """The cost model of each stage, and the transfers that all numbers of micro-batches share."""

    costs: tuple[CostModel, ...]
    transfers: Transfers

    @property
    def stages(self) -> int:
        return len(self.costs)


class _OutlineFigures(NamedTuple):
    """An outline: its seconds, its stages, and its micro-batches."""

    seconds: float
    stages: int
    micro_batches: int


@dataclass
class OutlineSearch:
    """The outlines of pipelines of a model on a machine that are worth building."""

    source: Streams
    cuts: Cuts
    machine: Machine
    kind: ScheduleKind
    cost_on: Callable[[Machine], CostModel]
    """Returns the cost model of the devices of a stage."""
    allowed: Allowed
    faster_than: float
    """Seconds of a step: outlines that are not faster are left out."""
    phases: Phases
    teller: Teller
    recompute: Recompute = Recompute.AUTO
    """What may be recomputed in the backward pass of a micro-batch."""
    share: float = 1.0
    """The fraction of a device's memory that an outline may take."""
    _least: float = field(init=False)
    """Seconds of the best outline so far. Outlines with recomputation may not fit in the end, and
    do not count."""
    _slack: float = field(init=False, default=1.0)
    """Outlines up to this many times the least seconds are tried."""
    _best: dict[bool, _OutlineFigures] = field(
        init=False, default_factory=dict[bool, "_OutlineFigures"]
    )
    """The best outline of those that rule others out (True), and of those that do not (False)."""

    def __iter__(self) -> Iterator[Outline]:
        self._least = self.faster_than
        is_small = len(self.source.graph.operators) <= FEW_OPERATORS
        self._slack = SLACK * max(1.0, self.share) if is_small else 1.0
        most = len(self.source.graph.operators)
        counts = [stages for stages, _ in stage_counts(self.machine) if stages <= most]
        usual = [stages for stages in counts if stages <= USUAL_STAGES]
        depths: list[float] = []
        for stages in reversed(usual):
            depths.append((yield from self._climbed(stages)))
        deepest = depths[0]
        for stages in self._deeper(counts[len(usual) :]):
            if deepest > WORSE * min(depths):
                break
            deepest = yield from self._climbed(stages)
            depths.append(deepest)
        best = self._best.get(True, self._best.get(False))
        if best is not None:
            yield from self._refined(best)

    def _deeper(self, counts: Sequence[int]) -> Sequence[int]:
        """The numbers of stages above the usual ones. If some divide a deep model's blocks evenly,
        the others are left out."""
        graph = self.source.graph
        blocks = blocks_of(graph) if len(graph.operators) > MOST_FREE else None
        even = [count for count in counts if blocks is not None and blocks.count % count == 0]
        return even or counts

    def _climbed(self, stages: int) -> Generator[Outline, None, float]:
        """Up the ladder, until more micro-batches pay no more; in the end, the least seconds."""
        groups, least = self._groups(stages), inf
        for count in ladder(micro_batch_counts(self.source.batch, stages)):
            seconds = yield from self._tried(groups, count)
            if seconds is None or seconds > WORSE * least:
                break
            least = min(least, seconds)
        return least

    def _refined(self, best: _OutlineFigures) -> Iterator[Outline]:
        """Try the numbers on either side of a rung, as long as they gain time."""
        groups = self._groups(best.stages)
        for side in beside(micro_batch_counts(self.source.batch, best.stages), best.micro_batches):
            least = min(self._least, best.seconds)
            for other in side:
                seconds = yield from self._tried(groups, other)
                if seconds is None or seconds >= least:
                    break
                least = seconds

    def _groups(self, stages: int) -> _Groups:
        costs = group_costs(self.machine, stages, self.cost_on)
        return _Groups(costs, Transfers(Mesh(costs[0].machine)))

    def _tried(self, groups: _Groups, count: int) -> Generator[Outline, None, float | None]:
        """Try one number of micro-batches. Returns the seconds of the fastest outline,
        infinite if none fits. Returns None if a step
        would not beat the best even without any waiting; this holds for more micro-batches too,
        which never make the work less."""
        stages = groups.stages
        noun = "stage" if stages == 1 else "stages"
        work = f"{stages} {noun} x {count} micro-batches"
        self.teller.works_on(work, "pipeline")
        batches = self._batches(groups, count)
        choose = partial(batches.choose, MicroBatches.choose)
        choices = self.phases.timed("choosing", choose)
        busy = _busy(batches, choices)
        if busy >= self._slack * self._least:
            return None
        self.teller.works_on(work, "pipeline", lambda: busy)
        least = inf
        for made in self._outlined(batches, choices):
            if self.kind == "1f1b" and stages > 1 and not made.by_hand:
                ways = interleaved(made), with_weights_pass(made)
                made = min(ways, key=lambda one: one.seconds)
            least = min(least, made.seconds)
            self._note(made, _OutlineFigures(made.seconds, stages, count))
            if made.seconds < self.faster_than:
                yield made
        batches.forget()
        return least

    def _batches(self, groups: _Groups, count: int) -> StageBatches:
        def on(cost: CostModel) -> MicroBatches:
            given = self.source, cost, self.cuts, count, self.allowed, groups.transfers
            return MicroBatches(*given)

        return StageBatches(self.machine, by_kind(groups.costs, on), self.share)

    def _note(self, made: Outline, outcome: _OutlineFigures) -> None:
        self.phases.has_plan = True  # an outline can be built
        is_sure = made.sparing == PLAIN or made.by_hand
        rules_out = is_sure or self.recompute not in PLAIN_FIRST
        known = self._best.get(rules_out)
        if outcome.seconds < (known.seconds if known else self.faster_than):
            self._best[rules_out] = outcome
        if rules_out:
            self._least = min(self._least, outcome.seconds)

    def _outlined(self, batches: StageBatches, choices: ByStage) -> Iterator[Outline]:
        """Outlines with a number of stages. If the fastest strategies do not fit, recomputation is
        tried, and then weights that are gathered again for each micro-batch."""
        least = inf
        for hand in by_blocks(batches, self.kind, self.recompute):
            least = min(least, hand.seconds)
            yield hand
        given = batches, self.kind, choices
        made = outline(*given) if self.recompute in PLAIN_FIRST else None
        if made is not None:
            yield made
        if self.recompute is Recompute.NONE or (
            made and _strategies(made.choices) == _strategies(choices)
        ):
            return
        sparing, devices = SPARING[self.recompute], batches.size
        if least <= NEAR * sparing.time * _busy(batches, choices):
            return
        spared = outline(*given, sparing)
        is_last = self.recompute is Recompute.AUTO and made is None and devices > 1
        if spared is None and is_last:
            spared = outline(*given, replace(sparing, parts=devices))
        if spared is not None:
            yield spared


def _busy(batches: StageBatches, choices: ByStage) -> float:
    """The seconds for which stages work in a step, if all work equally long."""
    least = least_of(choices)
    return float(batches.slices * least.micro.sum() + least.once.sum()) / batches.stages


def _strategies(choices: Sequence[GroupStrategies]) -> list[tuple[Strategy, ...]]:
    return [chosen.strategies for chosen in choices]
