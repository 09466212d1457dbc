"""Outlines of pipelines: stages, micro-batches, strategies and estimates, before one is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    Crossing,
    CrossingSeconds,
    StageTable,
    balanced,
    in_flight,
    sums,
)
from search.pipeline.clock import (
    WEIGHT_VERSIONS,
    StageSeconds,
    step_seconds,
)
from search.pipeline.crossing import crossing_seconds
from search.pipeline.micro import GroupStrategies, MicroBatches, Vector

PRICES = (0.0, 0.5, 4.0, 32.0)
"""The prices of a device's whole memory that are tried until stages fit, as fractions of a step."""


@dataclass(frozen=True)
class Sparing:
    """The assumed effect of recomputation, before it is chosen. ``left``: the fraction of
    activations that is left; ``time``: the factor on the time of a micro-batch; ``parts``: the
    number of parts in which the weights of a stage are stored and gathered again."""

    left: float = 1.0
    time: float = 1.0
    parts: int = 1


PLAIN = Sparing()

OutlineKey = tuple[int, tuple[int, ...], int]
"""The micro-batches, bounds and chunks of a pipeline."""


@dataclass(frozen=True)
class Outline:
    """A pipeline that has not been built. ``bounds``: those of its chunks, in the order of the
    operators, with ``interleave`` chunks for each stage; ``seconds``: of a step, estimated."""

    batches: MicroBatches
    chosen: GroupStrategies
    bounds: tuple[int, ...]
    seconds: float
    interleave: int = 1
    sparing: Sparing = PLAIN
    kind: ScheduleKind = "1f1b"

    @property
    def stages(self) -> int:
        return (len(self.bounds) - 1) // self.interleave

    @property
    def key(self) -> OutlineKey:
        """A key that tells it from other pipelines with the same strategies."""
        return self.batches.slices, self.bounds, self.interleave


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
    batches: MicroBatches,
    machine: Machine,
    stages: int,
    kind: ScheduleKind,
    first: GroupStrategies,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    """The stages that take least time and fit in memory. If those with the strategies ``first`` do
    not fit, strategies that take less memory are tried. None if no stages fit."""
    for price in PRICES:
        check_time()
        chosen = _sparing(batches, machine, stages, first, price)
        fitting = _balanced(batches, chosen, machine, stages, kind, sparing=sparing)
        if fitting is not None:
            return fitting
    return None


def interleaved(one: Outline, machine: Machine) -> Outline:
    """A pipeline whose stages have as many chunks as gain time. It ends where one chunk more would
    make the step longer, or one operator takes longer than a chunk should. ``one``: a pipeline by
    1F1B with one chunk for each stage."""
    best, costs = one, one.chosen.costs
    each = one.batches.slices * costs.micro + costs.once
    most = int(each.sum() / each.max() / one.stages) if each.max() > 0 else 0
    for chunks in range(2, most + 1):
        check_time()
        made = with_chunks(one, machine, chunks)
        if made is None or made.seconds >= best.seconds:
            break
        best = made
    return best


def with_chunks(one: Outline, machine: Machine, chunks: int) -> Outline | None:
    """A pipeline by 1F1B whose stages have ``chunks`` chunks, as even as possible. None if none
    fits."""
    given = one.batches, one.chosen, machine, one.stages
    return _balanced(*given, "1f1b", chunks, one.sparing)


def with_weights_pass(one: Outline, machine: Machine) -> Outline:
    """The same pipeline with a pass for weights, by ZB-H1. ``one``: a pipeline by 1F1B with one
    chunk for each stage. It is returned unchanged if it recomputes, since its gradients are not put
    off."""
    batches, costs = one.batches, one.chosen.costs
    late = np.array([_is_late(batches, node) for node in batches.nodes])
    if one.sparing != PLAIN or not late.any():
        return one
    # The weight's gradient is a third of forward and backward, whose three products are equally
    # long.
    own = sums(np.where(late, costs.micro / 3, 0.0))
    between = _between(batches, one.chosen, machine, one.stages, 1)
    stages = _estimated(batches, one.chosen, between, one.bounds)
    weights = [float(own(Band(a, a), Band(b, b))[0, 0]) for a, b in pairwise(one.bounds)]
    parted = [
        replace(stage, backward=stage.backward - put_off, weights=put_off)
        for stage, put_off in zip(stages, weights, strict=True)
    ]
    return replace(one, kind="zb-h1", seconds=step_seconds(parted, batches.slices, "zb-h1"))


def _is_late(batches: MicroBatches, node: Node) -> bool:
    """Whether the gradient of an operator's weight may come late."""
    trained = gradient_nodes(batches.streams.graph)
    needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
    has_weight = sum(value.node.is_weight for value in node.inputs) == 1
    return has_weight and batches.streams_through(node) and has_separate_gradients(node, needs)


