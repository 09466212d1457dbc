"""Outlines of pipelines: stages, micro-batches, strategies and estimates, before one is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Link, Machine
from pcg.readings.work import gradient_nodes
from search.pipeline.balance import (
    Band,
    Crossing,
    CrossingSeconds,
    StageTable,
    balanced,
    could_fit,
    held,
    sums,
)
from search.pipeline.clock import (
    WEIGHT_VERSIONS,
    ScheduleKind,
    StageSeconds,
    step_seconds,
)
from search.pipeline.micro import Chosen, MicroBatches, Vector

MOST_STAGES = 16
MOST_MICRO_BATCHES = 64
PRICES = (0.0, 0.5, 4.0, 32.0)
"""Prices of a device's whole memory that are tried until stages fit, as parts of a step's time."""


@dataclass(frozen=True)
class Sparing:
    """What an outline takes to be saved by recomputation, before that is chosen: the part of the
    activations that is ``left``, the part of the time that it takes, and into how many parts the
    weights of a stage are cut and gathered again."""

    left: float = 1.0
    time: float = 1.0
    parts: int = 1


PLAIN = Sparing()


@dataclass(frozen=True)
class Outline:
    """A pipeline that has not been built. ``bounds`` are of its stages, in the order of the
    operators; ``seconds`` of a step, estimated."""

    batches: MicroBatches
    chosen: Chosen
    bounds: tuple[int, ...]
    seconds: float
    sparing: Sparing = PLAIN

    @property
    def stages(self) -> int:
        return len(self.bounds) - 1


def stage_counts(machine: Machine) -> Iterator[tuple[int, int]]:
    """Numbers of stages, and the devices that each has, such that groups of devices in a row do not
    straddle units of the machine; many small stages first."""
    units = [1]
    for level in machine.levels:
        units.append(units[-1] * level.count)
    for stages in range(min(MOST_STAGES, machine.devices), 0, -1):
        size, rest = divmod(machine.devices, stages)
        nested = all(size % unit == 0 or unit % size == 0 for unit in units)
        if not rest and (nested or stages == 1):
            yield stages, size


def micro_batch_counts(batch: int) -> Iterator[int]:
    """Powers of two that divide the batch."""
    count = 2
    while count <= MOST_MICRO_BATCHES and batch % count == 0:
        yield count
        count *= 2


def outline(
    batches: MicroBatches,
    machine: Machine,
    stages: int,
    kind: ScheduleKind,
    first: Chosen,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    """The stages that take least time and fit the memory; strategies that take less of it where
    those of ``first`` do not fit. None where none do."""
    for price in PRICES:
        chosen = _sparing(batches, machine, stages, first, price)
        fitting = _balanced(batches, chosen, machine, stages, kind, sparing)
        if fitting is not None:
            return fitting
    return None


def least_memory(batches: MicroBatches, machine: Machine, stages: int, kind: ScheduleKind) -> float:
    """Bytes on the fullest device with the stages that take least memory, estimated."""
    chosen = _sparing(batches, machine, stages, batches.choose(), PRICES[-1])
    weights, activations = _bytes(batches, chosen, kind)
    holds = held(sums(weights), sums(activations), stages, batches.slices)
    bounds = balanced(holds, weights + activations, stages)
    if bounds is None:
        return inf
    return max(
        float(holds(stage, Band(a, a), Band(b, b))[0, 0])
        for stage, (a, b) in enumerate(pairwise(bounds))
    )


def _sparing(
    batches: MicroBatches, machine: Machine, stages: int, first: Chosen, price: float
) -> Chosen:
    """Strategies where memory has a price; those of ``first`` where it has none."""
    if not price:
        return first
    seconds = batches.slices * first.costs.micro.sum() + first.costs.once.sum()
    byte_price = price * seconds / machine.memory_limit()
    return batches.choose(byte_price, (1 + min(stages, batches.slices)) / 2)


def _bytes(batches: MicroBatches, chosen: Chosen, kind: ScheduleKind) -> tuple[Vector, Vector]:
    """Bytes of each operator's weights, and of what it keeps of one micro-batch."""
    training = batches.cost.training
    older = (WEIGHT_VERSIONS[kind] - 1) * training.parameter_bytes
    each = (training.held_bytes + older) / batches.cost.itemsize
    return chosen.costs.weights * each, chosen.costs.activations


