"""Seconds of plans that differ in an operator or two, put together of known pieces.

Problem: a descent asks for thousands of choices of strategies whether their plans are faster than
the best so far, and few are. Cutting, scheduling and simulating a graph takes milliseconds, most of
them for parts that are the same for all plans.

Method: delta simulation (Jia et al., MLSys 2019, section 5.3). A program is put together of the
``pieces`` of its operators, few of which are new after a change, and of reshardings that were
priced before. If the longest path of its operators is no shorter than the best (``paths``), it is
not put together at all. Otherwise its tasks are simulated until they are known to be no faster.

The program is that of the schedule of the cut graph, and its seconds are the same to the last bit.
A choice takes time in proportion to its operators and tasks, plus the time to cut each operator
that is new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from pcg.graph.graph import Graph
from pcg.memo import Memo
from search.cost.bounded import ROUNDING, BoundedSimulation
from search.cost.cost import NOTHING, CostModel, Duration
from search.cost.tasks import (
    ProgramStep,
    TaskProgram,
    TrainedWeights,
    tasks,
    trained_weights,
)
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.space.mapping import OperatorMapping
from search.refine.paths import OperatorPaths
from search.refine.pieces import OperatorPiece, OperatorPieces, WantedOperand


class _Step(NamedTuple):
    """A step of the forward pass. ``piece``: that of the operator that it computes; None if it is a
    resharding."""

    piece: OperatorPiece | None
    forward: Duration
    backward: Duration
    operands: tuple[int, ...]
    results: tuple[int, ...]
    reads: tuple[int, ...]
    """The steps whose results this one reads."""


_SumKey = tuple[Duration, tuple[int, ...], tuple[int, ...]]
_WeightsKey = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(eq=False)
class DeltaSimulator:
    """Simulates the plans of choices for one graph."""

    pieces: OperatorPieces
    _simulation: BoundedSimulation = field(init=False)
    _sums: Memo[_SumKey, Duration] = field(init=False, default_factory=Memo[_SumKey, Duration])
    _weights: Memo[_WeightsKey, TrainedWeights] = field(
        init=False, default_factory=Memo[_WeightsKey, TrainedWeights]
    )

    def __post_init__(self) -> None:
        self._simulation = BoundedSimulation(self.pieces.cost.machine.devices)
        self._paths = OperatorPaths(self.pieces)

    @staticmethod
    def of(graph: Graph, builder: Builder, cost: CostModel) -> DeltaSimulator:
        """A simulator for the plans that a builder makes of a graph."""
        return DeltaSimulator(OperatorPieces(graph, builder, cost))

    def takes_less(self, choice: Choice, limit: float) -> bool | None:
        """Whether a step of the plan of a choice takes less than ``limit`` seconds. None if this
        simulator can't tell (see ``program``)."""
        pieces = self._pieces_of(choice)
        return None if pieces is None else self._simulated(pieces, limit) is not None

    def seconds(self, choice: Choice, limit: float = inf) -> float | None:
        """Seconds of a step of the plan of a choice. None if they are no less than ``limit``, or if
        this simulator can't tell (see ``program``)."""
        pieces = self._pieces_of(choice)
        return None if pieces is None else self._simulated(pieces, limit)

    def seconds_mapped(self, mappings: Sequence[OperatorMapping], limit: float) -> float | None:
        """The same with the mappings of all operators, in the order of the graph."""
        pieces = self.pieces.of_all(mappings)
        return None if pieces is None else self._simulated(pieces, limit)

    def program(self, choice: Choice) -> TaskProgram | None:
        """The program of the plan of a choice. None if an operator has no piece, or weights are
        fully sharded."""
        pieces = self._pieces_of(choice)
        return None if pieces is None else self._linked(self._made(pieces))

    def _pieces_of(self, choice: Choice) -> list[OperatorPiece] | None:
        if choice.fully_sharded:
            return None
        mapping = self.pieces.builder.mapping
        return self.pieces.of_all([mapping(choice, node) for node in self.pieces.nodes])

    def _simulated(self, pieces: Sequence[OperatorPiece], limit: float) -> float | None:
        """Seconds of a step; None if they are no less than ``limit``."""
        if limit < inf and self._paths.last(pieces, limit * (1 + ROUNDING)):
            return None
        return self._simulation.seconds(tasks(self._linked(self._made(pieces))), limit)

    def _made(self, pieces: Sequence[OperatorPiece]) -> _Passes:
        """The forward and backward pass of a plan. ``pieces``: of all operators."""
        outer: dict[int, int] = {}
        schedule = _Forward(self.pieces)
        for number, piece in enumerate(pieces):
            outer.update(zip(self.pieces.makes[number], piece.outer, strict=True))
            schedule.compute(number, piece)
        outputs = [schedule.output(value, outer) for value in self.pieces.outputs]
        return _Passes(schedule, *self._backward(schedule.steps, outputs))

    def _backward(
        self, steps: Sequence[_Step], outputs: Sequence[int]
    ) -> tuple[list[Duration], set[int]]:
        """The backward pass of each step, and the slots that get a gradient, as
        ``pcg.placement.backward`` finds them."""
        first, scalar = outputs[0], self.pieces.has_loss
        live, read = {first} if scalar else set(outputs), set[int]()
        trained, parts = self.pieces.is_trained, dict[int, int]()
        backward = [NOTHING] * len(steps)
        for at in range(len(steps) - 1, -1, -1):
            step = steps[at]
            piece = step.piece
            if piece is not None:
                if piece.passes:
                    live.update(step.operands)
                    backward[at] = self._summed(step.backward, step.results, parts)
                    for position in piece.differentiated:
                        slot = step.operands[position]
                        parts[slot] = parts.get(slot, 0) + 1
            elif trained[step.operands[0]] and step.results[0] in live:
                (source,), (target,) = step.operands, step.results
                live.add(source)
                parts[source] = parts.get(source, 0) + 1
                # The last resharding of the loss has nothing to send back.
                if not (scalar and target == first and first not in read):
                    backward[at] = self._summed(step.backward, step.results, parts)
            read.update(step.operands)
        return backward, live

    def _linked(self, passes: _Passes) -> TaskProgram:
        """The program of both passes, with the weights that they train."""
        made, backward, live = passes
        homes = tuple(slot for slot in made.weights if slot in live)
        numbers = {slot: number for number, slot in enumerate(homes)}
        steps: list[ProgramStep] = []
        for step, back in zip(made.steps, backward, strict=True):
            added = () if back is NOTHING else step.operands
            weights = tuple(sorted({numbers[slot] for slot in added if slot in numbers}))
            piece = step.piece
            late = piece.late if piece else NOTHING
            times = step.forward, back
            steps.append(ProgramStep(*times, step.reads, weights, piece is None, late=late))
        order = tuple(dict.fromkeys(weight for step in steps for weight in step.weights))
        layouts = [self.pieces.slots[slot][1] for slot in homes]
        cost = self.pieces.cost
        known = self._weights.get((homes, order), lambda: trained_weights(order, layouts, cost))
        return TaskProgram(steps, *known)

    def _summed(self, back: Duration, results: tuple[int, ...], parts: dict[int, int]) -> Duration:
        """The backward pass of a step, with the sums of gradients that come from several
        readers."""
        counts = tuple([parts.get(slot, 0) for slot in results])
        if max(counts) < 2:
            return back
        layouts = [self.pieces.slots[slot][1] for slot in results]
        return self._sums.get(
            (back, results, counts), lambda: self.pieces.cost.with_sums(back, layouts, counts)
        )


