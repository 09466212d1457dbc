"""Outlines of pipelines: stages, micro-batches, strategies and estimates, before one is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import inf, isqrt

import numpy as np

from pcg.graph.graph import Node
from pcg.machine import Link, Machine
from pcg.plan.pipeline import ScheduleKind
from pcg.readings.late import has_separate_gradients
from pcg.readings.work import gradient_nodes
from search.cost.progress import check_time
from search.pipeline.balance import (
    Band,
    ChunkMemory,
    StageCosts,
    StageTable,
    balanced,
    in_flight,
    sums,
)
from search.pipeline.clock import StageSeconds, step_seconds
from search.pipeline.crossing import crossing_seconds
from search.pipeline.cut_crossings import Crossing, CrossingSeconds
from search.pipeline.micro import GroupStrategies, MicroBatchCosts, MicroBatches, Vector
from search.pipeline.stage_batches import StageBatches, by_kind, in_stages, least_of
from search.pipeline.stage_memory import (
    PLAIN,
    Sparing,
    held_for_weight,
    may_fit,
    operator_bytes,
)

PRICES = (0.0, 0.05, 0.5, 4.0, 32.0)
"""The prices of a device's whole memory that are tried until stages fit, as fractions of a step."""


ByStage = tuple[GroupStrategies, ...]
"""The strategies of all operators, as on the group of each stage."""
OutlineKey = tuple[int, tuple[int, ...], int]
"""The micro-batches, bounds and chunks of a pipeline."""


@dataclass(frozen=True)
class Outline:
    """A pipeline that has not been built. ``bounds``: those of its chunks, in the order of the
    operators, with ``interleave`` chunks for each stage; ``seconds``: of a step, estimated."""

    groups: StageBatches
    choices: ByStage
    bounds: tuple[int, ...]
    seconds: float
    interleave: int = 1
    sparing: Sparing = PLAIN
    kind: ScheduleKind = "1f1b"
    by_hand: bool = False
    """Whether its stages are blocks with strategies by hand (``by_blocks``)."""

    @property
    def stages(self) -> int:
        return (len(self.bounds) - 1) // self.interleave

    @property
    def batches(self) -> MicroBatches:
        """The micro-batches on the first group. Those on other groups differ in costs only."""
        return self.groups.each[0]

    @cached_property
    def chosen(self) -> GroupStrategies:
        """The strategy of each operator on the group of its stage."""
        return in_stages(self.choices, self.bounds)

    @property
    def in_any_memory(self) -> Outline:
        """The same outline without a limit of memory."""
        return replace(self, groups=replace(self.groups, share=inf))

    @property
    def key(self) -> OutlineKey:
        """A key that tells it from other pipelines with the same strategies."""
        return self.groups.slices, self.bounds, self.interleave


def stage_counts(machine: Machine) -> list[tuple[int, int]]:
    """The numbers of stages for which groups of consecutive devices do not straddle units of the
    machine, each with the number of devices of a stage; ascending."""
    units = [1]
    for level in machine.levels:
        units.append(units[-1] * level.count)
    counts: list[tuple[int, int]] = []
    for stages in _divisors(machine.devices):
        size = machine.devices // stages
        nested = all(size % unit == 0 or unit % size == 0 for unit in units)
        if nested or stages == 1:
            counts.append((stages, size))
    return counts