def _balanced(
    batches: MicroBatches,
    chosen: Chosen,
    machine: Machine,
    stages: int,
    kind: ScheduleKind,
    sparing: Sparing,
) -> Outline | None:
    limit = machine.memory_limit()
    weights, activations = _bytes(batches, chosen, kind)
    weights, activations = weights / sparing.parts, activations * sparing.left
    micro = replace(chosen.costs, micro=chosen.costs.micro * sparing.time)
    chosen = replace(chosen, costs=micro)
    if not could_fit(weights, activations, limit, stages, batches.slices):
        return None
    holds = held(sums(weights), sums(activations), stages, batches.slices)
    between = _between(batches, chosen, machine, stages)
    each = batches.slices * chosen.costs.micro + chosen.costs.once
    own = sums(each)

    def spent(stage: int, starts: Band, ends: Band) -> StageTable:
        return own(starts, ends) + between(stage, starts, ends)

    def allowed(stage: int, starts: Band, ends: Band) -> NDArray[np.bool_]:
        return holds(stage, starts, ends) <= limit

    bounds = balanced(spent, each, stages, allowed)
    if bounds is None:
        return None
    seconds = step_seconds(_estimated(batches, chosen, between, bounds), batches.slices, kind)
    return Outline(batches, chosen, bounds, seconds, sparing)


def _between(
    batches: MicroBatches, chosen: Chosen, machine: Machine, stages: int
) -> Callable[[int, Band, Band], StageTable]:
    """What each stage spends in a step on tensors from stages before and to later ones, as if
    those were its neighbours."""
    size = batches.cost.machine.devices
    links = [machine.link(s * size, (s + 1) * size) for s in range(stages - 1)]
    tables = {
        link: CrossingSeconds(list(_crossings(batches, chosen, link)))
        for link in dict.fromkeys(links)
    }

    def of(stage: int, starts: Band, ends: Band) -> StageTable:
        nothing = np.zeros((len(starts.positions), len(ends.positions)))
        comes = tables[links[stage - 1]].comes(starts, ends) if stage else nothing
        goes = tables[links[stage]].goes(starts, ends) if stage < stages - 1 else nothing
        return comes + goes

    return of


def _estimated(
    batches: MicroBatches,
    chosen: Chosen,
    between: Callable[[int, Band, Band], StageTable],
    bounds: tuple[int, ...],
) -> list[StageSeconds]:
    """Forward is taken to be a third of forward and backward."""
    micro, once = sums(chosen.costs.micro), sums(chosen.costs.once)
    estimated: list[StageSeconds] = []
    for stage, (a, b) in enumerate(pairwise(bounds)):
        pair = Band(a, a), Band(b, b)
        crossing = between(stage, *pair) / batches.slices
        each, after = float((micro(*pair) + crossing)[0, 0]), float(once(*pair)[0, 0])
        estimated.append(StageSeconds(each / 3, 2 * each / 3, 0.0, after))
    return estimated


def _crossings(batches: MicroBatches, chosen: Chosen, link: Link) -> Iterator[Crossing]:
    """Every tensor of micro-batches that some operator reads, as if it crossed to the next group
    over a link: a device gets its part from one of the group before."""
    trained = gradient_nodes(batches.streams.graph)
    number = {node: i for i, node in enumerate(batches.nodes)}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    bytes_wanted: dict[tuple[int, int], float] = {}
    for i, node in enumerate(batches.nodes):
        for position, value in enumerate(node.inputs):
            if batches.streams_through(value.node):
                key = (number[value.node], value.port)
                readers[key].append(i)
                wanted = batches.block_bytes(value, node, position, chosen.strategies[i])
                bytes_wanted[key] = max(wanted, bytes_wanted.get(key, 0.0))
    for (maker, port), reading in readers.items():
        ways = 2 if batches.nodes[maker] in trained else 1
        once = link.latency + bytes_wanted[maker, port] / link.bandwidth
        yield Crossing(maker, tuple(np.unique(reading).tolist()), batches.slices * ways * once)
