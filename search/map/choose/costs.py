"""The costs of every strategy of an operator by itself, in one table: seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.device import Device
from pcg.graph.graph import Node
from pcg.readings.kind import work_of
from pcg.readings.work import work
from search.cost.cost import CostModel
from search.map.choose.duties import Duties
from search.map.space.axes import Mesh
from search.map.space.strategies import IDLE, REPLICATE, Placements, Space

Vector = NDArray[np.float64]


PASSING = 0.25
"""The fraction of an operator's operands and outputs that counts as memory, though they are held
for a short time only. When memory is fullest, few operators hold such tensors. Which ones is
unknown while bytes add up operator by operator."""


_Used = Sequence[tuple[Device, NDArray[np.bool_]]]
"""The kinds of devices, each with a mask of the strategies that use devices of this kind."""


@dataclass(frozen=True, eq=False)
class OperatorCosts:
    """The costs of each strategy: ``seconds`` of a step without the exchange of weights' gradients,
    the seconds of each of these ``exchanges``, and bytes of ``memory`` on a device."""

    seconds: Vector
    exchanges: tuple[Vector, ...]
    memory: Vector


def operator_costs(
    node: Node, space: Space, duties: Duties, cost: CostModel, mesh: Mesh
) -> OperatorCosts:
    """The costs of an operator's strategies: forward and backward computation, exchange and update
    of its weights, and the bytes that it holds for these."""
    degrees = space.degrees(mesh.primes).astype(float)
    types = [value.type for value in node.inputs]
    operands = [
        prod(t.block) / _cut(degrees, [a.operands[i] is not None for a in space.axes])
        for i, t in enumerate(types)
    ]
    outputs = [
        prod(t.block) / _cut(degrees, [a.outputs[i] is not None for a in space.axes])
        for i, t in enumerate(node.types)
    ]
    elements = sum([*operands, *outputs], np.zeros(len(space)))
    kinds = _kinds_used(space, mesh)
    seconds = _computation(node, duties, cost, degrees.prod(axis=1), elements, kinds)
    for block, count in zip(outputs, duties.parts, strict=True):
        if count > 1:
            seconds += (count - 1) * _slowest(kinds, lambda d, b=block: _added(cost, d, b))
    exchanges: list[Vector] = []
    # An operand counts in the layout in which it is read, though a part of it may lie there
    # already.
    saved = duties.saved
    held = [outputs[port] for port in saved.outputs] + [operands[i] for i in saved.operands]
    passing = [*outputs, *(b for i, b in enumerate(operands) if i not in duties.weights)]
    memory = (sum(held, np.zeros(len(space))) + PASSING * sum(passing)) * cost.itemsize
    training = cost.training
    for position in duties.weights:
        block = operands[position] * training.formats.wide
        exchanges.append(_exchange(space.operand(position), block, mesh))
        bytes_moved = operands[position] * training.update_bytes
        seconds += _slowest(kinds, lambda device, b=bytes_moved: _update(cost, device, b))
        memory = memory + operands[position] * training.held_bytes
    return OperatorCosts(seconds, tuple(exchanges), memory)


def _computation(
    node: Node,
    duties: Duties,
    cost: CostModel,
    tasks: Vector,
    elements: Vector,
    kinds: _Used,
) -> Vector:
    """Seconds of the forward and the backward computation. A task has an equal part of the
    operations. Of the bytes it has the same fraction as of the elements of all operands and
    outputs."""
    done, kind = work(node, duties.needs, *cost.itemsizes, duties.use), work_of(node)
    whole = sum(prod(t.block) for t in (*(value.type for value in node.inputs), *node.types))
    part = elements / max(whole, 1)

    def seconds(device: Device) -> Vector:
        forward = done.flops_forward / tasks, done.bytes_forward * part, done.kernels_forward
        backward = done.flops_backward / tasks, done.bytes_backward * part, done.kernels_backward
        slope = done.flops_slope / tasks, done.bytes_slope / tasks, done.kernels_slope
        return (
            cost.kernel_seconds(kind, device, *forward)
            + cost.kernel_seconds(kind, device, *backward)
            + cost.kernel_seconds("pointwise", device, *slope)
        )

    return _slowest(kinds, seconds)


def _added(cost: CostModel, device: Device, block: Vector) -> Vector:
    """Seconds of adding one gradient to another. ``block``: its elements."""
    moved = 3 * block * cost.itemsize
    return cost.kernel_seconds("pointwise", device, np.zeros(len(moved)), moved, 1)


def _update(cost: CostModel, device: Device, moved: Vector) -> Vector:
    """Seconds of an optimizer's step. ``moved``: the bytes that it reads and writes."""
    return cost.kernel_seconds("update", device, np.zeros(len(moved)), moved, 1)


def _kinds_used(space: Space, mesh: Mesh) -> _Used:
    machine = mesh.machine
    if len(machine.kinds) == 1:
        return [(machine.device, np.ones(len(space), bool))]
    busy = ((space.strategies != IDLE) * (1 << np.arange(len(mesh)))).sum(axis=1)
    masks, inverse = np.unique(busy, return_inverse=True)
    used = [machine.kinds_of(mesh.group(int(mask))) for mask in masks]
    return [
        (kind, np.array([any(k is kind for k in kinds) for kinds in used])[inverse.ravel()])
        for kind in machine.kinds
    ]


def _slowest(used: _Used, seconds: Callable[[Device], Vector]) -> Vector:
    """For each strategy, the seconds on its slowest device."""
    return np.max([np.where(uses, seconds(kind), 0.0) for kind, uses in used], axis=0)


def _cut(degrees: Vector, concerned: Sequence[bool]) -> Vector:
    return np.where(np.array(concerned, bool), degrees, 1.0).prod(axis=1)


def _exchange(placements: Placements, block: Vector, mesh: Mesh) -> Vector:
    """Seconds of the all_reduce of a gradient among the copies of its weight. ``block``: bytes."""
    mask = ((placements == REPLICATE) * (1 << np.arange(len(mesh)))).sum(axis=1)
    return mesh.gradient_seconds(mask, block)
