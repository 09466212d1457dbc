"""Micro-batches on the groups of devices of all stages, which may be of several kinds.

Problem: on a machine with devices of several kinds, an operator takes other seconds in each stage,
and other strategies may be the fastest there.

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
from search.cost.cost import CostModel
from search.pipeline.micro import Chosen, Costs, MicroBatches, Vector

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class StageBatches:
    """The micro-batches of a model on the groups of a machine's stages."""

    machine: Machine
    """All devices."""
    each: tuple[MicroBatches, ...]
    """By stage; one object for all groups of a kind."""
    share: float = 1.0
    """The part of the memory of its devices that a stage may take."""

    @property
    def stages(self) -> int:
        return len(self.each)

    @property
    def slices(self) -> int:
        """The number of micro-batches."""
        return self.each[0].slices

    @property
    def size(self) -> int:
        """Devices of a stage."""
        return self.each[0].cost.machine.devices

    @property
    def limits(self) -> tuple[float, ...]:
        """Bytes that a stage may hold on each device, by stage."""
        return by_kind(self.each, self.limit)

    def limit(self, group: MicroBatches) -> float:
        """Bytes that a stage on such a group may hold on each device."""
        return self.share * group.cost.machine.memory_limit()

    def choose(self, choose: Callable[[MicroBatches], Chosen]) -> tuple[Chosen, ...]:
        """The strategies of all operators as on the group of each stage."""
        return by_kind(self.each, choose)

    def forget(self) -> None:
        """Let the tables of all groups go, which take much memory."""
        by_kind(self.each, MicroBatches.forget)


def group_costs(
    machine: Machine, stages: int, cost_on: Callable[[Machine], CostModel]
) -> tuple[CostModel, ...]:
    """The cost model of the group of each stage; one object for all groups of a kind."""
    size = machine.devices // stages
    if len(machine.kinds) == 1:
        return (cost_on(machine.with_devices(size)),) * stages
    costs: list[CostModel] = []
    for stage in range(stages):
        group = machine.part(stage * size, size)
        known = next((cost for cost in costs if cost.machine == group), None)
        costs.append(known or cost_on(group))
    return tuple(costs)


def alike(batches: MicroBatches, machine: Machine, stages: int) -> StageBatches:
    """Stages on groups of one kind."""
    return StageBatches(machine, (batches,) * stages)


def by_kind(given: Sequence[K], make: Callable[[K], V]) -> tuple[V, ...]:
    """What is made of each, once for equal ones."""
    made = {one: make(one) for one in dict.fromkeys(given)}
    return tuple(made[one] for one in given)


def least_of(choices: Sequence[Chosen]) -> Costs:
    """The least that each operator costs by some choices."""
    every = [*dict.fromkeys(choices)]
    if len(every) == 1:
        return every[0].costs
    return Costs(*(np.minimum.reduce(own) for own in zip(*map(_vectors, every), strict=True)))


def in_stages(choices: Sequence[Chosen], bounds: Sequence[int]) -> Chosen:
    """The strategy and the costs of each operator in its own stage. ``choices``: of all operators
    as on the group of each stage; ``bounds``: of chunks, which stages have in turn."""
    if len(set(choices)) == 1:
        return choices[0]
    own = [
        (choices[chunk % len(choices)], operator)
        for chunk, (begin, end) in enumerate(pairwise(bounds))
        for operator in range(begin, end)
    ]
    strategies = tuple(chosen.strategies[operator] for chosen, operator in own)
    costs = np.array([[vector[at] for vector in _vectors(chosen)] for chosen, at in own])
    return Chosen(strategies, Costs(*costs.T))


def _vectors(chosen: Chosen) -> tuple[Vector, ...]:
    """Of ``Costs``, in its order."""
    costs = chosen.costs
    return costs.micro, costs.once, costs.weights, costs.activations