def micro_batch_counts(batch: int, stages: int = 1) -> list[int]:
    """The numbers of micro-batches into which a batch can be cut, ascending: its divisors above 1
    that are at least ``stages``. With fewer, devices would wait half of the time, and 2BW would
    need more versions of weights."""
    return [count for count in _divisors(batch) if count > 1 and count >= stages]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def outline(
    groups: StageBatches,
    kind: ScheduleKind,
    first: ByStage,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    """The stages that take least time and fit in memory. If those with the strategies ``first`` do
    not fit, strategies that take less memory are tried. None if no stages fit."""
    if not may_fit(groups, kind, sparing):
        return None
    for price in PRICES:
        check_time()
        choices = _sparing(groups, first, price, kind, sparing)
        fitting = _balanced(groups, choices, kind, sparing=sparing)
        if fitting is not None:
            return fitting
    return None


def interleaved(one: Outline) -> Outline:
    """A pipeline whose stages have as many chunks as gain time. It ends where one chunk more would
    make the step longer, or one operator takes longer than a chunk should. ``one``: a pipeline by
    1F1B with one chunk for each stage."""
    best, costs = one, least_of(one.choices)
    each = one.groups.slices * costs.micro + costs.once
    most = int(each.sum() / each.max() / one.stages) if each.max() > 0 else 0
    for chunks in range(2, most + 1):
        check_time()
        made = with_chunks(one, chunks)
        if made is None or made.seconds >= best.seconds:
            break
        best = made
    return best


def with_chunks(one: Outline, chunks: int) -> Outline | None:
    """A pipeline by 1F1B whose stages have ``chunks`` chunks, as even as possible. None if none
    fits."""
    return _balanced(one.groups, one.choices, "1f1b", chunks, one.sparing)


def with_weights_pass(one: Outline) -> Outline:
    """The same pipeline with a pass for weights, by ZB-H1. ``one``: a pipeline by 1F1B with one
    chunk for each stage. It is returned unchanged if it recomputes, since its gradients are not put
    off."""
    batches, slices = one.batches, one.groups.slices
    late = np.array([_is_late(batches, node) for node in batches.nodes])
    if one.sparing != PLAIN or not late.any():
        return one
    # The weight's gradient is a third of forward and backward, whose three products are equally
    # long.
    own = by_kind(one.choices, lambda chosen: sums(np.where(late, chosen.costs.micro / 3, 0.0)))
    between = _between(one.groups, one.choices, 1)
    stages = _estimated(one.groups, [chosen.costs for chosen in one.choices], between, one.bounds)
    parted: list[StageSeconds] = []
    for stage, (a, b) in enumerate(pairwise(one.bounds)):
        put_off = float(own[stage](Band(a, a), Band(b, b))[0, 0])
        backward = stages[stage].backward - put_off
        parted.append(replace(stages[stage], backward=backward, weights=put_off))
    return replace(one, kind="zb-h1", seconds=step_seconds(parted, slices, "zb-h1"))


def _is_late(batches: MicroBatches, node: Node) -> bool:
    """Whether the gradient of an operator's weight may come late."""
    trained = gradient_nodes(batches.streams.graph)
    needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
    has_weight = sum(value.node.is_weight for value in node.inputs) == 1
    return has_weight and batches.streams_through(node) and has_separate_gradients(node, needs)


def least_excess(groups: StageBatches, kind: ScheduleKind) -> float:
    """An estimate of the bytes by which the fullest stage exceeds the memory of its devices, with
    the stages that take least memory."""
    choices = _sparing(groups, groups.choose(MicroBatches.choose), PRICES[-1], kind, PLAIN)
    operators = by_kind(choices, lambda own: operator_bytes(groups.each[0], own.costs, kind))
    flights, limits = in_flight(groups.stages, groups.slices), groups.limits
    holds, most = ChunkMemory(operators, flights, limits), max(limits)

    def missed(number: int, starts: Band, ends: Band) -> StageTable:
        # At least the bytes of the stage, so that the bands of cuts hold.
        return holds.held(number, starts, ends) + (most - limits[number])

    least = np.minimum.reduce([own.weights + own.activations for own in set(operators)])
    bounds = balanced(missed, least, groups.stages)
    if bounds is None:
        return inf
    return max(held - limit for held, limit in zip(_each(holds, bounds), limits, strict=True))


def _each(holds: ChunkMemory, bounds: Sequence[int]) -> list[float]:
    """The bytes of each chunk."""
    return [
        float(holds.held(number, Band(a, a), Band(b, b))[0, 0])
        for number, (a, b) in enumerate(pairwise(bounds))
    ]


def _sparing(
    groups: StageBatches, first: ByStage, price: float, kind: ScheduleKind, sparing: Sparing
) -> ByStage:
    """The strategies with a price of memory; ``first`` if the price is 0. The bytes that have the
    price are those that are counted: weights with their optimizer states, and the activations that
    recomputation is assumed to leave."""
    if not price:
        return first
    costs, slices = least_of(first), groups.slices
    seconds = slices * costs.micro.sum() + costs.once.sum()
    flying = (1 + min(groups.stages, slices)) / 2

    def choose(own: MicroBatches) -> GroupStrategies:
        each = price * seconds / groups.limit(own)
        return own.choose(each * held_for_weight(own, kind, sparing), each * flying * sparing.left)

    return groups.choose(choose)


def _balanced(
    groups: StageBatches,
    choices: ByStage,
    kind: ScheduleKind,
    interleave: int = 1,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    stages, slices, limits = groups.stages, groups.slices, groups.limits
    operators = by_kind(
        choices, lambda own: operator_bytes(groups.each[0], own.costs, kind, sparing)
    )
    flights = in_flight(stages, slices, interleave)
    if ChunkMemory(operators, flights, limits).bands is None:
        return None
    pairs = list(zip(groups.each, choices, strict=True))
    costs = by_kind(pairs, lambda pair: _spared_costs(*pair, sparing))
    each = by_kind(costs, lambda own: _Seconds(slices * own.micro + own.once))
    between = _between(groups, choices, interleave)

    def spent(number: int, starts: Band, ends: Band) -> StageTable:
        return each[number % stages].summed(starts, ends) + between.spent(number, starts, ends)

    def kind_of(number: int) -> Hashable:
        return each[number % stages], *between.at(number)

    least = np.minimum.reduce([own.operators for own in set(each)])
    for part in dict.fromkeys((1.0, 1.0 / interleave)):
        holds = ChunkMemory(operators, flights, [part * limit for limit in limits])
        bounds = balanced(spent, least, stages * interleave, holds, kind_of)
        if bounds is None:
            return None
        full = _each(holds, bounds)
        if all(sum(full[stage::stages]) <= limit for stage, limit in enumerate(limits)):
            seconds = step_seconds(
                _estimated(groups, costs, between, bounds), slices, kind, interleave
            )
            return Outline(groups, choices, bounds, seconds, interleave, sparing, kind)
    return None


def estimated_seconds(one: Outline) -> float:
    """Seconds of a step of an outline, by its strategies and bounds."""
    pairs = list(zip(one.groups.each, one.choices, strict=True))
    costs = by_kind(pairs, lambda pair: _spared_costs(*pair, one.sparing))
    between = _between(one.groups, one.choices, one.interleave)
    stages = _estimated(one.groups, costs, between, one.bounds)
    return step_seconds(stages, one.groups.slices, one.kind, one.interleave)


def _spared_costs(
    batches: MicroBatches, chosen: GroupStrategies, sparing: Sparing
) -> MicroBatchCosts:
    """The costs of all operators with recomputation. Weights that are stored in parts are gathered
    for the forward and the backward pass of each micro-batch, and their gradients scattered. Built
    pipelines hide little of that."""
    micro = chosen.costs.micro * sparing.time
    if sparing.parts > 1:
        micro = micro + 3 * batches.gathering(chosen)
    return replace(chosen.costs, micro=micro)


@dataclass(frozen=True, eq=False)
class _Seconds:
    """The seconds of each operator in a step, and their sums over stages."""

    operators: Vector

    @cached_property
    def summed(self) -> StageCosts:
        return sums(self.operators)


@dataclass(frozen=True, eq=False)
class _Between:
    """The seconds that each chunk spends in a step on tensors from earlier chunks and to later
    ones, as if these were its neighbours. ``tables``: those of tensors between chunks."""

    tables: Sequence[CrossingSeconds]

    def spent(self, number: int, starts: Band, ends: Band) -> StageTable:
        before, after = self.at(number)
        nothing = np.zeros((len(starts.positions), len(ends.positions)))
        received = before.received(starts, ends) if before else nothing
        return received + (after.sent(starts, ends) if after else nothing)

    def at(self, number: int) -> tuple[CrossingSeconds | None, CrossingSeconds | None]:
        """The tables before and after a chunk. The first and the last chunk have one."""
        before = self.tables[number - 1] if number else None
        return before, self.tables[number] if number < len(self.tables) else None


def _between(groups: StageBatches, choices: Sequence[GroupStrategies], interleave: int) -> _Between:
    stages, tables = groups.stages, list[CrossingSeconds]()
    for number in range(stages * interleave - 1):
        a, b = number % stages, (number + 1) % stages
        link = groups.machine.link(a * groups.size, b * groups.size)
        batches, chosen = groups.each[b], choices[b]
        crossing = partial(_crossing, batches, chosen, link)
        tables.append(batches.crossing.get((chosen, link), crossing))
    return _Between(tables)


def _estimated(
    groups: StageBatches,
    costs: Sequence[MicroBatchCosts],
    between: _Between,
    bounds: tuple[int, ...],
) -> list[StageSeconds]:
    """The estimated times of chunks. ``costs``: by stage. The forward pass is taken for a third of
    both passes."""
    micro = by_kind(costs, lambda own: sums(own.micro))
    once = by_kind(costs, lambda own: sums(own.once))
    estimated: list[StageSeconds] = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        pair, stage = (Band(a, a), Band(b, b)), number % groups.stages
        crossing = between.spent(number, *pair) / groups.slices
        each = float((micro[stage](*pair) + crossing)[0, 0])
        after = float(once[stage](*pair)[0, 0])
        estimated.append(StageSeconds(each / 3, 2 * each / 3, 0.0, after))
    return estimated


def _crossing(batches: MicroBatches, chosen: GroupStrategies, link: Link) -> CrossingSeconds:
    return CrossingSeconds(list(_crossings(batches, chosen, link)))


def _crossings(batches: MicroBatches, chosen: GroupStrategies, link: Link) -> Iterator[Crossing]:
    """Every tensor of micro-batches that some operator reads, as if it crossed to the next group
    over a link: a device gets what it needs, or a part, from one of the group before."""
    trained = gradient_nodes(batches.streams.graph)
    number = {node: i for i, node in enumerate(batches.nodes)}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    wanted: dict[tuple[int, int], tuple[float, int]] = {}
    for i, node in enumerate(batches.nodes):
        for position, value in enumerate(node.inputs):
            if batches.streams_through(value.node):
                key = (number[value.node], value.port)
                readers[key].append(i)
                given = node, position, chosen.strategies[i]
                own = batches.block_bytes(value, *given), batches.alike(*given)
                wanted[key] = max(own, wanted.get(key, own))
    for (maker, port), reading in readers.items():
        ways = 2 if batches.nodes[maker] in trained else 1
        volume, alike = wanted[maker, port]
        once = crossing_seconds(link, batches.spaces.mesh.peers(alike), volume)
        yield Crossing(maker, tuple(np.unique(reading).tolist()), batches.slices * ways * once)