def least_memory(batches: MicroBatches, machine: Machine, stages: int, kind: ScheduleKind) -> float:
    """An estimate of the bytes on the fullest device, with the stages that take least memory."""
    chosen = _sparing(batches, machine, stages, batches.choose(), PRICES[-1])
    weights, activations = _bytes(batches, chosen, kind)
    holds = ChunkMemory(weights, activations, in_flight(stages, batches.slices), inf)
    bounds = balanced(holds.held, weights + activations, stages)
    return inf if bounds is None else max(_each(holds, bounds))


def _each(holds: ChunkMemory, bounds: Sequence[int]) -> list[float]:
    """The bytes of each chunk."""
    return [
        float(holds.held(number, Band(a, a), Band(b, b))[0, 0])
        for number, (a, b) in enumerate(pairwise(bounds))
    ]


def _sparing(
    batches: MicroBatches, machine: Machine, stages: int, first: GroupStrategies, price: float
) -> GroupStrategies:
    """The strategies with a price of memory; ``first`` if the price is 0."""
    if not price:
        return first
    seconds = batches.slices * first.costs.micro.sum() + first.costs.once.sum()
    byte_price = price * seconds / machine.memory_limit()
    return batches.choose(byte_price, (1 + min(stages, batches.slices)) / 2)


def _bytes(
    batches: MicroBatches, chosen: GroupStrategies, kind: ScheduleKind
) -> tuple[Vector, Vector]:
    """Bytes of each operator's weights, and of the tensors that it saves of one micro-batch."""
    training = batches.cost.training
    older = (WEIGHT_VERSIONS[kind] - 1) * training.parameter_bytes
    each = (training.held_bytes + older) / batches.cost.itemsize
    return chosen.costs.weights * each, chosen.costs.activations


def _balanced(
    batches: MicroBatches,
    chosen: GroupStrategies,
    machine: Machine,
    stages: int,
    kind: ScheduleKind,
    interleave: int = 1,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    chunks, limit = stages * interleave, machine.memory_limit()
    weights, activations = _bytes(batches, chosen, kind)
    weights, activations = weights / sparing.parts, activations * sparing.left
    micro = chosen.costs.micro * sparing.time
    slower = replace(chosen, costs=replace(chosen.costs, micro=micro))
    flights = in_flight(stages, batches.slices, interleave)
    if ChunkMemory(weights, activations, flights, limit).bands is None:
        return None
    between = _between(batches, chosen, machine, stages, interleave)
    each = batches.slices * micro + chosen.costs.once
    own = sums(each)

    def spent(number: int, starts: Band, ends: Band) -> StageTable:
        return own(starts, ends) + between(number, starts, ends)

    for share in dict.fromkeys((limit, limit / interleave)):
        holds = ChunkMemory(weights, activations, flights, share)
        bounds = balanced(spent, each, chunks, holds)
        if bounds is None:
            return None
        full = _each(holds, bounds)
        if max(sum(full[s::stages]) for s in range(stages)) <= limit:
            estimated = _estimated(batches, slower, between, bounds)
            seconds = step_seconds(estimated, batches.slices, kind, interleave)
            return Outline(batches, chosen, bounds, seconds, interleave, sparing, kind)
    return None


def _between(
    batches: MicroBatches, chosen: GroupStrategies, machine: Machine, stages: int, interleave: int
) -> Callable[[int, Band, Band], StageTable]:
    """The seconds that each chunk spends in a step on tensors from earlier chunks and to later
    ones, as if these were its neighbours."""
    size, last = batches.cost.machine.devices, stages * interleave - 1
    links = [
        machine.link(number % stages * size, (number + 1) % stages * size) for number in range(last)
    ]

    def crossing(link: Link) -> CrossingSeconds:
        return CrossingSeconds(list(_crossings(batches, chosen, link)))

    tables = {
        link: batches.crossing.get((chosen, link), partial(crossing, link))
        for link in dict.fromkeys(links)
    }

    def of(number: int, starts: Band, ends: Band) -> StageTable:
        nothing = np.zeros((len(starts.positions), len(ends.positions)))
        received = tables[links[number - 1]].received(starts, ends) if number else nothing
        sent = tables[links[number]].sent(starts, ends) if number < last else nothing
        return received + sent

    return of


def _estimated(
    batches: MicroBatches,
    chosen: GroupStrategies,
    between: Callable[[int, Band, Band], StageTable],
    bounds: tuple[int, ...],
) -> list[StageSeconds]:
    """The estimated times of stages. The forward pass is taken for a third of both passes."""
    micro, once = sums(chosen.costs.micro), sums(chosen.costs.once)
    estimated: list[StageSeconds] = []
    for stage, (a, b) in enumerate(pairwise(bounds)):
        pair = Band(a, a), Band(b, b)
        crossing = between(stage, *pair) / batches.slices
        each, after = float((micro(*pair) + crossing)[0, 0]), float(once(*pair)[0, 0])
        estimated.append(StageSeconds(each / 3, 2 * each / 3, 0.0, after))
    return estimated


def _crossings(batches: MicroBatches, chosen: GroupStrategies, link: Link) -> Iterator[Crossing]:
    """Every tensor of micro-batches, as if it crossed to the next group over a link: a device
    receives the block that it needs, or a part of it, from one device of the group before."""
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
