"""What each strategy of an operator costs by itself, for all strategies at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.graph import Node
from pcg.infer import bind_sizes
from pcg.kept import Reads
from pcg.training import held_bytes, update_bytes
from pcg.work import work
from search.cost import CostModel
from search.mesh.digits import Digits
from search.mesh.strategies import COPY, Codes, Space

Vector = NDArray[np.float64]


PASSING = 0.25
"""How much of what an operator reads and makes counts as memory though it is held for a short while
only. At the fullest time few operators have such, and which is unknown while bytes add up."""


@dataclass(frozen=True)
class OwnCosts:
    """Of each strategy: seconds of a step without the exchange of its weights' gradients, those of
    each exchange, and bytes on a device."""

    seconds: Vector
    exchanges: tuple[Vector, ...]
    memory: Vector


def own_costs(
    node: Node,
    space: Space,
    needs: frozenset[int],
    weights: Sequence[int],
    cost: CostModel,
    digits: Digits,
    kept: Reads,
) -> OwnCosts:
    """Computation forward and, for the operands in ``needs``, backward; exchange and update of the
    operands that are weights; what they take, and what is ``kept`` for back-propagation."""
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
    exchanges: list[Vector] = []
    for flops, read, kernels in (
        (done.flops_forward, done.bytes_forward, done.kernels_forward),
        (done.flops_backward, done.bytes_backward, done.kernels_backward),
    ):
        busy = np.maximum(
            flops / tasks / rate, read / max(whole, 1) * moved / device.memory_bandwidth
        )
        seconds += kernels * device.kernel_latency + busy
    # Operands are counted where they are wanted, though some lie there already.
    held = [outputs[port] for port in kept.outputs] + [operands[i] for i in kept.operands]
    passing = [*outputs, *(b for i, b in enumerate(operands) if i not in weights)]
    memory = (sum(held, np.zeros(len(space))) + PASSING * sum(passing)) * cost.itemsize
    moves = update_bytes(cost.itemsize, cost.optimizer)
    holds = held_bytes(cost.itemsize, cost.optimizer)
    for position in weights:
        block = operands[position] * cost.itemsize
        exchanges.append(_exchange(space.operand(position), block, digits))
        seconds += device.kernel_latency + operands[position] * moves / device.memory_bandwidth
        memory = memory + operands[position] * holds
    return OwnCosts(seconds, tuple(exchanges), memory)


def _cut(degrees: Vector, concerned: Sequence[bool]) -> Vector:
    return np.where(np.array(concerned, bool), degrees, 1.0).prod(axis=1)


def _exchange(codes: Codes, block: Vector, digits: Digits) -> Vector:
    """Seconds of a ring all_reduce among the copies of a weight."""
    mask = ((codes == COPY) * (1 << np.arange(len(digits)))).sum(axis=1)
    return digits.ring_seconds(mask, block, 2)


def lengths(node: Node) -> dict[str, int]:
    """The lengths of the indices of a whole operator that its type lets be cut."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    ranks = tuple(t.rank for t in types)
    sizes = bind_sizes(call, call.instance(ranks), [t.shape for t in types])
    return {axis.name: sizes[f"|{axis.name}|"] for axis in call.typing(ranks).axes}
