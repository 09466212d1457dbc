"""The price of a built pipeline: seconds of each stage, and bytes on its devices.

Steps of the schedule that work on slices are priced for one slice, other steps once a step. The
work of a stage, or of one of its chunks, for one micro-batch is simulated as a program of its own
(``search.cost.simulate``), so that communication overlaps with computation within it. Micro-batches
follow one another without overlap. A transfer between chunks keeps both ends busy, one after the
other. Recomputation is part of the backward pass of each micro-batch, and its results are held for
one micro-batch at a time. By ZB-H1, the gradients of weights that may come late are not part of the
backward pass, but of a pass of their own. Their operands are held between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.placement.backward import gradients
from pcg.placement.recomputation import recomputed_steps
from pcg.placement.saved import saved_tensors
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.placement.view import MachineView
from pcg.plan.chunks import Chunks, chunks_of
from pcg.plan.pipeline import ScheduleKind, has_weights_pass
from search.cost.cost import CostModel
from search.cost.liveness import liveness
from search.cost.memory import Bytes, Memory, itemsizes
from search.cost.simulate import TimedTasks, run
from search.cost.tasks import TaskProgram, TimedStep, linked, tasks, tasks_by_pass, timed_steps
from search.pipeline.clock import WEIGHT_VERSIONS, StageSeconds
from search.pipeline.flights import flights

_BySet = dict[tuple[int, ...], Bytes]
"""Bytes by set of devices."""


@dataclass(frozen=True)
class StageGroups:
    """Stages on consecutive devices, ``size`` for each, and the number of micro-batches."""

    stages: int
    size: int
    micro_batches: int
    interleave: int = 1
    """The number of chunks of each stage."""

    @property
    def devices(self) -> int:
        return self.stages * self.size

    def of(self, step: Compute | Reshard) -> frozenset[int]:
        """The stages that take part in a step of a schedule."""
        if isinstance(step, Compute):
            return _groups_of(step.view, self.size)
        return step.source.layout.groups(self.size) | step.target.layout.groups(self.size)


@lru_cache(maxsize=4096)
def _groups_of(view: MachineView, size: int) -> frozenset[int]:
    return frozenset(device // size for device in view.devices)


@dataclass(frozen=True)
class ChunkRun:
    """The simulated work of a chunk for one micro-batch. ``steps``: the numbers of its tasks' steps
    in the schedule, without loads."""

    micro: TimedTasks
    steps: tuple[int, ...]


@dataclass(frozen=True)
class StageRuns:
    """The simulated work of a stage. Tasks have the numbers of the stage. ``repeated``, ``single``
    and ``weights`` hold their numbers in the schedule, without loads."""

    chunks: tuple[ChunkRun, ...]
    micro: TimedTasks
    """One micro-batch, through all chunks."""
    last: TimedTasks
    """The last micro-batch, with the exchange and update of weights. A part of these is hidden
    behind the backward pass."""
    once: TimedTasks
    """The work that is done once a step."""
    repeated: tuple[int, ...]
    single: tuple[int, ...]
    weights: tuple[int, ...]
    late: TimedTasks | None = None
    """The pass for weights of one micro-batch, if it has one. Then ``micro`` is without it."""

    @property
    def weights_seconds(self) -> float:
        """Seconds of the pass for weights of one micro-batch."""
        return 0.0 if self.late is None else self.late.simulation.step_seconds

    @property
    def exchanging(self) -> float:
        """Seconds of the exchange and update of weights after the last micro-batch."""
        own = self.micro.simulation.step_seconds + self.weights_seconds
        return self.last.simulation.step_seconds - own

    @property
    def seconds(self) -> StageSeconds:
        """The work of all chunks together."""
        every = [self.chunk_seconds(number) for number in range(len(self.chunks))]
        forward, backward = sum(c.forward for c in every), sum(c.backward for c in every)
        once = every[0].before, every[0].after
        return StageSeconds(forward, backward, *once, sum(c.weights for c in every))

    def chunk_seconds(self, number: int) -> StageSeconds:
        """The work of one chunk. Work that is done once a step counts to the first chunk."""
        micro, once = self.chunks[number].micro.simulation, self.once.simulation
        if number:
            return StageSeconds(micro.forward, micro.backward)
        after = self.exchanging + once.backward
        own = micro.forward, micro.backward, once.forward, after
        return StageSeconds(*own, self.weights_seconds)


def stage_seconds(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    remade: Collection[Node] = (),
    kind: ScheduleKind = "1f1b",
) -> tuple[StageSeconds, ...]:
    """The work of each chunk of a schedule, in the order in which data flows. The arguments are
    those of ``stage_runs``."""
    # The runs of a stage are large, and are dropped before those of the next stage are made.
    chunks = range(groups.interleave)
    stages = [
        [stage.chunk_seconds(chunk) for chunk in chunks]
        for stage in stage_runs(steps, cost, groups, remade, kind)
    ]
    return tuple(stage[chunk] for chunk in chunks for stage in stages)


def in_order(stages: Sequence[StageRuns], interleave: int) -> tuple[StageSeconds, ...]:
    """The work of each chunk of some stages, in the order in which data flows."""
    return tuple(stage.chunk_seconds(chunk) for chunk in range(interleave) for stage in stages)


def stage_runs(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    remade: Collection[Node] = (),
    kind: ScheduleKind = "1f1b",
) -> Iterator[StageRuns]:
    """The simulated work of each stage of a schedule, one after the other. ``cost``: of the whole
    machine. The results of ``remade`` are recomputed."""
    passed = gradients(steps)
    chunks = chunks_on(steps, groups)
    done = recomputed_steps(
        saved_tensors(steps), remade, groups.size, chunks.numbers if chunks else {}
    )
    chunks = chunks.with_moved(steps, done.moved) if chunks else None
    timed = timed_steps(steps, passed, cost, by_slice=True)
    numbers = [at for at, step in enumerate(steps.steps) if not isinstance(step, LeafAtHome)]
    for place, at in enumerate(numbers):
        if at in done.moved:
            timed[place] = timed[place]._replace(repeated=True)
    place = {at: i for i, at in enumerate(numbers)}
    before = {place[at]: tuple(place[i] for i in own) for at, own in done.before.items()}
    trained = [Slot(node.value(), steps.homes[node]) for node in passed.weights]
    counted = [n for n, step in enumerate(steps.steps) if not isinstance(step, LeafAtHome)]

    def chunk(i: int, stage: int) -> int:
        return (chunks.chunk(counted[i], stage) if chunks else 0) or 0

    taking_part = [groups.of(part.step) for part in timed]
    trains = [slot.layout.groups(groups.size) for slot in trained]

    def of(stage: int) -> StageRuns:
        own = [i for i, stages in enumerate(taking_part) if stage in stages]
        weights = tuple(i for i, stages in enumerate(trains) if stage in stages)
        return _stage(
            own, weights, timed, before, trained, cost, groups, partial(chunk, stage=stage), kind
        )

    return map(of, range(groups.stages))


def chunks_on(steps: Schedule, groups: StageGroups) -> Chunks | None:
    """The chunks of an interleaved pipeline; None if there is one chunk for each stage."""
    if groups.interleave == 1:
        return None
    return chunks_of(steps, groups.stages, groups.size, groups.interleave)


def _stage(
    own: Sequence[int],
    weights: tuple[int, ...],
    timed: Sequence[TimedStep],
    before: Mapping[int, tuple[int, ...]],
    trained: Sequence[Slot],
    cost: CostModel,
    groups: StageGroups,
    chunk: Callable[[int], int],
    kind: ScheduleKind,
) -> StageRuns:
    """The simulated work of a stage. ``own``: the steps in which it takes part; ``weights``: those
    that it trains; ``chunk``: a function from a step to the stage's chunk."""
    repeated = tuple(i for i in own if timed[i].repeated)
    single = tuple(i for i in own if not timed[i].repeated)

    def program(which: Sequence[int], homes: Sequence[int]) -> TaskProgram:
        at = {number: i for i, number in enumerate(which)}
        remade = {
            at[reader]: tuple(at[i] for i in made if i in at)
            for reader, made in before.items()
            if reader in at
        }
        return linked([timed[i] for i in which], [trained[i] for i in homes], cost, remade)

    def simulated(which: Sequence[int], homes: Sequence[int]) -> TimedTasks:
        return run(tasks(program(which, homes), overlap=cost.overlaps), groups.devices)

    numbers = repeated, single, weights
    if has_weights_pass(kind):
        return _with_weights_pass(program(repeated, weights), simulated(single, ()), cost, *numbers)
    micro = simulated(repeated, ())
    chunks = (ChunkRun(micro, repeated),)
    if groups.interleave > 1:
        parts = [tuple(i for i in repeated if chunk(i) == c) for c in range(groups.interleave)]
        chunks = tuple(ChunkRun(simulated(part, ()), part) for part in parts)
    return StageRuns(chunks, micro, simulated(repeated, weights), simulated(single, ()), *numbers)


