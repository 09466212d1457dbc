"""The simulation of a plan, and its timeline (``pcg.timeline``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pcg.errors import InputError
from pcg.machine import Machine
from pcg.plan import Plan
from pcg.schedule import Compute, Load, Move, Schedule, schedule
from pcg.text import node_names
from pcg.timeline import Entry, event, names, write_timeline
from pcg.transfer import Transfer
from search.cost import CostModel, gradients
from search.efficiency import Speed
from search.memory import Memory, peak_memory
from search.program import AGAIN, PHASES, SYNC, UPDATE, Task
from search.simulate import Run, recomputing
from search.timeline import Usage, busiest, events


@dataclass(frozen=True)
class Simulated:
    """A plan as it was simulated."""

    plan: Plan
    machine: Machine
    steps: Schedule
    run: Run
    memory: Memory
    busiest: Usage


def simulate_plan(plan: Plan, machine: Machine, speed: Speed | None = None) -> Simulated:
    """Simulate a plan on the machine that it was made for. ``speed``: of its devices, by default as
    the curves that come with Unity say. Raises InputError for a pipeline."""
    if plan.pipeline is not None:
        problem = "the timeline of a pipeline is not simulated yet, only its step"
        raise InputError("decisions.pipeline", problem)
    cost = CostModel(machine, optimizer=plan.optimizer, speed=speed)
    steps = schedule(plan.graph, plan.views)
    run = recomputing(steps, cost, plan.recompute)
    memory = peak_memory(steps, cost.itemsize, plan.optimizer, plan.recompute)
    return Simulated(plan, machine, steps, run, memory, busiest(run, range(machine.devices)))


def representatives(simulated: Simulated) -> tuple[int, ...]:
    """A few devices that stand for all: the first and last, those that are busiest and fullest."""
    found = {0, simulated.machine.devices - 1, simulated.busiest.device, simulated.memory.device}
    return tuple(sorted(found))


def write_trace(simulated: Simulated, path: Path, devices: Sequence[int]) -> None:
    """Write the timeline of some devices, whole or not at all."""
    nodes = {device: device // simulated.machine.devices_per_node for device in devices}
    write_timeline([*names(nodes), *_events(simulated, nodes)], path)


def _events(simulated: Simulated, nodes: Mapping[int, int]) -> Iterator[Entry]:
    label = _Labels(simulated)
    for device, node in nodes.items():
        for found in events(simulated.run, device):
            task = found.task
            place = device, node, task.stream
            yield event(label.of(task), PHASES[task.phase], *place, found.start, found.seconds)


class _Labels:
    """Names of tasks: the operator or collective, and the tensor as the plan's file calls it."""

    def __init__(self, simulated: Simulated) -> None:
        printed = node_names(simulated.plan.graph)
        self._steps: list[str] = []
        for step in simulated.steps.steps:
            match step:
                case Load():
                    continue
                case Compute():
                    self._steps.append(f"{step.node.name} {printed[step.node][0]}")
                case Move():
                    value = step.source.value
                    kind = collective(step.transfer)
                    self._steps.append(f"{kind} {printed[value.node][value.port]}")
        weights = gradients(simulated.steps).weights
        self._weights = [printed[node][0] for node in weights]

    def of(self, task: Task) -> str:
        if task.phase == SYNC:
            return f"all_reduce gradient of {self._weights[task.what]}"
        if task.phase == UPDATE:
            return f"update {self._weights[task.what]}"
        again = " again" if task.phase == AGAIN else ""
        return self._steps[task.what] + again


def collective(transfer: Transfer) -> str:
    """The name of what a transfer amounts to."""
    if transfer.kind != "messages":
        return _KINDS[transfer.kind]
    if transfer.gathers is not None:
        return "all_gather"
    return "reduce_scatter" if transfer.scatters is not None else "send"


_KINDS: Mapping[str, str] = {"none": "none", "local": "copy", "all_reduce": "all_reduce"}
