"""The backward pass of a schedule: the steps that gradients pass through, and trained weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pcg.graph.graph import Node
from pcg.placement.schedule import Compute, LeafAtHome, Schedule, Slot, Step
from pcg.readings.differentiated import differentiated
from pcg.readings.work import needing_gradients


@dataclass(frozen=True)
class Gradients:
    """The gradients that back-propagation through a schedule computes."""

    steps: tuple[frozenset[int] | None, ...]
    """For each step: None if no gradient passes through it, else the operands of a computation
    that need a gradient."""
    weights: tuple[Node, ...]
    """The weights that get a gradient."""
    joining: int | None
    """The step that only assembles the loss, if there is one. Nothing moves back there, since the
    gradient of every part of the loss is 1."""
    parts: Mapping[Slot, int]
    """The number of gradients of a tensor that its readers send back, to be added up."""
    slots: frozenset[Slot]
    """The tensors that have a gradient, on a path from a weight to the loss."""


@lru_cache(maxsize=8)
def gradients(schedule: Schedule) -> Gradients:
    """Find the steps that gradients pass through, on the paths from weights to the loss.

    The loss is the first output if that is a number. A part of a model has no loss, so gradients
    enter at all its outputs.
    """
    wanted = needing_gradients((_node(step), _sources(step)) for step in schedule.steps)
    first = schedule.outputs[0]
    live: set[Slot] = set(schedule.outputs if first.value.type.rank else (first,))
    passed: list[frozenset[int] | None] = []
    weights: list[Node] = []
    read: set[Slot] = set()
    parts: Counter[Slot] = Counter()
    joining: int | None = None
    for number in range(len(schedule.steps) - 1, -1, -1):
        step = schedule.steps[number]
        needs: frozenset[int] | None = None
        if isinstance(step, LeafAtHome):
            if step.slot in live and step.slot.value.node.is_weight:
                weights.append(step.slot.value.node)
        elif _node(step) in wanted and not live.isdisjoint(step.results):
            live.update(step.operands)
            if isinstance(step, Compute):
                nodes = enumerate(slot.value.node for slot in step.operands)
                needs = frozenset(i for i, node in nodes if node in wanted)
                parts.update(step.operands[i] for i in needs & differentiated(step.node))
            else:
                needs = frozenset()
                parts[step.source] += 1
                if step.target == first and not first.value.type.rank and first not in read:
                    joining = number
            read.update(step.operands)
        passed.append(needs)
    slots = frozenset(slot for slot in live if slot.value.node in wanted)
    steps, trained = tuple(reversed(passed)), tuple(reversed(weights))
    return Gradients(steps, trained, joining, parts, slots)


def _node(step: Step) -> Node:
    """Return the operator or leaf whose outputs a step makes or moves."""
    return step.node if isinstance(step, Compute) else step.results[0].value.node


def _sources(step: Step) -> list[Node]:
    """The nodes whose values gradients of a step go back to, if they need some."""
    if not isinstance(step, Compute):
        return []
    return [step.operands[at].value.node for at in sorted(differentiated(step.node))]