def _with_weights_pass(
    whole: TaskProgram,
    once: TimedTasks,
    cost: CostModel,
    repeated: tuple[int, ...],
    single: tuple[int, ...],
    weights: tuple[int, ...],
) -> StageRuns:
    """The simulated work of a stage with a pass for weights. ``whole``: its work for the last
    micro-batch; ``once``: its work once a step."""
    devices, overlap = cost.machine.devices, cost.overlaps
    micro, late = (run(own, devices) for own in tasks_by_pass(whole, overlap=overlap))
    last = run(tasks(whole, overlap=overlap, has_weights_pass=True), devices)
    chunks = (ChunkRun(micro, repeated),)
    return StageRuns(chunks, micro, last, once, repeated, single, weights, late)


def stage_bytes(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    kind: ScheduleKind,
    remade: Collection[Node] = (),
) -> tuple[int, ...]:
    """Bytes on the fullest device of each stage at its fullest time."""
    held = np.sum(held_by_device(steps, cost, groups, kind, remade), axis=0)
    return tuple(int(n) for n in held.reshape(groups.stages, groups.size).max(axis=1))


def fullest(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    kind: ScheduleKind,
    remade: Collection[Node] = (),
) -> Memory:
    """The memory of the fullest device of all."""
    kinds = held_by_device(steps, cost, groups, kind, remade)
    device = int(np.sum(kinds, axis=0).argmax())
    return Memory(device, *(int(held[device]) for held in kinds))


