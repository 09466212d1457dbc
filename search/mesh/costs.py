"""What each strategy of an operator costs by itself, for all strategies at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.graph import Node
from pcg.infer import bind_sizes
from pcg.work import work
from search.cost import CostModel
from search.mesh.digits import Digits
from search.mesh.strategies import COPY, Codes, Space

Vector = NDArray[np.float64]

STATES = 3
"""Tensors of a weight's size that training by SGD keeps or makes: weight, gradient, and one more
while it is exchanged."""


@dataclass(frozen=True)
class OwnCosts:
    """Of each strategy: seconds of a step, and bytes on a device."""

    seconds: Vector
    memory: Vector


def own_costs(
    node: Node,
    space: Space,
    needs: frozenset[int],
    weights: Sequence[int],
    cost: CostModel,
    digits: Digits,
) -> OwnCosts:
    """Computation forward and, for the operands in ``needs``, backward; exchange and update of the
    operands that are weights; what is kept for back-propagation."""
    degrees = space.degrees(digits.primes).astype(float)
    types = [value.type for value in node.inputs]
    operands = [
        t.elements / _cut(degrees, [a.operands[i] is not None for a in space.axes])
        for i, t in enumerate(types)
    ]
    outputs = [
        t.elements / _cut(degrees, [a.outputs[i] is not None for a in space.axes])
        for i, t in enumerate(node.types)
    ]
    done = work(node, needs, cost.itemsize)
    tasks = degrees.prod(axis=1)
    moved = sum(operands) + sum(outputs)
    whole = sum(t.elements for t in (*types, *node.types))
    device = cost.machine.device
    rate = device.flops.rate(cost.dtype)
    seconds = np.zeros(len(space))
    for flops, read, kernels in (
        (done.flops_forward, done.bytes_forward, done.kernels_forward),
        (done.flops_backward, done.bytes_backward, done.kernels_backward),
    ):
        busy = np.maximum(
            flops / tasks / rate, read / max(whole, 1) * moved / device.memory_bandwidth
        )
        seconds += kernels * device.kernel_latency + busy
    # Operands are counted where they are wanted, though some lie there already.
    wanted = [block for position, block in enumerate(operands) if position not in weights]
    memory = sum([*outputs, *wanted], np.zeros(len(space))) * cost.itemsize
    for position in weights:
        block = operands[position] * cost.itemsize
        seconds += _exchange(space.operand(position), block, digits)
        seconds += device.kernel_latency + 3 * block / device.memory_bandwidth
        memory = memory + STATES * block
    return OwnCosts(seconds, memory)


def _cut(degrees: Vector, concerned: Sequence[bool]) -> Vector:
    return np.where(np.array(concerned, bool), degrees, 1.0).prod(axis=1)


def _exchange(codes: Codes, block: Vector, digits: Digits) -> Vector:
    """Seconds of an all_reduce among the copies of a weight."""
    mask = ((codes == COPY) * (1 << np.arange(len(digits)))).sum(axis=1)
    return digits.all_reduce_seconds(mask, block)


def lengths(node: Node) -> dict[str, int]:
    """The lengths of the indices of a whole operator that its type lets be cut."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    ranks = tuple(t.rank for t in types)
    sizes = bind_sizes(call, call.instance(ranks), [t.shape for t in types])
    return {axis.name: sizes[f"|{axis.name}|"] for axis in call.typing(ranks).axes}
