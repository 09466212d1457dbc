"""The simulation of a plan, and its timeline (``pcg.plan.timeline``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pcg.machine import Machine
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule
from pcg.placement.transfer import Transfer
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from pcg.plan.timeline import COMPUTE, TraceEvent, event, names, rows, write_timeline
from search.cost.cost import CostModel
from search.cost.efficiency import Speed
from search.cost.events import Event, Usage, busiest, events
from search.cost.memory import Memory, peak_memory
from search.cost.simulate import recomputing
from search.cost.tasks import FORWARD, PHASES, RECOMPUTE, SYNC, UPDATE, Task
from search.pipeline.built.price import StageGroups, fullest
from search.pipeline.stage_timeline import PipelineRun, pipeline_run

MOST_EVENTS = 500_000
"""The most events of devices in the timeline of a pipeline, about 100 MB."""
Events = Callable[[int], Iterator[Event]]


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan and its simulation."""

    plan: Plan
    machine: Machine
    steps: Schedule
    step_seconds: float
    phases: Mapping[str, float]
    """Seconds that add up to those of the step. Without a pipeline: until the last device has
    finished each phase. With one: how the stage that ends the step spends it."""
    memory: Memory
    busiest: Usage
    events: Events
    """The events of a device."""
    pipeline: PipelineRun | None = None


def simulate_plan(plan: Plan, machine: Machine, speed: Speed | None = None) -> SimulatedPlan:
    """Simulate a plan on the machine that it was made for. ``speed``: of the devices, by default by
    the efficiency curves that come with Unity."""
    cost = CostModel(machine, plan.training, speed)
    steps = plan.schedule()
    if plan.pipeline is not None:
        return _simulated_pipeline(plan, steps, cost, plan.pipeline)
    run = recomputing(steps, cost, plan.recompute)
    step = run.simulation
    return SimulatedPlan(
        plan,
        machine,
        steps,
        step.step_seconds,
        {
            "forward": step.forward,
            "backward": step.backward,
            "sync": step.sync,
            "update": step.update,
        },
        peak_memory(steps, plan.training, plan.recompute),
        busiest(run, range(machine.devices)),
        partial(events, run),
    )


@dataclass(frozen=True)
class StepPrice:
    """The price of a step of a plan: seconds, and bytes on the fullest device."""

    seconds: float
    memory: int


def price_plan(plan: Plan, cost: CostModel) -> StepPrice:
    """The step time and memory of a plan, as ``simulate_plan`` computes them, without a timeline.
    ``cost``: of the whole machine; it keeps prices from plan to plan."""
    steps = plan.schedule()
    if (pipeline := plan.pipeline) is not None:
        run = pipeline_run(steps, cost, pipeline, plan.recompute)
        held = fullest(steps, cost, run.groups, pipeline.schedule, plan.recompute)
        return StepPrice(run.step_seconds, held.total)
    step = recomputing(steps, cost, plan.recompute).simulation
    held = peak_memory(steps, plan.training, plan.recompute)
    return StepPrice(step.step_seconds, held.total)


def _simulated_pipeline(
    plan: Plan, steps: Schedule, cost: CostModel, pipeline: PipelineFile
) -> SimulatedPlan:
    run = pipeline_run(steps, cost, pipeline, plan.recompute)
    return SimulatedPlan(
        plan,
        cost.machine,
        steps,
        run.step_seconds,
        run.phases(run.last),
        fullest(steps, cost, run.groups, pipeline.schedule, plan.recompute),
        run.busiest(),
        run.events,
        run,
    )


def representatives(simulated: SimulatedPlan) -> tuple[int, ...]:
    """A few devices that stand for all: the first and the last, the busiest and the fullest, and
    the first of each stage."""
    devices = {0, simulated.machine.devices - 1, simulated.busiest.device, simulated.memory.device}
    if simulated.pipeline is not None:
        groups = simulated.pipeline.groups
        devices.update(range(0, groups.devices, groups.size))
    return tuple(sorted(devices))


