"""The memory of operators and stages of a pipeline, before one is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pcg.plan.pipeline import ScheduleKind
from search.pipeline.balance import ChunkMemory, OperatorBytes, in_flight
from search.pipeline.clock import WEIGHT_VERSIONS
from search.pipeline.micro import MicroBatchCosts, MicroBatches, Vector
from search.pipeline.stage_batches import StageBatches, by_kind


@dataclass(frozen=True)
class Sparing:
    """The assumed effect of recomputation, before it is chosen. ``left``: the fraction of
    activations that is left; ``time``: the factor on the time of a micro-batch; ``parts``: the
    number of parts in which the weights of a stage are stored and gathered again."""

    left: float = 1.0
    time: float = 1.0
    parts: int = 1


AGAIN = 1 / 3
"""The time of a forward pass, as a fraction of a forward and a backward pass."""
PLAIN = Sparing()


def operator_bytes(
    batches: MicroBatches, costs: MicroBatchCosts, kind: ScheduleKind, sparing: Sparing = PLAIN
) -> OperatorBytes:
    """Bytes of weights, and of the tensors that are saved of one micro-batch. ``costs``: those of
    all operators with one strategy each, or of one operator by its strategies."""
    each = held_for_weight(batches, kind, sparing)
    return OperatorBytes(costs.weights * each, costs.activations * sparing.left)


def held_for_weight(batches: MicroBatches, kind: ScheduleKind, sparing: Sparing = PLAIN) -> float:
    """The bytes that a stage holds for each byte of a weight in the format of products: with its
    other formats, its gradient and its optimizer states."""
    training = batches.cost.training
    older = (WEIGHT_VERSIONS[kind] - 1) * training.parameter_bytes
    return (training.held_bytes + older) / batches.cost.itemsize / sparing.parts


def may_fit(groups: StageBatches, kind: ScheduleKind, sparing: Sparing = PLAIN) -> bool:
    """Whether stages fit if each operator has the strategy that takes least memory, whatever its
    time. If not, they fit with no strategies."""
    operators = by_kind(groups.each, partial(_least_bytes, kind=kind, sparing=sparing))
    flights = in_flight(groups.stages, groups.slices)
    return ChunkMemory(operators, flights, groups.limits).bands is not None


@dataclass(frozen=True, eq=False)
class _LeastBytes(OperatorBytes):
    """A lower bound of the memory of consecutive operators. ``strategies``: the bytes of each
    operator by its strategies, one object for operators that are alike."""

    strategies: Sequence[OperatorBytes]

    def each(self, flying: float) -> Vector:
        least = {
            id(own): float(np.min(own.each(flying)))
            for own in {id(one): one for one in self.strategies}.values()
        }
        return np.array([least[id(own)] for own in self.strategies])


def _least_bytes(batches: MicroBatches, kind: ScheduleKind, sparing: Sparing) -> _LeastBytes:
    costs = batches.tables()[0]
    alike = {id(own): own for own in costs}
    known = {key: operator_bytes(batches, own, kind, sparing) for key, own in alike.items()}
    none = np.zeros(len(costs))
    return _LeastBytes(none, none, [known[id(own)] for own in costs])