def held_by_device(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    kind: ScheduleKind,
    remade: Collection[Node] = (),
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Bytes on each device by the kinds of ``Memory``: versions of weights, gradients, optimizer
    states; and activations, which are those of one micro-batch at its fullest time, and of the
    other micro-batches under way the tensors that wait for the backward pass."""
    peaks, waiting, left = _micro_batch_bytes(steps, cost, groups, kind, remade)
    activations = np.zeros(groups.devices, np.int64)
    for stage in range(groups.stages):
        own = slice(stage * groups.size, (stage + 1) * groups.size)
        in_flight = flights(stage, groups.stages, groups.micro_batches, groups.interleave, kind)
        waits = np.array([flight.waiting for flight in in_flight]) @ waiting[:, own]
        if has_weights_pass(kind):
            waits = waits + np.array([flight.left for flight in in_flight]) @ left[:, own]
        works = peaks[[flight.working for flight in in_flight], own]
        activations[own] = (works + waits).max(axis=0)
    return (*_weights(steps, cost, groups, kind), activations)


def _micro_batch_bytes(
    steps: Schedule,
    cost: CostModel,
    groups: StageGroups,
    kind: ScheduleKind,
    remade: Collection[Node],
) -> tuple[Bytes, Bytes, Bytes]:
    """[chunks, devices], three times: bytes of one micro-batch at work at its fullest time,
    unsliced tensors included; the bytes that it leaves for its backward pass; and those for its
    pass for weights."""
    chunks = chunks_on(steps, groups)
    within = groups.size, chunks.numbers if chunks else {}
    living = liveness(steps, remade, *within, has_weights_pass=has_weights_pass(kind))
    turn, itemsize = living.end // 2, itemsizes(steps, cost.training)
    # Tensors lie on few different sets of devices.
    changes, waits, left = (_BySet() for _ in range(3))
    known: dict[int, tuple[Bytes, Bytes, Bytes]] = {}
    for life in living.lifetimes:
        slice_layout, devices = life.layout.one_slice, life.layout.devices
        if id(devices) not in known:  # hashing thousands of devices takes long
            if devices not in changes:
                changes[devices] = np.zeros((groups.interleave, living.end + 2), np.int64)
                waits[devices], left[devices] = np.zeros((2, groups.interleave), np.int64)
            known[id(devices)] = changes[devices], waits[devices], left[devices]
        changed, waiting, after = known[id(devices)]
        number = chunks.slots.get(life.slot, 0) // groups.stages if chunks else 0
        block = prod((slice_layout or life.layout).type.block) * itemsize(life)
        # A tensor without slices is there for all chunks.
        change = changed if slice_layout is None else changed[number : number + 1]
        change[:, life.first] += block
        change[:, life.last + 1] -= block
        if slice_layout is not None and life.first < turn <= life.last:
            waiting[number] += block
        if slice_layout is not None and life.last == living.end - 1:
            after[number] += block
    return _by_device((changes, waits, left), groups.devices)


def _by_device(given: tuple[_BySet, _BySet, _BySet], devices: int) -> tuple[Bytes, Bytes, Bytes]:
    """The bytes of sets of devices, for each device. The first are changes in time, of which the
    peak is taken."""
    changes, waits, left = given
    # Devices that are in the same sets hold the same at any time.
    alike, which = np.unique(_inside(changes, devices), axis=1, return_inverse=True)
    among, columns = alike.astype(np.int64), which.ravel()
    held = np.stack([*changes.values()]).cumsum(axis=2)
    peaks = [(held[:, chunk].T @ among).max(axis=0) for chunk in range(len(held[0]))]
    waiting, after = (np.stack([*by_set.values()], axis=1) @ among for by_set in (waits, left))
    return np.stack(peaks)[:, columns], waiting[:, columns], after[:, columns]


def _inside(sets: Collection[tuple[int, ...]], devices: int) -> NDArray[np.bool_]:
    """[sets, devices]: whether a set has a device."""
    inside = np.zeros((len(sets), devices), bool)
    for row, members in zip(inside, sets, strict=True):
        row[list(members)] = True
    return inside


def _weights(
    steps: Schedule, cost: CostModel, groups: StageGroups, kind: ScheduleKind
) -> tuple[Bytes, Bytes, Bytes]:
    """Bytes on each device of weights, of their gradients, and of optimizer states."""
    fixed, trained = np.zeros((2, groups.devices), np.int64)
    with_gradients = set(gradients(steps).weights)
    for node, layout in steps.homes.items():
        counted = trained if node in with_gradients else fixed
        counted[list(layout.devices)] += prod(layout.type.block)
    training = cost.training
    parameters = (fixed + WEIGHT_VERSIONS[kind] * trained) * training.parameter_bytes
    return parameters, trained * training.formats.wide, trained * training.state_bytes
