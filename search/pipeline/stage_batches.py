"""Micro-batches on the groups of devices of all stages, which may be of several kinds.

Problem: on a machine with devices of several kinds, the time and the fastest strategy of an
operator depend on the stage.

Method: groups are of equally many devices in a row and straddle no units, so that strategies of one
group are strategies of each. They are chosen once for each kind of group, as if all operators ran
on it. A stage runs its operators by the strategies of its own group.

Complexity: that of ``micro`` for each kind of group. A heuristic where there are several: a choice
for all operators need not be the best one for the operators of one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from pcg.machine import Machine
from pcg.machine_part import machine_part
from search.cost.cost import CostModel
from search.pipeline.micro import GroupStrategies, MicroBatchCosts, MicroBatches, Vector

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class StageBatches:
    """The micro-batches of a model on the group of devices of each stage."""

    machine: Machine
    """The machine with all devices."""
    each: tuple[MicroBatches, ...]
    """The micro-batches on each group, one object for all groups of a kind."""
    share: float = 1.0
    """The fraction of the memory of its devices that a stage may take."""

    @property
    def stages(self) -> int:
        return len(self.each)

    @property
    def slices(self) -> int:
        """The number of micro-batches."""
        return self.each[0].slices

    @property
    def size(self) -> int:
        """The number of devices of a stage."""
        return self.each[0].cost.machine.devices

    @property
    def limits(self) -> tuple[float, ...]:
        """The available bytes on a device of each stage."""
        return by_kind(self.each, self.limit)

    def limit(self, group: MicroBatches) -> float:
        """The available bytes on a device of a group."""
        return self.share * group.cost.machine.memory_limit()

    def choose(
        self, choose: Callable[[MicroBatches], GroupStrategies]
    ) -> tuple[GroupStrategies, ...]:
        """The strategies of all operators, chosen for the group of each stage."""
        return by_kind(self.each, choose)

    def forget(self) -> None:
        """Release the tables of all groups, which take much memory."""
        by_kind(self.each, MicroBatches.forget)


def group_costs(
    machine: Machine, stages: int, cost_on: Callable[[Machine], CostModel]
) -> tuple[CostModel, ...]:
    """The cost model of each stage's group, one object for all groups of a kind."""
    size = machine.devices // stages
    if len(machine.kinds) == 1:
        return (cost_on(machine.with_devices(size)),) * stages
    costs: list[CostModel] = []
    for stage in range(stages):
        group = machine_part(machine, stage * size, size)
        known = next((cost for cost in costs if cost.machine == group), None)
        costs.append(known or cost_on(group))
    return tuple(costs)


def alike(batches: MicroBatches, machine: Machine, stages: int) -> StageBatches:
    """The micro-batches of a pipeline whose groups are all of one kind."""
    return StageBatches(machine, (batches,) * stages)


def by_kind(given: Sequence[K], make: Callable[[K], V]) -> tuple[V, ...]:
    """The results of a function for each item. Equal items share one result."""
    made = {one: make(one) for one in dict.fromkeys(given)}
    return tuple(made[one] for one in given)


def least_of(choices: Sequence[GroupStrategies]) -> MicroBatchCosts:
    """The least cost of each operator among several strategies."""
    every = [*dict.fromkeys(choices)]
    if len(every) == 1:
        return every[0].costs
    return MicroBatchCosts(
        *(np.minimum.reduce(own) for own in zip(*map(_vectors, every), strict=True))
    )


def in_stages(choices: Sequence[GroupStrategies], bounds: Sequence[int]) -> GroupStrategies:
    """The strategy and the costs of each operator on the group of its stage. ``choices``: those of
    all operators, by stage; ``bounds``: of chunks, which are assigned to stages in turn."""
    if len(set(choices)) == 1:
        return choices[0]
    own = [
        (choices[chunk % len(choices)], operator)
        for chunk, (begin, end) in enumerate(pairwise(bounds))
        for operator in range(begin, end)
    ]
    strategies = tuple(chosen.strategies[operator] for chosen, operator in own)
    costs = np.array([[vector[at] for vector in _vectors(chosen)] for chosen, at in own])
    return GroupStrategies(strategies, MicroBatchCosts(*costs.T))


def _vectors(chosen: GroupStrategies) -> tuple[Vector, ...]:
    """The fields of its costs, in order."""
    costs = chosen.costs
    return costs.micro, costs.once, costs.weights, costs.activations
