"""Outlines of pipelines: stages, micro-batches, strategies and estimates, before one is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import inf, isqrt

import numpy as np

from pcg.graph.graph import Node
from pcg.machine import Link, Machine
from pcg.plan.pipeline import ScheduleKind
from pcg.readings.late import parts_gradients
from pcg.readings.work import gradient_nodes
from search.cost.progress import check_time
from search.pipeline.balance import (
    Band,
    ChunkMemory,
    Crossing,
    CrossingSeconds,
    OperatorBytes,
    StageCosts,
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
from search.pipeline.micro import Chosen, Costs, MicroBatches, Vector
from search.pipeline.stage_batches import StageBatches, by_kind, in_stages, least_of

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

_Crossed = Callable[[int, Band, Band], StageTable]
Way = tuple[int, tuple[int, ...], int]
"""Micro-batches, bounds and chunks of a pipeline."""


@dataclass(frozen=True)
class Outline:
    """A pipeline that has not been built. ``bounds`` are of its chunks, in the order of the
    operators, ``interleave`` for each stage; ``seconds`` of a step, estimated."""

    groups: StageBatches
    choices: tuple[Chosen, ...]
    """Strategies of all operators, as on the group of each stage."""
    bounds: tuple[int, ...]
    seconds: float
    interleave: int = 1
    sparing: Sparing = PLAIN
    kind: ScheduleKind = "1f1b"

    @property
    def stages(self) -> int:
        return (len(self.bounds) - 1) // self.interleave

    @property
    def batches(self) -> MicroBatches:
        """Those of the first stage, which in all but costs are those of any."""
        return self.groups.each[0]

    @cached_property
    def chosen(self) -> Chosen:
        """The strategy of each operator in its stage."""
        return in_stages(self.choices, self.bounds)

    @property
    def in_any_memory(self) -> Outline:
        """The same with no limit of memory."""
        return replace(self, groups=replace(self.groups, share=inf))

    @property
    def way(self) -> Way:
        """What tells it from others with the same strategies."""
        return self.groups.slices, self.bounds, self.interleave


def stage_counts(machine: Machine) -> list[tuple[int, int]]:
    """Numbers of stages, and the devices that each has, such that groups of devices in a row do not
    straddle units of the machine; ascending."""
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
    """Numbers of micro-batches that a batch can be cut into, ascending: the divisors above 1, and
    no fewer than ``stages``, for else devices would wait half of the time, and 2BW would need more
    versions."""
    return [count for count in _divisors(batch) if count > 1 and count >= stages]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def outline(
    groups: StageBatches,
    kind: ScheduleKind,
    first: tuple[Chosen, ...],
    sparing: Sparing = PLAIN,
) -> Outline | None:
    """The stages that take least time and fit the memory; strategies that take less of it where
    those of ``first``, by stage, do not fit. None where none do."""
    for price in PRICES:
        check_time()
        choices = _sparing(groups, first, price)
        fitting = _balanced(groups, choices, kind, sparing=sparing)
        if fitting is not None:
            return fitting
    return None


def interleaved(one: Outline) -> Outline:
    """A pipeline whose stages have several chunks, as many as pay: with one more than that, its
    steps would take longer, or one operator alone takes longer than a chunk is to take. ``one``:
    with one chunk each, by 1F1B."""
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
    """A pipeline by 1F1B whose stages have so many chunks, as even as they can be; None where there
    is none that fits."""
    return _balanced(one.groups, one.choices, "1f1b", chunks, one.sparing)


def with_weights_pass(one: Outline) -> Outline:
    """The same pipeline with a pass for weights, by ZB-H1. ``one``: with one chunk each, by 1F1B.
    What is recomputed goes back at once, so that there is nothing to put off."""
    batches, slices = one.batches, one.groups.slices
    late = np.array([_is_late(batches, node) for node in batches.nodes])
    if one.sparing != PLAIN or not late.any():
        return one
    # A third of forward and backward, as each of both gradients takes as long as the product.
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
    return has_weight and batches.streams_through(node) and parts_gradients(node, needs)


def least_excess(groups: StageBatches, kind: ScheduleKind) -> float:
    """Bytes by which a device misses its limit with the stages that take least memory, estimated:
    the device that misses by most."""
    choices = _sparing(groups, groups.choose(MicroBatches.choose), PRICES[-1])
    operators = by_kind(choices, partial(_bytes, groups.each[0], kind=kind))
    flights, limits = in_flight(groups.stages, groups.slices), groups.limits
    holds, most = ChunkMemory(operators, flights, limits), max(limits)

    def missed(number: int, starts: Band, ends: Band) -> StageTable:
        # Not less than what the stage holds, so that bands are those of all stages.
        return holds.held(number, starts, ends) + (most - limits[number])

    least = np.minimum.reduce([own.weights + own.activations for own in set(operators)])
    bounds = balanced(missed, least, groups.stages)
    if bounds is None:
        return inf
    return max(held - limit for held, limit in zip(_each(holds, bounds), limits, strict=True))


def _each(holds: ChunkMemory, bounds: Sequence[int]) -> list[float]:
    """What each chunk holds."""
    return [
        float(holds.held(number, Band(a, a), Band(b, b))[0, 0])
        for number, (a, b) in enumerate(pairwise(bounds))
    ]


def _sparing(groups: StageBatches, first: tuple[Chosen, ...], price: float) -> tuple[Chosen, ...]:
    """Strategies where memory has a price; those of ``first`` where it has none."""
    if not price:
        return first
    costs, slices = least_of(first), groups.slices
    seconds = slices * costs.micro.sum() + costs.once.sum()
    flying = (1 + min(groups.stages, slices)) / 2

    def choose(own: MicroBatches) -> Chosen:
        return own.choose(price * seconds / groups.limit(own), flying)

    return groups.choose(choose)


def _bytes(
    batches: MicroBatches, chosen: Chosen, kind: ScheduleKind, sparing: Sparing = PLAIN
) -> OperatorBytes:
    """Bytes of each operator's weights, and of what it keeps of one micro-batch."""
    training, costs = batches.cost.training, chosen.costs
    older = (WEIGHT_VERSIONS[kind] - 1) * training.parameter_bytes
    each = (training.held_bytes + older) / batches.cost.itemsize
    return OperatorBytes(costs.weights * each / sparing.parts, costs.activations * sparing.left)


