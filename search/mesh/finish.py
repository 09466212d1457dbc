"""The plan that a planner returns, once it knows how it cuts a model."""

from __future__ import annotations

from pcg.graph import Graph, Node
from pcg.pipeline import PipelineFile
from pcg.plan import EstimatesFile, Plan, machine_record
from pcg.schedule import Schedule, schedule
from search.cost import CostModel, communication_elements
from search.mesh.cuts import Cuts
from search.mesh.engine import Cut, Engine
from search.simulate import simulate


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
) -> Plan:
    """A plan of a model on the machine of a cost model. ``steps``: the schedule of what is cut;
    ``seconds`` of a step, and ``memory`` bytes on the fullest device, as they were estimated."""
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
            one_device_seconds=_one_device_seconds(model, cost),
            communication_elements=communication_elements(steps),
            peak_memory_bytes=memory,
        ),
        cost.optimizer,
        recompute,
        pipeline,
    )


def _one_device_seconds(model: Graph, cost: CostModel) -> float:
    """Seconds of a step of the model as it is on one device."""
    one = cost.machine.with_devices(1)
    engine = Engine(CostModel(one, cost.dtype, cost.optimizer, cost.speed), Cuts(()))
    whole = engine.cut(engine.choose(model))
    return simulate(schedule(whole.graph, whole.views), engine.cost).step_seconds
