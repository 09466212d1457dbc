"""Chains of pointwise operators that are worth recomputing, since they take next to no time."""

from __future__ import annotations

from collections.abc import Collection

from pcg.graph.components import components
from pcg.graph.graph import Node
from pcg.placement.saved import SavedTensors, saved_tensors
from pcg.placement.schedule import Compute, Schedule, Slot
from pcg.readings.saved import is_pointwise

LONGEST = 8
"""The most consecutive operators that are recomputed from tensors that are held."""


def worth_recomputing(schedule: Schedule, held: Collection[Node] = ()) -> frozenset[Node]:
    """The pointwise operators whose results take more memory than the tensors from which they can
    be recomputed. None of those in ``held``.

    Pointwise operators that read each other, such as the steps of a norm, form a chain. A chain is
    recomputed as a whole or not at all, and has at most ``LONGEST`` operators in a row.
    """
    return _Chains(saved_tensors(schedule), held).worth()


class _Chains:
    """The chains of pointwise operators of a schedule."""

    def __init__(self, tensors: SavedTensors, kept: Collection[Node]) -> None:
        self.tensors, self.steps, self.kept = tensors, tensors.steps, kept

    def worth(self) -> frozenset[Node]:
        depth: dict[int, int] = {}
        beside: dict[int, list[int]] = {}
        for i, step in enumerate(self.steps):
            if not isinstance(step, Compute) or not is_pointwise(step.node):
                continue
            if step.node in self.kept:
                continue
            if all(slot in self.tensors.roots for slot in step.results):
                continue
            before = [made for slot in step.operands if (made := self._made(slot)) in depth]
            if max((depth[made] for made in before), default=0) < LONGEST:
                depth[i] = 1 + max((depth[made] for made in before), default=0)
                beside[i] = before
                for made in before:
                    beside[made].append(i)
        chains = components(list(depth), beside.__getitem__)
        leader = {i: chain[0] for chain in chains for i in chain}
        read = {slot for slots in self.tensors.reads for slot in slots}
        gain: dict[int, int] = dict.fromkeys(leader.values(), 0)
        wanted = {i for slot in read if (i := self.tensors.maker[slot]) in depth}
        for i in sorted(depth, reverse=True):
            if i in wanted:
                wanted.update(
                    made for slot in self.steps[i].operands if (made := self._made(slot)) in depth
                )
        held: set[Slot] = set()
        for i in wanted:
            gain[leader[i]] += sum(self.tensors.size(s) for s in self._results_of(i) if s in read)
            for slot in map(self.tensors.root, self.steps[i].operands):
                if self.tensors.maker[slot] not in depth and slot not in read and slot not in held:
                    held.add(slot)
                    gain[leader[i]] -= self.tensors.size(slot)
        return frozenset(self._node(i) for i in wanted if gain[leader[i]] > 0)

    def _made(self, slot: Slot) -> int:
        return self.tensors.maker[self.tensors.root(slot)]

    def _results_of(self, i: int) -> list[Slot]:
        step = self.steps[i]
        return (
            [self.tensors.root(slot) for slot in step.results] if isinstance(step, Compute) else []
        )

    def _node(self, i: int) -> Node:
        step = self.steps[i]
        assert isinstance(step, Compute)
        return step.node
