"""The tasks of a training step: their order, their streams, and what each waits for.

The tasks follow from a schedule. They are in the order in which a program would issue them:

- forward: the steps of the schedule in order;
- backward: the steps in reverse, that is each computation's gradients and the adjoint of each
  resharding, after the gradients of all readers of its results. For a product, the gradient of its
  weight is a task of its own, right after that of the other operand (``pcg.placement.late``).
  Results that the forward pass has not saved are recomputed just before they are needed
  (``pcg.placement.recomputation``), on the stream of the original step;
- the all_reduce of weights' gradients, by the buckets that small ones share. It is issued after the
  last computation that adds to a bucket, and so overlaps with the rest of the backward pass, as in
  PyTorch's DistributedDataParallel (Li et al., VLDB 2020);
- the updates, each after its all_reduce.

A device has two streams, one for computation and one for communication, as with CUDA streams and
NCCL. A copy within a device's own memory counts as computation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from pcg.placement.backward import Gradients, gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.placement.transfer import Groups, transfer
from pcg.plan.timeline import COMMUNICATE, COMPUTE
from pcg.readings.kernels import uses_among
from search.cost.collectives import BUCKET, FULL
from search.cost.cost import NOTHING, CostModel, Duration, GradientExchange
from search.cost.progress import check_time
from search.cost.slices import one_slice

FORWARD, BACKWARD, SYNC, UPDATE, RECOMPUTE = range(5)
"""The phases of a step. Recomputation is part of the backward pass."""
PHASES = ("forward", "backward", "sync", "update", "recompute")


SELDOM = 64
"""The number of steps after which the issue of tasks looks at the clock again."""


class ProgramStep(NamedTuple):
    """A step of a program, with its backward pass."""

    forward: Duration
    backward: Duration
    """NOTHING if no gradient passes."""
    reads: tuple[int, ...]
    """The steps whose results this one reads."""
    weights: tuple[int, ...] = ()
    """The numbers of the weights to whose gradients it adds."""
    reshards: bool = False
    recomputed: tuple[int, ...] = ()
    """The steps that are recomputed before its backward pass."""
    late: Duration = NOTHING
    """The part of its backward pass that may come after the gradient of the other operand: the
    gradient of its weight, if it adds to that of one weight only."""


class TaskProgram(NamedTuple):
    """The durations of a schedule's steps, with the weights that they train."""

    steps: Sequence[ProgramStep]
    """In the order of the forward pass."""
    weights: Sequence[tuple[Duration, Duration]]
    """The all_reduce and the update of every weight that has a gradient."""
    buffers: Sequence[tuple[int, ...]] = ()
    """The numbers of the weights whose gradients are sent together. Other gradients are sent
    alone."""


class Task(NamedTuple):
    """A piece of work of groups of devices."""

    duration: Duration
    stream: int
    after: tuple[int, ...]
    """The numbers of the tasks whose results it uses."""
    phase: int
    what: int
    """The number of its step; in the phases ``SYNC`` and ``UPDATE``, that of its weight."""
    passes: bool
    """Whether devices that take no part have the result as soon as they have its inputs."""


class TimedStep(NamedTuple):
    """A step of a schedule with its durations."""

    step: Compute | Reshard
    forward: Duration
    backward: Duration
    """NOTHING if no gradient passes."""
    repeated: bool = False
    """Whether it is done for every slice of the batch."""
    late: Duration = NOTHING
    """See ``ProgramStep``."""


def program(
    schedule: Schedule, cost: CostModel, recomputed: Mapping[int, tuple[int, ...]] | None = None
) -> TaskProgram:
    """The program of a schedule. ``recomputed``: for the number of a step, counting loads, the
    steps that are recomputed before its backward pass."""
    passed = gradients(schedule)
    steps = schedule.steps
    timed = [at for at, step in enumerate(steps) if not isinstance(step, LeafAtHome)]
    place = {at: i for i, at in enumerate(timed)}
    remade = {
        place[at]: tuple(place[i] for i in before) for at, before in (recomputed or {}).items()
    }
    homes = [Slot(node.value(), schedule.homes[node]) for node in passed.weights]
    return linked(timed_steps(schedule, passed, cost), homes, cost, remade)


