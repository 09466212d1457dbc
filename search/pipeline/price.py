"""The price of a pipeline that is built: seconds of each stage, and bytes on its devices.

Steps of the schedule that work on slices are priced for one slice, the others once a step. What a
stage does for one micro-batch is simulated as a program of its own (``search.cost.simulate``), so
that communication within it overlaps with computation; micro-batches follow one another without
overlap. A transfer between stages keeps both ends busy, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from pcg.placement.layout import Layout
from pcg.placement.schedule import Compute, Load, Reshard, Schedule, Slot
from pcg.placement.transfer import transfer
from pcg.plan.training import STATE_BYTES, STATES
from pcg.types.tensor import ParallelTensor
from search.cost.cost import NOTHING, CostModel, Duration, gradients
from search.cost.liveness import liveness
from search.cost.memory import Bytes, Memory
from search.cost.simulate import Run, run
from search.cost.tasks import Program, Step, tasks, with_weights
from search.mesh.space.slices import one_slice
from search.pipeline.clock import WEIGHT_VERSIONS, ScheduleKind, StageSeconds, in_flight


@dataclass(frozen=True)
class Groups:
    """Stages on devices in a row, ``size`` for each, and micro-batches that they work on."""

    stages: int
    size: int
    micro_batches: int

    @property
    def devices(self) -> int:
        return self.stages * self.size

    def of(self, *layouts: Layout) -> frozenset[int]:
        """The stages that have a part in layouts."""
        return frozenset(d // self.size for layout in layouts for d in layout.devices)


@dataclass(frozen=True)
class _Part:
    """A step of the schedule: what it takes, and the stages that take part."""

    stages: frozenset[int]
    repeated: bool
    """For every micro-batch."""
    forward: Duration
    backward: Duration
    sources: tuple[Slot, ...]
    results: tuple[Slot, ...]
    reshards: bool


@dataclass(frozen=True)
class StageRuns:
    """What a stage does, simulated. Tasks are numbered as in the stage; ``repeated``, ``single``
    and ``weights`` have their numbers in the schedule, where loads do not count."""

    micro: Run
    """One micro-batch."""
    last: Run
    """The last one, with the exchange and update of weights: a part of it is hidden behind the
    backward pass."""
    once: Run
    """What is done once a step."""
    repeated: tuple[int, ...]
    single: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def exchanging(self) -> float:
        """Seconds that the exchange and update of weights take after the last micro-batch."""
        return self.last.simulation.step_seconds - self.micro.simulation.step_seconds

    @property
    def seconds(self) -> StageSeconds:
        micro, once = self.micro.simulation, self.once.simulation
        after = self.exchanging + once.backward
        return StageSeconds(micro.forward, micro.backward, once.forward, after)


def stage_seconds(steps: Schedule, cost: CostModel, groups: Groups) -> tuple[StageSeconds, ...]:
    """What each stage of a schedule does; ``cost`` is of the whole machine."""
    return tuple(runs.seconds for runs in stage_runs(steps, cost, groups))


def stage_runs(steps: Schedule, cost: CostModel, groups: Groups) -> tuple[StageRuns, ...]:
    """What each stage of a schedule does; ``cost`` is of the whole machine."""
    passed = gradients(steps)
    parts = [
        _part(step, None if at == passed.joining else needs, cost, groups, passed.parts)
        for at, (step, needs) in enumerate(zip(steps.steps, passed.steps, strict=True))
        if not isinstance(step, Load)
    ]
    trained = [Slot(node.value(), steps.homes[node]) for node in passed.weights]
    return tuple(_stage(stage, parts, trained, cost, groups) for stage in range(groups.stages))


def _stage(
    stage: int, parts: Sequence[_Part], trained: Sequence[Slot], cost: CostModel, groups: Groups
) -> StageRuns:
    own = [i for i, part in enumerate(parts) if stage in part.stages]
    weights = tuple(i for i, slot in enumerate(trained) if stage in groups.of(slot.layout))
    repeated = tuple(i for i in own if parts[i].repeated)
    single = tuple(i for i in own if not parts[i].repeated)

    def simulated(which: Sequence[int], homes: Sequence[int]) -> Run:
        given = _program([parts[i] for i in which], [trained[i] for i in homes], cost)
        return run(tasks(given), groups.devices)

    return StageRuns(
        simulated(repeated, ()),
        simulated(repeated, weights),
        simulated(single, ()),
        repeated,
        single,
        weights,
    )


def _program(parts: Sequence[_Part], trained: Sequence[Slot], cost: CostModel) -> Program:
    """Parts as a program; the weights whose homes are given are exchanged and updated."""
    numbers = {slot: i for i, slot in enumerate(trained)}
    made: dict[Slot, int] = {}
    steps: list[Step] = []
    for part in parts:
        reads = tuple(dict.fromkeys(made[slot] for slot in part.sources if slot in made))
        weights = tuple(sorted({numbers[slot] for slot in part.sources if slot in numbers}))
        back = part.backward is not NOTHING
        made.update(dict.fromkeys(part.results, len(steps)))
        added = weights if back else ()
        steps.append(Step(part.forward, part.backward, reads, added, part.reshards))
    return with_weights(steps, [slot.layout for slot in trained], cost)


def _part(
    step: Compute | Reshard,
    needs: frozenset[int] | None,
    cost: CostModel,
    groups: Groups,
    added: Mapping[Slot, int],
) -> _Part:
    if isinstance(step, Compute):
        one, repeated = one_slice(step.node)
        forward, backward = cost.computation(one, needs or frozenset(), step.view)
        sources, results = step.operands, step.results
        stages = frozenset(device // groups.size for device in step.view.devices)
    else:
        a, b = sliced_layout(step.source.layout), sliced_layout(step.target.layout)
        repeated = a is not None and b is not None
        forward = backward = cost.movement(transfer(a, b) if a and b else step.transfer)
        sources, results = (step.source,), (step.target,)
        stages = groups.of(step.source.layout, step.target.layout)
    made = [sliced_layout(slot.layout) or slot.layout for slot in results]
    counts = [added.get(slot, 0) for slot in results]
    back = NOTHING if needs is None else cost.with_sums(backward, made, counts)
    return _Part(stages, repeated, forward, back, sources, results, isinstance(step, Reshard))


@lru_cache(maxsize=65536)
def sliced_layout(layout: Layout) -> Layout | None:
    """Where one slice of a tensor lies; None for a tensor without slices."""
    tensor = layout.type
    slices = tensor.degrees.slices
    if prod(slices) == 1:
        return None
    shape = tuple(size // s for size, s in zip(tensor.shape, slices, strict=True))
    degrees = replace(tensor.degrees, slices=(1,) * tensor.rank)
    return Layout(ParallelTensor(shape, degrees), layout.pieces)


def stage_bytes(
    steps: Schedule, cost: CostModel, groups: Groups, kind: ScheduleKind
) -> tuple[int, ...]:
    """Bytes on the fullest device of each stage, at its fullest time."""
    held = np.sum(_held(steps, cost, groups, kind), axis=0)
    return tuple(int(n) for n in held.reshape(groups.stages, groups.size).max(axis=1))


def fullest(steps: Schedule, cost: CostModel, groups: Groups, kind: ScheduleKind) -> Memory:
    """What is on the fullest device of all."""
    kinds = _held(steps, cost, groups, kind)
    device = int(np.sum(kinds, axis=0).argmax())
    return Memory(device, *(int(held[device]) for held in kinds))


def _held(
    steps: Schedule, cost: CostModel, groups: Groups, kind: ScheduleKind
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Bytes on each device of what ``Memory`` has: versions of its weights, their gradients and the
    optimizer's states; all that one micro-batch has at its fullest time, and of the others under
    way what waits for their backward pass."""
    found = liveness(steps)
    turn = found.end // 2
    change = np.zeros((found.end + 2, groups.devices), np.int64)
    waiting = np.zeros(groups.devices, np.int64)
    for life in found.lifetimes:
        one = sliced_layout(life.layout)
        devices = list(life.layout.devices)
        block = prod((one or life.layout).type.block) * cost.itemsize
        change[life.first, devices] += block
        change[life.last + 1, devices] -= block
        if one is not None and life.first < turn <= life.last:
            waiting[devices] += block
    flying = [in_flight(s, groups.stages, groups.micro_batches) for s in range(groups.stages)]
    activations = change.cumsum(axis=0).max(axis=0)
    activations += (np.repeat(flying, groups.size) - 1) * waiting
    return (*_weights(steps, cost, groups, kind), activations)


def _weights(
    steps: Schedule, cost: CostModel, groups: Groups, kind: ScheduleKind
) -> tuple[Bytes, Bytes, Bytes]:
    """Bytes on each device of weights, of their gradients, and of the optimizer's states."""
    fixed, trained = np.zeros((2, groups.devices), np.int64)
    with_gradients = set(gradients(steps).weights)
    for node, layout in steps.homes.items():
        counted = trained if node in with_gradients else fixed
        counted[list(layout.devices)] += prod(layout.type.block)
    parameters = (fixed + WEIGHT_VERSIONS[kind] * trained) * cost.itemsize
    states = trained * STATES[cost.optimizer] * STATE_BYTES
    return parameters, trained * cost.itemsize, states