def _balanced(
    groups: StageBatches,
    choices: tuple[Chosen, ...],
    kind: ScheduleKind,
    interleave: int = 1,
    sparing: Sparing = PLAIN,
) -> Outline | None:
    stages, slices, limits = groups.stages, groups.slices, groups.limits
    operators = by_kind(choices, lambda own: _bytes(groups.each[0], own, kind, sparing))
    flights = in_flight(stages, slices, interleave)
    if ChunkMemory(operators, flights, limits).bands is None:
        return None
    costs = by_kind(choices, lambda own: replace(own.costs, micro=own.costs.micro * sparing.time))
    each = by_kind(costs, lambda own: _Seconds(slices * own.micro + own.once))
    between = _between(groups, choices, interleave)

    def spent(number: int, starts: Band, ends: Band) -> StageTable:
        return each[number % stages].summed(starts, ends) + between(number, starts, ends)

    least = np.minimum.reduce([own.operators for own in set(each)])
    for part in dict.fromkeys((1.0, 1.0 / interleave)):
        holds = ChunkMemory(operators, flights, [part * limit for limit in limits])
        bounds = balanced(spent, least, stages * interleave, holds)
        if bounds is None:
            return None
        full = _each(holds, bounds)
        if all(sum(full[stage::stages]) <= limit for stage, limit in enumerate(limits)):
            seconds = step_seconds(
                _estimated(groups, costs, between, bounds), slices, kind, interleave
            )
            return Outline(groups, choices, bounds, seconds, interleave, sparing, kind)
    return None


@dataclass(frozen=True, eq=False)
class _Seconds:
    """Seconds of each operator in a step, and their sums over stages."""

    operators: Vector

    @cached_property
    def summed(self) -> StageCosts:
        return sums(self.operators)


def _between(groups: StageBatches, choices: Sequence[Chosen], interleave: int) -> _Crossed:
    """What each chunk spends in a step on tensors from chunks before and to later ones, as if
    those were its neighbours."""
    stages, last = groups.stages, groups.stages * interleave - 1
    tables: list[CrossingSeconds] = []
    for number in range(last):
        a, b = number % stages, (number + 1) % stages
        link = groups.machine.link(a * groups.size, b * groups.size)
        batches, chosen = groups.each[b], choices[b]
        crossing = partial(_crossing, batches, chosen, link)
        tables.append(batches.crossing.get((chosen, link), crossing))

    def of(number: int, starts: Band, ends: Band) -> StageTable:
        nothing = np.zeros((len(starts.positions), len(ends.positions)))
        comes = tables[number - 1].comes(starts, ends) if number else nothing
        goes = tables[number].goes(starts, ends) if number < last else nothing
        return comes + goes

    return of


def _estimated(
    groups: StageBatches, costs: Sequence[Costs], between: _Crossed, bounds: tuple[int, ...]
) -> list[StageSeconds]:
    """Of each chunk; ``costs`` by stage. Forward is taken to be a third of forward and backward."""
    micro = by_kind(costs, lambda own: sums(own.micro))
    once = by_kind(costs, lambda own: sums(own.once))
    estimated: list[StageSeconds] = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        pair, stage = (Band(a, a), Band(b, b)), number % groups.stages
        crossing = between(number, *pair) / groups.slices
        each = float((micro[stage](*pair) + crossing)[0, 0])
        after = float(once[stage](*pair)[0, 0])
        estimated.append(StageSeconds(each / 3, 2 * each / 3, 0.0, after))
    return estimated


def _crossing(batches: MicroBatches, chosen: Chosen, link: Link) -> CrossingSeconds:
    return CrossingSeconds(list(_crossings(batches, chosen, link)))


def _crossings(batches: MicroBatches, chosen: Chosen, link: Link) -> Iterator[Crossing]:
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