def write_trace(simulated: SimulatedPlan, path: Path, devices: Sequence[int]) -> None:
    """Write the timeline of some devices to a file, completely or not at all.

    The timeline of a pipeline begins with its stages. If it would have more than ``MOST_EVENTS``
    events, only the first and the last micro-batches are shown: devices do the same for each.
    """
    nodes = {device: device // simulated.machine.devices_per_node for device in devices}
    stages: Iterator[TraceEvent] = iter(())
    shown = simulated.events
    if (pipeline := simulated.pipeline) is not None:
        stages = _stages(simulated, pipeline)
        shown = partial(pipeline.events, batches=pipeline.shown_batches(devices, MOST_EVENTS))
    write_timeline([*names(nodes), *stages, *_events(simulated, nodes, shown)], path)


def _events(
    simulated: SimulatedPlan, nodes: Mapping[int, int], shown: Events
) -> Iterator[TraceEvent]:
    label = Labels(simulated)
    for device, node in nodes.items():
        for shown_event in shown(device):
            task = shown_event.task
            place = device, node, task.stream
            name = label.of(task, device)
            if shown_event.batch is not None:
                name = f"{name}, micro-batch {shown_event.batch}"
            yield event(name, PHASES[task.phase], *place, shown_event.start, shown_event.seconds)


def _stages(simulated: SimulatedPlan, pipeline: PipelineRun) -> Iterator[TraceEvent]:
    """The passes of micro-batches, with a row for each stage. They are shown as a node after all
    others."""
    groups, machine = pipeline.groups, simulated.machine
    node, first = (machine.devices - 1) // machine.devices_per_node + 1, machine.devices
    spans = (stage_span(stage, groups) for stage in range(groups.stages))
    labels = {first + stage: f"stage {stage}: {span}" for stage, span in enumerate(spans)}
    yield from rows("stages", node, labels)
    for passed in pipeline.shown():
        if passed.seconds:
            kind = passed.kind
            name = kind if kind in ("before", "after") else f"{kind} {passed.batch}"
            if pipeline.groups.interleave > 1 and name != kind:
                name += f", chunk {passed.chunk}"
            place = first + passed.stage, node, COMPUTE
            yield event(name, kind, *place, passed.start, passed.seconds)


def stage_span(stage: int, groups: StageGroups) -> str:
    """The devices of a stage, such as ``devices 6-11``."""
    start, last = stage * groups.size, (stage + 1) * groups.size - 1
    return f"device {start}" if start == last else f"devices {start}-{last}"


class Labels:
    """Names of tasks: the operator or collective, and the tensor by its name in the plan's file."""

    def __init__(self, simulated: SimulatedPlan) -> None:
        printed = node_names(simulated.plan.graph)
        self._steps: list[str] = []
        self._sent: dict[int, tuple[Layout, Layout]] = {}
        """The layouts before and after each step that sends messages, by the number of the step."""
        for step in simulated.steps.steps:
            match step:
                case LeafAtHome():
                    continue
                case Compute():
                    self._steps.append(f"{step.node.name} {printed[step.node][0]}")
                case Reshard():
                    value = step.source.value
                    kind = collective(step.transfer)
                    if kind == SEND:
                        places = step.source.layout, step.target.layout
                        self._sent[len(self._steps)] = places
                    self._steps.append(f"{kind} {printed[value.node][value.port]}")
        weights = gradients(simulated.steps).weights
        self._weights = [printed[node][0] for node in weights]

    def of(self, task: Task, device: int) -> str:
        """The name of a task on a device."""
        if task.phase == SYNC:
            return f"all_reduce gradient of {self._weights[task.what]}"
        if task.phase == UPDATE:
            return f"update {self._weights[task.what]}"
        again = " again" if task.phase == RECOMPUTE else ""
        name = self._steps[task.what]
        if task.what in self._sent:
            source, target = self._sent[task.what]
            sender = source if task.phase in (FORWARD, RECOMPUTE) else target
            if device not in sender.devices:
                name = name.replace(SEND, RECEIVE, 1)
        return name + again


def collective(transfer: Transfer) -> str:
    """The name of the collective that a transfer is."""
    return {"local": "copy", "messages": SEND}.get(transfer.kind, transfer.kind)


SEND, RECEIVE = "send", "receive"
"""The same transfer is called a receive on a device that only receives."""
