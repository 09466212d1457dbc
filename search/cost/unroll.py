"""The schedule of a model with few blocks as that of a deep model: its tasks and its memory.

Problem: a deep model repeats the steps of its blocks. Listing them, timing them and finding out
what is held takes far longer than simulating them.

Method: two neighbouring blocks in the middle of a schedule are compared, forward and backward: the
durations of their steps, what each step reads of its own block and of the one before, the weights
to whose gradients it adds, and the tensors that come to be held and are released. If both blocks
agree, so would any number of blocks between them. So the program of the whole repeats the first of
the two, and so do the bytes that come and go.

The tasks are those of the whole schedule, in its order and with the same durations. So the seconds
are the same to the last bit, and so are the bytes. One thing is left out: the additions of blocks
to the gradient of a tensor that all of them read. Complexity: the steps of the few blocks, and a
copy of each other step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, LeafAtHome, Schedule
from search.cost.cost import CostModel, Duration
from search.cost.progress import check_time
from search.cost.tasks import ProgramStep, TaskProgram, program, trained_weights


class NotAlike(Exception):
    """The blocks in the middle of a schedule differ, so nothing is known about the whole."""


class Repeated(NamedTuple):
    """The repetition of a block of a schedule. The block begins at the computation ``first``, has
    ``computations`` computations, and is followed by ``more`` further blocks like it."""

    first: int
    computations: int
    more: int


@dataclass(frozen=True)
class BlockWindow:
    """A block of a schedule, by the numbers of its steps, that is followed by ``more`` others like
    it."""

    first: int
    length: int
    more: int

    @property
    def stop(self) -> int:
        return self.first + self.length


ONCE = Repeated(0, 0, 0)


@dataclass(frozen=True)
class Unrolled:
    """The program of a whole schedule, and for each of its weights the one that stands for it."""

    program: TaskProgram
    weights: Sequence[Node]


def window_of(schedule: Schedule, repeated: Repeated) -> BlockWindow | None:
    """The middle block of a schedule; None if it is not repeated. Raises NotAlike if there are too
    few computations, or if the next block has another number of steps."""
    if not repeated.more:
        return None
    places = [i for i, step in enumerate(schedule.steps) if isinstance(step, Compute)]
    start, own, _ = repeated
    if start < own or start + 2 * own >= len(places):
        raise NotAlike
    first, after, end = (places[start + n * own] for n in range(3))
    if end - after != after - first:
        raise NotAlike
    return BlockWindow(first, after - first, repeated.more)


def unrolled(
    schedule: Schedule,
    cost: CostModel,
    repeated: Repeated,
    recomputed: Mapping[int, tuple[int, ...]] | None = None,
) -> Unrolled:
    """The program of a schedule with its middle block repeated. ``recomputed``: as for ``program``.
    Raises NotAlike if the block differs from the next."""
    given = program(schedule, cost, recomputed)
    weights = gradients(schedule).weights
    window = window_of(schedule, repeated)
    if window is None:
        return Unrolled(given, weights)
    loads = np.cumsum([isinstance(step, LeafAtHome) for step in schedule.steps])
    first = window.first - int(loads[window.first])
    length = window.stop - int(loads[window.stop]) - first
    made = _Unroller.of(given.steps, BlockWindow(first, length, window.more))
    steps = made.steps()
    every = [weights[number] for number in made.weights(len(weights))]
    order = tuple(dict.fromkeys(number for step in steps for number in step.weights))
    homes = [schedule.homes[node] for node in every]
    return Unrolled(TaskProgram(steps, *trained_weights(order, homes, cost)), every)


@dataclass(frozen=True)
class _Unroller:
    """Numbers the steps and weights of a program while a block is repeated. ``own``: the weights to
    which only this block adds."""

    given: Sequence[ProgramStep]
    window: BlockWindow
    own: range

    @staticmethod
    def of(given: Sequence[ProgramStep], window: BlockWindow) -> _Unroller:
        """Raises NotAlike if the block and the next one differ."""
        first, length = window.first, window.length
        block, after = given[first : window.stop], given[window.stop : window.stop + length]
        own = _own_weights(block, after)
        if own is None or len(after) < length:
            raise NotAlike
        if not all(_alike(a, b, window, own) for a, b in zip(block, after, strict=True)):
            raise NotAlike
        late = given[window.stop + length :]
        inside = range(first, window.stop)
        if any(at in inside for step in late for at in (*step.reads, *step.recomputed)):
            raise NotAlike
        return _Unroller(given, window, own)

    def steps(self) -> list[ProgramStep]:
        """The steps of the whole, in the order of the forward pass."""
        first, length, more = self.window.first, self.window.length, self.window.more
        stop = self.window.stop
        block, after = self.given[first:stop], self.given[stop : stop + length]
        made = list(self.given[:stop])
        for copy in range(1, more + 1):
            check_time()
            made += [
                self._moved(step, after[i], copy * length, copy * len(self.own))
                for i, step in enumerate(block)
            ]
        apart, weights = more * length, more * len(self.own)
        made += [
            self._moved(block[i], step, apart + length, weights + len(self.own))
            for i, step in enumerate(after)
        ]
        late = self.given[stop + length :]
        return made + [self._late(step, apart, weights) for step in late]

    def weights(self, count: int) -> list[int]:
        """For each weight of the whole, the number of the one that stands for it."""
        copies = [number for _ in range(self.window.more) for number in self.own]
        return [*range(self.own.stop), *copies, *range(self.own.stop, count)]

    def _moved(
        self, step: ProgramStep, next_step: ProgramStep, by: int, weights: int
    ) -> ProgramStep:
        """A step of the block, moved ``by`` steps back in the order. ``next_step``: the same step
        of the next block, which shows which numbers move and which all blocks share."""

        def moved(these: Sequence[int], others: Sequence[int], apart: int) -> tuple[int, ...]:
            pairs = zip(these, others, strict=True)
            return tuple(a if a == b else a + apart for a, b in pairs)

        return step._replace(
            reads=moved(step.reads, next_step.reads, by),
            weights=tuple(sorted(moved(step.weights, next_step.weights, weights))),
            recomputed=moved(step.recomputed, next_step.recomputed, by),
        )

    def _late(self, step: ProgramStep, by: int, weights: int) -> ProgramStep:
        """A step after both blocks, with its numbers moved."""
        stop = self.window.stop
        return step._replace(
            reads=tuple(at + by if at >= stop else at for at in step.reads),
            weights=tuple(n + weights if n >= self.own.stop else n for n in step.weights),
            recomputed=tuple(at + by if at >= stop else at for at in step.recomputed),
        )


def _own_weights(block: Sequence[ProgramStep], after: Sequence[ProgramStep]) -> range | None:
    """The weights of a block that the next block does not have; None unless they are numbered
    consecutively, and those of the next block follow them."""
    mine = {number for step in block for number in step.weights}
    others = {number for step in after for number in step.weights}
    own, next_own = sorted(mine - others), sorted(others - mine)
    if not own:
        return range(0) if not next_own else None
    row = range(own[0], own[-1] + 1)
    follows = next_own == [number + len(row) for number in own]
    return row if len(row) == len(own) and follows else None


def _alike(one: ProgramStep, other: ProgramStep, window: BlockWindow, own: range) -> bool:
    """Whether a step of the block equals the corresponding step of the next block."""
    length, first = window.length, window.first

    def same(a: int, b: int) -> bool:
        if a == b:  # a step before all blocks
            return a < first - length
        return b == a + length and a >= first - length

    return (
        _takes_alike(one.forward, other.forward)
        and _takes_alike(one.backward, other.backward)
        and _takes_alike(one.late, other.late)
        and one.reshards == other.reshards
        and len(one.reads) == len(other.reads)
        and all(map(same, one.reads, other.reads))
        and len(one.recomputed) == len(other.recomputed)
        and all(map(same, one.recomputed, other.recomputed))
        and [n + len(own) if n in own else n for n in one.weights] == list(other.weights)
    )


def _takes_alike(one: Duration, other: Duration) -> bool:
    if one is other:
        return True
    same = np.array_equal(one.seconds, other.seconds)
    return same and np.array_equal(one.groups, other.groups)


Changes = NDArray[np.int64]


def unrolled_changes(changes: Changes, window: BlockWindow | None, end: int) -> Changes:
    """The changes [time, ...] of what is held in a whole step. ``changes``: those with the block
    once; ``end``: the time of the update. Raises NotAlike if the block differs from the next."""
    if window is None:
        return changes
    first, stop, length = window.first, window.stop, window.length
    back = end - stop
    forward, backward = changes[first:stop], changes[back : back + length]
    alike = np.array_equal(forward, changes[stop : stop + length])
    if not alike or not np.array_equal(backward, changes[back - length : back]):
        raise NotAlike
    more = (window.more,) + (1,) * (changes.ndim - 1)
    parts = (
        changes[:stop],
        np.tile(forward, more),
        changes[stop:back],
        np.tile(backward, more),
        changes[back:],
    )
    return np.concatenate(parts)
