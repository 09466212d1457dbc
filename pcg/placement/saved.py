"""The tensors of a schedule: the step that makes each, the views among them, and the tensors that
each step's backward pass reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TypeVar

from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.readings.saved import Reads, back_reads, view_of

Key = TypeVar("Key", bound=Hashable)


def choose_reads(
    options: Sequence[Sequence[frozenset[Key]]], size: Callable[[Key], int]
) -> list[frozenset[Key]]:
    """Choose, for each step, what its backward pass reads, among the ways that are possible.

    Steps are handled from the last to the first. Each takes the way that adds the least to the
    tensors that are held anyway.
    """
    held = {key for ways in options if len(ways) == 1 for key in ways[0]}
    reads: list[frozenset[Key]] = [frozenset()] * len(options)
    for i in range(len(options) - 1, -1, -1):
        ways = options[i]
        if ways:
            reads[i] = min(ways, key=lambda way: sum(size(key) for key in way if key not in held))
            held |= reads[i]
    return reads


def keys_read(reads: Reads, operands: Sequence[Key], outputs: Sequence[Key]) -> frozenset[Key]:
    """Return the keys at the positions that are read."""
    return frozenset([*(operands[i] for i in reads.operands), *(outputs[i] for i in reads.outputs)])


@dataclass
class SavedTensors:
    """The tensors of a schedule: which step makes each, and which the backward pass reads."""

    schedule: Schedule
    roots: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])
    """For each view, the tensor of which it is a view."""
    same: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])
    """The views that show each element exactly once. Their gradients are the same too."""
    maker: dict[Slot, int] = field(default_factory=dict[Slot, int])
    """For each tensor, the number of the step that makes it."""
    static: set[Slot] = field(default_factory=set[Slot])
    """Weights at home and input data, which are there throughout the step."""

    def __post_init__(self) -> None:
        self.steps = self.schedule.steps
        self.needs = gradients(self.schedule).steps
        """The operands of each step that need gradients, as in ``Gradients.steps``."""
        self.end = 2 * len(self.steps)
        """The time of the update. Step i goes forward at i and back at ``end - 1 - i``."""
        ways: list[list[frozenset[Slot]]] = []
        for i, step in enumerate(self.steps):
            match step:
                case LeafAtHome(slot):
                    self.maker[slot] = i
                    if slot.value.node.leaf.kind != "tensor":
                        self.static.add(slot)
                    ways.append([])
                case Reshard(source, target):
                    if self.root(source) in self.static and _is_slice(step):
                        self.roots[target] = self.root(source)
                    self.maker[target] = i
                    ways.append([])
                case Compute():
                    self._results(i, step)
                    ways.append(self._ways(step, self.needs[i]))
        self.reads = choose_reads(ways, self.size)
        """For each step, the tensors that its backward pass reads."""

    def _results(self, i: int, step: Compute) -> None:
        for port, slot in enumerate(step.results):
            of = view_of(step.node, port)
            if of is None:
                self.maker[slot] = i
                continue
            shown = step.operands[of]
            self.roots[slot] = self.root(shown)
            if prod(slot.layout.type.held) == prod(shown.layout.type.held):
                self.same[slot] = self.same.get(shown, shown)
            else:
                self.maker[slot] = i

    def _ways(self, step: Compute, needs: frozenset[int] | None) -> list[frozenset[Slot]]:
        if needs is None:
            return []
        operands = [self.root(slot) for slot in step.operands]
        results = [self.root(slot) for slot in step.results]
        return [keys_read(reads, operands, results) for reads in back_reads(step.node, needs)]

    def root(self, slot: Slot) -> Slot:
        """Return the tensor of which a slot is a view, or the slot itself."""
        return self.roots.get(slot, slot)

    def made(self, number: int) -> list[Slot]:
        """Return the tensors that a step makes, without views."""
        return [slot for slot in self.steps[number].results if slot not in self.roots]

    def read(self, number: int) -> list[Slot]:
        """Return the tensors that a step reads forward."""
        return [self.root(slot) for slot in self.steps[number].operands]

    def size(self, slot: Slot) -> int:
        """Return the number of elements of a tensor on a device, 0 if it is there throughout."""
        return 0 if slot in self.static else prod(slot.layout.type.held)


def _is_slice(step: Reshard) -> bool:
    """Whether each device takes its part of a whole tensor that it has, which is a view."""
    whole, part = step.source.layout, step.target.layout
    if part.type.degrees.halos or part.type.degrees.partials > 1:
        return False
    is_complete = prod(whole.type.held) == whole.type.elements
    return is_complete and whole.by_device.keys() >= part.by_device.keys()


saved_tensors = lru_cache(maxsize=2)(SavedTensors)
"""The saved tensors of a schedule, cached for queries with different recomputed operators."""
