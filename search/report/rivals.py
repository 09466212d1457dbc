"""The plans that a plan is compared with: the model on one device, and data parallelism.

Both are plans of the model's graph as it was captured, priced as all plans are
(``search.report.trace``). Data parallelism cuts every operator along the samples, over as many
devices as divide them. Operators that do not run over samples are computed by all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from pcg.errors import OperatorError
from pcg.graph.graph import Node
from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.types.local import Axis
from pcg.types.tensor import Degrees, ParallelTensor
from search.cost.cost import CostModel
from search.map.space.allow import batch_axes
from search.plan.finish import memory_limit
from search.report.replaced import OperatorPlacement, replaced
from search.report.trace import price_plan


@dataclass(frozen=True)
class Rival:
    """Another plan for the model: seconds of a step, and bytes on the fullest device, which exceed
    its memory by ``over``."""

    name: str
    seconds: float
    memory: int
    over: int = 0


def rivals(plan: Plan, cost: CostModel) -> Iterator[Rival]:
    """The plans to compare with that any model has. ``cost``: of the plan's machine."""
    alone = on_one_device(plan)
    others = (("data parallelism", data_parallel(alone, cost.machine.devices)),)
    for name, other in (*others, ("one device", alone)):
        if other is not None:
            price = price_plan(other, cost)
            over = max(price.memory - memory_limit(cost.machine, other.views), 0)
            yield Rival(name, price.seconds, price.memory, over)


def on_one_device(plan: Plan) -> Plan:
    """A plan of the model's graph on the first device."""
    graph = plan.model
    views = {node: MachineView.packed(0, grid(node)) for node in graph.operators}
    plain = replace(plan, recompute=frozenset(), pipeline=None, order=())
    return replace(plain, graph=graph, views=views)


def data_parallel(alone: Plan, devices: int) -> Plan | None:
    """The data-parallel plan, from the plan on one device: every operator is cut along the samples.
    None if that is impossible."""
    batch = batch_axes(alone.graph)
    changes: dict[Node, OperatorPlacement] = {}
    for node in alone.graph.operators:
        try:
            changes[node] = _cut(node, batch.get(node), devices)
        except OperatorError:
            return None
    return replaced(alone, changes)


def _cut(node: Node, name: str | None, devices: int) -> OperatorPlacement:
    """An operator cut along one index over as many devices as divide it. If these are not all, the
    others repeat the computation."""
    typing = node.operator_call.typing(tuple(value.rank for value in node.inputs))
    axis = next((axis for axis in typing.axes if axis.name == name), None)
    degree = 1 if axis is None else gcd(_length(node, axis), devices)
    shape = tuple(degree if own == axis else 1 for own in typing.axes)
    view = MachineView.packed(0, (*shape, 1, devices // degree))
    return OperatorPlacement(
        tuple(_operand(node, i, axis, degree) for i in range(len(node.inputs))), view
    )


def _length(node: Node, axis: Axis) -> int:
    operand, dim = axis.first_place
    return node.inputs[operand].type.shape[dim]


def _operand(node: Node, position: int, axis: Axis | None, degree: int) -> ParallelTensor:
    shape = node.inputs[position].type.shape
    dim = None if axis is None else axis.operands[position]
    dims = tuple(degree if place == dim else 1 for place in range(len(shape)))
    copies = degree if dim is None and axis is not None else 1
    tensor = ParallelTensor(shape, Degrees(dims, (1,) * len(shape), copies, 1))
    assert prod(dims) * copies in (1, degree)
    return tensor