def timed_steps(
    schedule: Schedule, passed: Gradients, cost: CostModel, *, by_slice: bool = False
) -> list[TimedStep]:
    """The durations of a schedule's steps, without loads. ``by_slice``: whether steps that work on
    slices of the batch are timed for one slice."""
    computed = [step.node for step in schedule.steps if isinstance(step, Compute)]
    outputs = [slot.value for slot in schedule.outputs]
    uses = uses_among(computed, outputs, compiled=cost.training.compiled)
    timed: list[TimedStep] = []
    for at, (step, needs) in enumerate(zip(schedule.steps, passed.steps, strict=True)):
        check_time()
        if isinstance(step, LeafAtHome):
            continue
        late = NOTHING
        if isinstance(step, Compute):
            node, repeated = one_slice(step.node) if by_slice else (step.node, False)
            wanted, use = needs or frozenset[int](), uses[step.node]
            forward, backward = cost.computation(node, wanted, step.view, use)
            if needs is not None:
                late = cost.late(node, wanted, use, backward)
        else:
            a, b = (s.layout.one_slice if by_slice else None for s in (step.source, step.target))
            repeated = a is not None and b is not None
            moved = transfer(a, b) if a and b else step.transfer
            forward, backward = cost.forward_movement(moved), cost.movement(moved)
        if needs is None or at == passed.joining:
            backward = NOTHING
        made = [slot.layout for slot in step.results]
        layouts = [layout.one_slice or layout for layout in made] if by_slice else made
        counts = [passed.parts.get(slot, 0) for slot in step.results]
        backward = cost.with_sums(backward, layouts, counts)
        timed.append(TimedStep(step, forward, backward, repeated, late))
    return timed


