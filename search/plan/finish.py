"""The plan that a planner returns, with its estimates; and the answer that no plan fits."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.schedule import Schedule
from pcg.placement.view import MachineView
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan, machine_record
from pcg.plan.schema import EstimatesFile
from search.cost.cost import CostModel, communication_elements
from search.cost.planned import Stop
from search.cost.simulate import price
from search.cost.unroll import NotAlike, unrolled
from search.map.building import Builder, Cut
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.split.blocks import Folded, repeated


def finished(
    name: str,
    model: Graph,
    cut: Cut,
    steps: Schedule,
    cost: CostModel,
    library_hash: str,
    *,
    seconds: float,
    memory: int,
    recompute: frozenset[Node] = frozenset(),
    pipeline: PipelineFile | None = None,
    short: Folded | None = None,
) -> Plan:
    """The plan of a model on the machine of a cost model. ``steps``: the schedule of the cut graph;
    ``seconds``: the estimated time of a step; ``memory``: the estimated bytes on the fullest
    device; ``short``: the model with fewer blocks, if the plan was found with it."""
    return Plan(
        name,
        model,
        cut.graph,
        cut.views,
        machine_record(cost.machine),
        library_hash,
        cut.steps,
        EstimatesFile(
            step_seconds=seconds,
            one_device_seconds=one_device_seconds(model, cost, short),
            communication_elements=communication_elements(steps),
            peak_memory_bytes=memory,
        ),
        cost.training,
        recompute,
        pipeline,
        order=cut.order,
    )


def one_device_seconds(model: Graph, cost: CostModel, short: Folded | None = None) -> float:
    """Seconds of a step of the unchanged model on one device. ``short``: the model with fewer
    blocks, which takes less time to price."""
    try:
        return _alone(short or Folded(model, 0), cost)
    except NotAlike:
        return _alone(Folded(model, 0), cost)


def _alone(model: Folded, cost: CostModel) -> float:
    one = cost.machine.with_devices(1)
    alone = CostModel(one, cost.training, cost.speed)
    chooser = Chooser.on(alone, Cuts(), more=model.more)
    whole = Builder(chooser.spaces).cut(chooser.choose(model.graph))
    steps = whole.schedule()
    done = unrolled(steps, alone, repeated(model.graph, model.more)).program
    return price(done, one.devices).step_seconds


def memory_limit(machine: Machine, views: Mapping[Node, MachineView]) -> int:
    """The bytes that are available on each device of a plan."""
    if len(machine.kinds) == 1:
        return machine.memory_limit()
    return machine.memory_limit({device for view in views.values() for device in view.devices})


def does_not_fit(
    name: str, machine: Machine, over: int, stop: Stop = "exhausted"
) -> NegativeAnswer:
    """The answer that no plan of a model fits. ``over``: the missing bytes of the plan that takes
    least memory; ``stop``: why the search ended."""
    early = "" if stop == "exhausted" else f" (stopped: {stop})"
    return NegativeAnswer(
        f"{name} does not fit {machine.name}: the plan that takes least memory misses by"
        f" {over / 1e9:.2f} GB a device{early}"
    )