class _Passes(NamedTuple):
    """The passes of a step of a plan. ``backward``: the backward pass of each step; ``live``: the
    slots that get a gradient."""

    forward: _Forward
    backward: Sequence[Duration]
    live: Collection[int]


class _Forward:
    """The steps of the forward pass of a schedule, as ``pcg.placement.schedule`` makes them."""

    def __init__(self, pieces: OperatorPieces) -> None:
        self._pieces = pieces
        self.steps: list[_Step] = []
        self.weights: list[int] = []
        """The slots in which weights are stored, in the order in which they are first read."""
        self._produced: dict[int, int] = {}
        self._homes: dict[int, int] = {}
        self._made: set[int] = set()
        """The slots to which tensors were moved, and those of inputs."""
        self._makers: dict[int, int] = {}
        """The step that makes each slot."""

    def compute(self, number: int, piece: OperatorPiece) -> None:
        """Add the step of an operator, after the reshardings of its operands."""
        operands = tuple([self._fetched(wanted) for wanted in piece.operands])
        self._produced.update(zip(self._pieces.makes[number], piece.results, strict=True))
        self._add(piece, (piece.forward, piece.backward), operands, piece.results)

    def output(self, value: int, outer: Mapping[int, int]) -> int:
        """The slot in which an output is left. ``outer``: the numbers of values as they are
        read."""
        left = self._pieces.output(value, outer)
        return self._produced[value] if left is None else self._fetched(left)

    def _fetched(self, wanted: WantedOperand) -> int:
        """The slot of an operand. Adds a resharding if it is needed."""
        value, slot, home, is_input = wanted
        if home is None:
            start = self._produced[value]
        elif is_input:
            start = home
            self._made.add(home)
        else:
            if value not in self._homes:
                self._homes[value] = home
                if self._pieces.is_weight[value]:
                    self.weights.append(home)
            start = self._homes[value]
        movement = None if start == slot else self._pieces.moves[start, slot]
        if movement is None:
            return start
        if slot not in self._made:
            self._made.add(slot)
            self._add(None, movement, (start,), (slot,))
        return slot

    def _add(
        self,
        piece: OperatorPiece | None,
        seconds: tuple[Duration, Duration],
        operands: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        makers = self._makers
        reads = tuple(dict.fromkeys([makers[slot] for slot in operands if slot in makers]))
        for slot in results:
            makers[slot] = len(self.steps)
        self.steps.append(_Step(piece, *seconds, operands, results, reads))
