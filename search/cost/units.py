"""Recomputation: which operators a plan recomputes so that it fits in memory.

Problem: choose operators whose results are not kept, such that the plan fits and a step takes
little longer.

Method: the tensors that the backward pass reads are grouped in *units*: a tensor, and the steps
that recompute it from tensors that are kept. A greedy takes units in the order of bytes freed for
each second of recomputation, until the plan fits: first large and cheap tensors, such as those
inside attention (selective), in the end all (full). So that not everything is recomputed from the
data at once, the schedule is divided in spans, and tensors that pass from span to span are kept.
Spans end where least is held; in a transformer that is between blocks. Their number is about the
one with the least sum of the tensors between spans and those of one span. If one block of a
schedule stands for many, the blocks are the spans, and the same is recomputed in all of them.

Source: a knapsack by density; spans of equal parts as in Chen et al., arXiv:1604.06174; selective
recomputation as in Korthikanti et al., MLSys 2023, section 5. Complexity: linear in the steps for
units, and about ten counts of memory, by bisection. The choice is heuristic; memory is counted, and
time is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.placement.backward import gradients
from pcg.placement.in_parts import named_parts
from pcg.placement.recomputation import recomputed_steps
from pcg.placement.saved import SavedTensors, saved_tensors
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot, trace
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.progress import check_time
from search.cost.tasks import timed_steps
from search.cost.unroll import NotAlike, Repeated, window_of

DEEPEST = 64
"""The most steps that recompute one tensor."""
FINENESS = (1.0, 2.0, 0.5)
"""The numbers of spans that are tried, as multiples of the number that is best for equal spans."""
AROUND = 0.4
"""The largest distance of the end of a span from its place among equal spans, as a fraction of a
span."""

RecomputedNodes = frozenset[Node]
CountBytes = Callable[[RecomputedNodes], int]
"""A function from the operators that are recomputed to the bytes on the fullest device."""


@dataclass(frozen=True)
class AlikeSpans:
    """Spans of a schedule in which the same is recomputed."""

    ends: tuple[int, ...]
    """The steps after which spans end."""
    kinds: Mapping[int, int]
    """A number for each step, equal for steps at the same place in their spans."""


@dataclass(frozen=True)
class Unit:
    """A tensor that the backward pass reads, and the operators that recompute it."""

    nodes: RecomputedNodes
    bytes: int
    """The elements on a device that are freed."""
    seconds: float
    """Seconds of a step that the recomputation takes."""
    is_cheap: bool
    """Whether it repeats no product with a weight and no communication."""
    gathers: bool
    """Whether the tensor is a weight that is gathered again."""
    first: int
    """The number of the step that makes the tensor."""

    @property
    def worth(self) -> float:
        return self.bytes / self.seconds if self.seconds else inf


def recomputations_to_fit(
    schedule: Schedule,
    seconds: Sequence[float],
    counted: CountBytes,
    limit: int,
    choice: Recompute = Recompute.AUTO,
    stage: int | None = None,
    chunks: Mapping[int, int] = MappingProxyType({}),
    alike: AlikeSpans | None = None,
) -> Iterator[RecomputedNodes]:
    """Sets of operators to recompute that are worth a simulation. With ``AUTO``: sets with which a
    plan fits that does not fit without; if there are none, the set that takes the least memory.
    ``seconds``: of each step forward, for all micro-batches; ``limit``: the available bytes;
    ``stage``: the number of devices of a stage of a pipeline; ``chunks``: the chunks of its steps,
    as for ``recomputed_steps``; ``alike``: the spans, if they are fixed."""
    if choice is Recompute.NONE:
        return
    units = units_of(schedule, seconds, counted, stage, chunks, alike)
    if choice is not Recompute.AUTO:
        cheap = choice is Recompute.SELECTIVE
        chosen = union([u for u in units if not u.gathers and (u.is_cheap or not cheap)])
        yield from (chosen,) if chosen else ()
        return
    if not units:
        return
    if counted(union(units)) > limit:
        yield union(units)
        return
    gathers = union([unit for unit in units if unit.gathers])
    if gathers and counted(gathers) <= limit:
        yield gathers
    low, high = 0, len(units)
    while high - low > 1:
        middle = (low + high) // 2
        if counted(union(units[:middle])) <= limit:
            high = middle
        else:
            low = middle
    yield union(units[:high])


def units_of(
    schedule: Schedule,
    seconds: Sequence[float],
    counted: CountBytes,
    stage: int | None = None,
    chunks: Mapping[int, int] = MappingProxyType({}),
    alike: AlikeSpans | None = None,
) -> list[Unit]:
    """The units of a schedule in descending worth. The arguments are those of
    ``recomputations_to_fit``."""
    finder = _Units(saved_tensors(schedule), seconds, stage, chunks)
    return _fewest_bytes(finder, counted) if alike is None else finder.alike(alike)


def forward_seconds(schedule: Schedule, cost: CostModel, micro_batches: int = 1) -> list[float]:
    """Seconds of repeating each step, within a training step; 0 for loads. With micro-batches, a
    step without slices, such as the gathering of a weight, is repeated for each of them forward and
    backward."""
    timed = iter(timed_steps(schedule, gradients(schedule), cost, by_slice=micro_batches > 1))
    seconds: list[float] = []
    for step in schedule.steps:
        if isinstance(step, LeafAtHome):
            seconds.append(0.0)
            continue
        timed_step = next(timed)
        times = micro_batches if timed_step.repeated else 2 * micro_batches - 1
        seconds.append(timed_step.forward.longest * times)
    return seconds


def in_whole(
    few: Schedule, whole: Schedule, repeated: Repeated, nodes: RecomputedNodes
) -> RecomputedNodes:
    """The operators of a whole schedule that correspond to ``nodes`` of a schedule with few blocks,
    whose middle block stands for others. Raises NotAlike if it does not."""
    window = window_of(few, repeated)
    few_names, whole_names = _names_of(few), _names_of(whole)
    if window is None or len(whole_names) != len(few_names) + window.more * window.length:
        raise NotAlike
    left_out = window.more * window.length

    def image(number: int) -> int:
        if number < window.stop:
            return number
        if number < window.stop + left_out:
            return window.first + (number - window.first) % window.length
        return number - left_out

    chosen: set[Node] = set()
    for number, node in enumerate(whole_names):
        other = few_names[image(number)]
        if (node is None) != (other is None):
            raise NotAlike
        if node is not None and other in nodes:
            chosen.add(node)
    return frozenset(chosen)


def _names_of(schedule: Schedule) -> list[Node | None]:
    """For each step, the operator by which its recomputation is named, or None."""
    chains = _chains_of(schedule)
    return [
        step.node if isinstance(step, Compute) else chains.get(number, (None,))[0]
        for number, step in enumerate(schedule.steps)
    ]


def union(units: Iterable[Unit]) -> RecomputedNodes:
    """The operators that recompute some units."""
    return frozenset(node for unit in units for node in unit.nodes)


def _fewest_bytes(finder: _Units, counted: CountBytes) -> list[Unit]:
    """The units between those boundaries with which the least memory is held if all units are
    recomputed, in descending worth."""
    best: tuple[int, list[Unit]] | None = None
    for parts in finder.numbers_of_spans():
        units = finder.units(finder.boundaries(parts))
        held = counted(union(units))
        if best is None or held < best[0]:
            best = held, units
    return [] if best is None else _by_worth(best[1])


def _by_worth(units: Iterable[Unit]) -> list[Unit]:
    return sorted(units, key=lambda unit: -unit.worth)


def _together(units: Sequence[Unit]) -> Unit:
    return Unit(
        union(units),
        sum(unit.bytes for unit in units),
        sum(unit.seconds for unit in units),
        all(unit.is_cheap for unit in units),
        any(unit.gathers for unit in units),
        units[0].first,
    )


class _Units:
    """Finds the units of a schedule."""

    def __init__(
        self,
        tensors: SavedTensors,
        seconds: Sequence[float],
        stage: int | None,
        chunks: Mapping[int, int],
    ) -> None:
        self._tensors, self._seconds = tensors, seconds
        self._chains = _chains_of(tensors.schedule)
        every = {s.node for s in tensors.steps if isinstance(s, Compute)}
        every.update(node for chain in self._chains.values() for node in chain)
        self._allowed = {
            number
            for number in recomputed_steps(tensors, every, stage, chunks).steps
            if isinstance(tensors.steps[number], Compute) or number in self._chains
        }
        outputs = {tensors.root(slot) for slot in tensors.schedule.outputs}
        saved = {slot for read in tensors.reads for slot in read}
        saved -= tensors.static | outputs
        self._saved = {slot: None for slot in tensors.maker if slot in saved}
        self._last: dict[Slot, int] = {}
        for i in range(len(tensors.steps)):
            self._last.update(dict.fromkeys(tensors.read(i), i))
        self._held, self._sums = self._profile()

    def _profile(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each step, the elements that are read after it, and those that were saved up to
        it."""
        count = len(self._tensors.steps)
        change, saved = np.zeros(count + 1), np.zeros(count)
        for slot, made in self._tensors.maker.items():
            size, last = self._tensors.size(slot), self._last.get(slot, made)
            change[made] += size
            change[last] -= size
            saved[made] += size if slot in self._saved else 0
        return change[:-1].cumsum(), saved.cumsum()

    def numbers_of_spans(self) -> list[int]:
        """The numbers of spans that are tried."""
        total = self._sums[-1] if len(self._sums) else 0.0
        inside = (self._sums > total / 4) & (self._sums < 3 * total / 4) & (self._held > 0)
        if not inside.any():
            return [1]
        equal = sqrt(total / self._held[inside].min())
        return list(dict.fromkeys(max(1, round(equal * part)) for part in FINENESS))

    def boundaries(self, parts: int) -> list[int]:
        """The steps after which spans end, without the last step."""
        total = self._sums[-1]
        ends: list[int] = []
        for part in range(1, parts):
            aim, slack = total * part / parts, AROUND * total / parts
            first = int(np.searchsorted(self._sums, aim - slack))
            last = int(np.searchsorted(self._sums, aim + slack, side="right"))
            if first < last:
                ends.append(first + int(self._held[first:last].argmin()))
        return list(dict.fromkeys(ends))

    def units(self, ends: Sequence[int]) -> list[Unit]:
        """The units, if tensors that pass from span to span are kept."""
        check_time()
        places = np.array(ends, np.intp)
        built: list[Unit] = []
        for slot in self._saved:
            if self._passes(slot, places):
                continue
            steps = self._steps(slot, places)
            if steps:
                built.append(self._unit(slot, steps))
        # In the order of the schedule, since the order of a set is arbitrary.
        return sorted(built, key=lambda unit: unit.first)

    def alike(self, spans: AlikeSpans) -> list[Unit]:
        """The units that are recomputed in all spans alike, in descending worth."""
        kinds: dict[tuple[bool, int], list[Unit]] = {}
        for unit in self.units(spans.ends):
            inside = unit.first in spans.kinds
            key = inside, spans.kinds[unit.first] if inside else unit.first
            kinds.setdefault(key, []).append(unit)
        return _by_worth(map(_together, kinds.values()))

    def _passes(self, slot: Slot, ends: NDArray[np.intp]) -> bool:
        """Whether a tensor passes from one span to another."""
        made, last = self._tensors.maker[slot], self._last.get(slot, 0)
        at = int(np.searchsorted(ends, made))
        return at < len(ends) and int(ends[at]) < last and not self._is_gather(made)

    def _steps(self, slot: Slot, ends: NDArray[np.intp]) -> list[int]:
        """The steps that recompute a tensor from tensors that are kept; none if it is kept
        itself."""
        wanted, steps = [self._tensors.maker[slot]], dict[int, None]()
        if wanted[0] not in self._allowed:
            return []
        while wanted:
            number = wanted.pop()
            if number in steps:
                continue
            steps[number] = None
            if len(steps) > DEEPEST:
                return []
            for read in self._tensors.read(number):
                made = self._tensors.maker[read]
                if read in self._tensors.static or read in self._saved:
                    continue
                if made in self._allowed and not self._passes(read, ends):
                    wanted.append(made)
        return list(steps)

    def _unit(self, slot: Slot, steps: Sequence[int]) -> Unit:
        made = [self._tensors.steps[number] for number in steps]
        nodes = (
            step.node if isinstance(step, Compute) else self._chains[number][0]
            for number, step in zip(steps, made, strict=True)
        )
        number = self._tensors.maker[slot]
        return Unit(
            frozenset(nodes),
            self._tensors.size(slot),
            sum(self._seconds[number] for number in steps),
            all(isinstance(step, Compute) and not _reads_matrix(step) for step in made),
            self._is_gather(number),
            number,
        )

    def _is_gather(self, number: int) -> bool:
        step = self._tensors.steps[number]
        return isinstance(step, Reshard) and step.source.value.node.is_weight


def _reads_matrix(step: Compute) -> bool:
    """Whether a step reads a weight of two or more dimensions, as a product does."""
    weights = (slot.value for slot in step.operands if slot.value.node.is_weight)
    return any(value.type.rank > 1 for value in weights)


def _chains_of(schedule: Schedule) -> dict[int, tuple[Node, ...]]:
    """For each resharding, the parallel operators that it carries out. The first is the one by
    which it is named: the one that combines parts from other devices, or else one that combines, or
    else the last."""
    maker = {slot: i for i, step in enumerate(schedule.steps) for slot in step.results}
    chains: dict[int, tuple[Node, ...]] = {}
    for step in schedule.steps:
        if not isinstance(step, Compute):
            continue
        for value, slot in zip(step.node.inputs, step.operands, strict=True):
            if isinstance(schedule.steps[maker[slot]], Reshard):
                chain = trace(value)[1][::-1]
                parts = named_parts(chain[::-1]) or ()
                named = sorted(chain, key=lambda n: (n not in parts, n.name != "combine"))
                chains.setdefault(maker[slot], tuple(named))
    return {number: chain for number, chain in chains.items() if chain}
