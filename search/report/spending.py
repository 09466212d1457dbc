"""The cost of each operator of a plan: the computation and communication of one of its devices.

A resharding is charged to the first operator that reads its result. The exchange and update of a
weight are charged to the first operator that reads the weight. A resharding of an output of the
graph is charged to the operator that makes the output. So each task of a step is charged to one
operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from pcg.graph.graph import Node
from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from search.cost.events import Event, overlaps
from search.cost.tasks import COMMUNICATE, COMPUTE, FORWARD, RECOMPUTE, SYNC, UPDATE
from search.report.trace import SimulatedPlan

ROUNDING = 1e-9
"""The fraction of an event below which exposed seconds count as a rounding error."""


@dataclass
class OperatorSeconds:
    """Seconds of a step that a device spends on an operator. Of communication, ``exposed`` is the
    part during which the device computes nothing."""

    forward: float = 0.0
    backward: float = 0.0
    recomputation: float = 0.0
    resharding: float = 0.0
    resharding_exposed: float = 0.0
    exchange: float = 0.0
    """Seconds of the exchange of its weights' gradients."""
    exchange_exposed: float = 0.0
    update: float = 0.0

    @property
    def computing(self) -> float:
        """All seconds of computation."""
        return self.forward + self.backward + self.recomputation + self.update

    @property
    def total(self) -> float:
        """Seconds during which the device is busy with the operator, without hidden
        communication."""
        return self.computing + self.resharding_exposed + self.exchange_exposed

    def record(self) -> dict[str, float]:
        """The seconds by field name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


def representative(simulated: SimulatedPlan, node: Node) -> int:
    """The device that stands for an operator: the busiest of all devices if it takes part in the
    operator, else the first that does."""
    devices = simulated.plan.views[node].devices
    busiest = simulated.busiest.device
    return busiest if busiest in devices else min(devices)


def spent(simulated: SimulatedPlan) -> Mapping[Node, OperatorSeconds]:
    """The cost of each operator of a plan, on the device that stands for it."""
    plan = simulated.plan
    costs = {node: OperatorSeconds() for node in plan.graph.computing}
    by_device: dict[int, list[Node]] = {}
    for node in costs:
        by_device.setdefault(representative(simulated, node), []).append(node)
    steps, weights = charged(simulated.steps)
    for device, nodes in by_device.items():
        here = set(nodes)
        for event, exposed in timed(simulated.events(device)):
            of = weights if event.task.phase in (SYNC, UPDATE) else steps
            node = of[event.task.what]
            if node in here:
                _charge(costs[node], event, exposed)
    return costs


def timed(events: Iterator[Event]) -> Iterator[tuple[Event, float]]:
    """The events of a device, each with the seconds of it during which the device computes
    nothing."""
    listed = sorted(events, key=lambda event: event.start)
    computing = [event for event in listed if event.task.stream == COMPUTE]
    sent = [event for event in listed if event.task.stream == COMMUNICATE]
    yield from ((event, 0.0) for event in computing)
    for event, hidden in zip(sent, overlaps(sent, computing), strict=True):
        exposed = event.seconds - hidden
        yield event, exposed if exposed > ROUNDING * event.seconds else 0.0


def _charge(cost: OperatorSeconds, event: Event, exposed: float) -> None:
    task = event.task
    if task.phase == SYNC:
        cost.exchange += event.seconds
        cost.exchange_exposed += exposed
    elif task.phase == UPDATE:
        cost.update += event.seconds
    elif task.stream == COMMUNICATE or task.passes:
        cost.resharding += event.seconds
        cost.resharding_exposed += exposed if task.stream == COMMUNICATE else event.seconds
    elif task.phase == RECOMPUTE:
        cost.recomputation += event.seconds
    elif task.phase == FORWARD:
        cost.forward += event.seconds
    else:
        cost.backward += event.seconds


def charged(steps: Schedule) -> tuple[Sequence[Node], Sequence[Node]]:
    """The operators that are charged, by number: for the steps of a schedule without its loads, and
    for the weights that it trains."""
    reader: dict[Slot, Node] = {}
    weights: dict[Node, Node] = {}
    for step in steps.steps:
        if not isinstance(step, Compute):
            continue
        for slot in step.operands:
            reader.setdefault(slot, step.node)
            weights.setdefault(slot.value.node, step.node)
    # A tensor that arrives in parts is gathered before it is read.
    gathered = {
        step.source: reader[step.target]
        for step in steps.steps
        if isinstance(step, Reshard) and step.target in reader
    }
    owners: list[Node] = []
    for step in steps.steps:
        match step:
            case LeafAtHome():
                continue
            case Compute():
                owners.append(step.node)
            case Reshard():
                target = step.target
                owners.append(reader.get(target) or gathered.get(target) or target.value.node)
    return owners, [weights[node] for node in gradients(steps).weights]