def linked(
    timed: Sequence[TimedStep],
    homes: Sequence[Slot],
    cost: CostModel,
    recomputed: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> TaskProgram:
    """The program of steps in the order of the forward pass. ``homes``: where the trained weights
    are stored; ``recomputed``: for the number of a step, the steps that are recomputed before its
    backward pass."""
    numbers = {slot: i for i, slot in enumerate(homes)}
    made: dict[Slot, int] = {}
    steps: list[ProgramStep] = []
    for at, (step, forward, backward, _, late) in enumerate(timed):
        reads = tuple(dict.fromkeys(made[slot] for slot in step.operands if slot in made))
        weights = tuple(sorted({numbers[slot] for slot in step.operands if slot in numbers}))
        made.update(dict.fromkeys(step.results, at))
        added = weights if backward is not NOTHING else ()
        reshards = isinstance(step, Reshard)
        again = recomputed.get(at, ())
        steps.append(ProgramStep(forward, backward, reads, added, reshards, again, late))
    return with_weights(steps, [slot.layout for slot in homes], cost)


class TrainedWeights(NamedTuple):
    """The exchange and update of weights that get gradients; see ``TaskProgram``."""

    weights: Sequence[tuple[Duration, Duration]]
    buffers: Sequence[tuple[int, ...]]


def with_weights(
    steps: Sequence[ProgramStep], homes: Sequence[Layout], cost: CostModel
) -> TaskProgram:
    """The program of steps that train weights. ``homes``: where the weights are stored, in the
    order of their numbers."""
    order = dict.fromkeys(weight for step in steps for weight in step.weights)
    return TaskProgram(steps, *trained_weights(tuple(order), homes, cost))


def trained_weights(
    order: Sequence[int], homes: Sequence[Layout], cost: CostModel
) -> TrainedWeights:
    """The exchange and update of weights. ``homes``: where they are stored; ``order``: the numbers
    of those that steps read, in the order of the forward pass."""
    given = [cost.gradient_exchange(home) for home in homes]
    weights = [cost.weight(home) for home in homes]
    buffers = _buffers(order, given)
    for buffer in buffers:
        together = sum(given[number].block for number in buffer)
        for number in buffer:
            weights[number] = cost.weight(homes[number], together)
    return TrainedWeights(weights, buffers)


def _buffers(order: Sequence[int], given: Sequence[GradientExchange]) -> list[tuple[int, ...]]:
    """The buckets of gradients, each as the numbers of its weights. Gradients share a bucket if
    they are added up in the same groups of devices. The backward pass fills one bucket after the
    other."""
    filling: dict[Groups, list[int]] = {}
    sizes: dict[Groups, int] = {}
    full: dict[Groups, float] = {}
    buffers: list[tuple[int, ...]] = []
    for number in reversed(order):
        block, groups = given[number]
        if not groups:
            continue
        filling.setdefault(groups, []).append(number)
        sizes[groups] = sizes.get(groups, 0) + block
        if sizes[groups] >= full.get(groups, BUCKET):
            buffers.append(tuple(filling.pop(groups)))
            sizes[groups], full[groups] = 0, FULL
    return [*buffers, *map(tuple, filling.values())]


def tasks(
    given: TaskProgram, *, overlap: bool = True, has_weights_pass: bool = False
) -> list[Task]:
    """The tasks of a program in the order of issue. ``has_weights_pass``: whether the gradients of
    weights that may come late are computed after the backward pass (``pcg.placement.late``).

    Without ``overlap``, all tasks share one stream, and gradients are exchanged after the backward
    pass. Seconds then add up, as in the sums that searches minimize.
    """
    return _Issue(given, overlap, has_weights_pass).run()


def tasks_by_pass(given: TaskProgram, *, overlap: bool = True) -> tuple[list[Task], list[Task]]:
    """The tasks of a program without updates: those of the forward and backward pass, and those of
    the pass for weights, which wait for no other tasks."""
    unsent = given._replace(weights=[(NOTHING, NOTHING)] * len(given.weights), buffers=())
    issue = _Issue(unsent, overlap, has_weights_pass=True)
    made = [task for task in issue.run() if task.phase != UPDATE]
    weights = [task._replace(after=()) for task in made[issue.passed :]]
    return made[: issue.passed], weights


@dataclass
class _Issue:
    """Issues the tasks of one program."""

    given: TaskProgram
    overlap: bool
    has_weights_pass: bool = False
    passed: int = 0
    """The number of tasks before the pass for weights."""

    def run(self) -> list[Task]:
        steps, weights, _ = self.given
        self._forward(steps)
        users: list[list[int]] = [[] for _ in steps]
        first = [len(steps)] * len(weights)
        for i, step in enumerate(steps):
            for source in step.reads:
                users[source].append(i)
            for weight in step.weights:
                first[weight] = min(first[weight], i)
        self._back: dict[int, int] = {}
        self._adds: dict[int, list[int]] = {i: [] for i in range(len(weights))}
        self._done: dict[int, tuple[int, ...]] = {}
        self._complete: set[int] = set()
        self._buffer = {weight: buffer for buffer in self.given.buffers for weight in buffer}
        self._latest = len(steps) - 1
        """The last computation that was issued."""
        self._put_off: list[int] = []
        """The steps whose late part is left for the pass for weights."""
        self._sent: int | None = None  # the last communication of the backward pass
        self._remade: dict[int, int] = {}
        """The task of each recomputed step."""
        adding = Counter(weight for step in steps for weight in step.weights)
        self._alone = {weight for weight, count in adding.items() if count == 1}
        """The weights to whose gradients only one step adds."""
        self._again_done = {made for step in steps for made in step.recomputed}
        for i in range(len(steps) - 1, -1, -1):
            if i % SELDOM == 0:
                check_time()
            if steps[i].backward is not NOTHING:
                self._backward(i, users[i])
                self._exchange_complete(i, first)
        self._pass_for_weights()
        for weight in range(len(weights) - 1, -1, -1):
            if weight not in self._done:
                self._exchange(weight)
        for weight, after in self._done.items():
            self._made.append(Task(weights[weight][1], COMPUTE, after, UPDATE, weight, False))
        return self._made

    def _forward(self, steps: Sequence[ProgramStep]) -> None:
        apart = [step.reshards and step.forward.groups.shape[1] > 1 for step in steps]
        self._streams = [COMMUNICATE if own and self.overlap else COMPUTE for own in apart]
        self._made = [
            Task(step.forward, stream, step.reads, FORWARD, i, step.reshards)
            for i, (step, stream) in enumerate(zip(steps, self._streams, strict=True))
        ]

    def _backward(self, i: int, users: Sequence[int]) -> None:
        step, back = self.given.steps[i], self._back
        needed = self._recomputed(step) if step.recomputed or self._remade else ()
        after = (i, *needed, *[back[user] for user in users if user in back])
        back[i] = len(self._made)
        late, stream = self._late(i), self._streams[i]
        first = without(step.backward, late)
        self._made.append(Task(first, stream, after, BACKWARD, i, step.reshards))
        if late is not NOTHING and self.has_weights_pass:
            self._put_off.append(i)
        elif late is not NOTHING:
            self._made.append(Task(late, stream, (self._back[i],), BACKWARD, i, False))
        for weight in step.weights:
            self._adds[weight].append(len(self._made) - 1)
        if stream == COMPUTE:
            self._latest = len(self._made) - 1
        else:
            self._sent = len(self._made) - 1

    def _recomputed(self, step: ProgramStep) -> tuple[int, ...]:
        """Issue the recomputations before the backward pass of a step. Returns the tasks for which
        it has to wait."""
        steps = self.given.steps
        remade = [self._again(other, steps[other]) for other in step.recomputed]
        sources = [self._remade[own] for own in step.reads if own in self._remade]
        return tuple(dict.fromkeys((*sources, *(n for n in remade if n is not None))))

    def _exchange_complete(self, i: int, first: Sequence[int]) -> None:
        """Exchange the gradients that a step completes: those of weights of which it is the
        ``first`` reader, unless it puts them off."""
        put_off = bool(self._put_off) and self._put_off[-1] == i
        for weight in self.given.steps[i].weights if self.overlap and not put_off else ():
            if first[weight] == i:
                self._exchange(weight)

    def _pass_for_weights(self) -> None:
        """Issue the parts that were put off, after the rest of the backward pass. Gradients are
        sent at the same time."""
        self.passed = len(self._made)
        before = (self._latest, *(() if self._sent is None else (self._sent,)))
        for i in self._put_off if self.passed else ():
            (weight,) = self.given.steps[i].weights
            self._adds[weight].append(len(self._made))
            self._made.append(Task(self._late(i), COMPUTE, before, BACKWARD, i, False))
            if self.overlap:
                self._exchange(weight)

    def _late(self, i: int) -> Duration:
        """The part of a step's backward pass that comes after the rest of it."""
        step = self.given.steps[i]
        if step.late is NOTHING or len(step.weights) != 1:
            return NOTHING
        alone = step.weights[0] in self._alone
        return step.late if alone and i not in self._again_done else NOTHING

    def _again(self, i: int, step: ProgramStep) -> int | None:
        """Issue the recomputation of a step. Returns the task for which the next tasks have to
        wait, or None."""
        number = len(self._made)
        stream = self._streams[i]
        after = [self._remade[own] for own in step.reads if own in self._remade]
        if step.reshards:
            # A communication is not repeated before the backward pass needs it, though its stream
            # may be free.
            after.append(self._latest)
        self._made.append(Task(step.forward, stream, tuple(after), RECOMPUTE, i, step.reshards))
        self._remade[i] = number
        # A gathered tensor is only waited for by its readers.
        return None if step.reshards else number

    def _exchange(self, weight: int) -> None:
        """Note that a weight's gradient is complete. Exchange its bucket if all of it is."""
        self._complete.add(weight)
        buffer = self._buffer.get(weight, (weight,))
        if self._complete.issuperset(buffer):
            after = tuple(sorted({task for other in buffer for task in self._adds[other]}))
            stream, sent = COMMUNICATE if self.overlap else COMPUTE, after
            for other in buffer:
                sync = self.given.weights[other][0]
                if sync is not NOTHING:
                    sent = (len(self._made),)
                    self._made.append(Task(sync, stream, after, SYNC, other, True))
            # All sums are ready when the last part of the bucket is.
            self._done.update(dict.fromkeys(buffer, sent))


@lru_cache(maxsize=65536)
def without(whole: Duration, part: Duration) -> Duration:
    """A duration minus a part of it, on the same devices. ``part`` may be NOTHING."""
    return whole if part is NOTHING else Duration(whole.groups, whole.seconds - part.seconds)
