"""Run schedules device by device. Each device computes only from the pieces that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.graphs.places import extent, place, within

from pcg.graph.graph import Node
from pcg.placement.layout import tasks
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.readings.evaluate import Block, evaluate_output
from pcg.readings.ring import Reals
from pcg.types.infer import bind_sizes
from pcg.types.task import KernelTask

RING = Reals()
Array = np.ndarray[Any, Any]
Memory = dict[Slot, dict[int, Array]]


def simulate(made: Schedule, parts: dict[str, Array], *, kernels: bool) -> Memory:
    """The pieces that each device holds, for every slot of a schedule. Each device computes from
    its own pieces alone."""
    memory: Memory = {}
    for step in made.steps:
        match step:
            case LeafAtHome(slot):
                v = parts[slot.value.node.leaf.name]
                memory[slot] = {
                    device: v[(piece.partial, *place(slot.layout, device))]
                    for device, piece in slot.layout.pieces
                }
            case Reshard(source, target):
                memory[target] = run_move(step, memory[source])
            case Compute():
                run_compute(step, memory, kernels=kernels)
    return memory


def run_move(step: Reshard, held: dict[int, Array]) -> dict[int, Array]:
    source, target = step.source.layout, step.target.layout
    result = {device: np.zeros(extent(target, device)) for device in target.devices}
    for message in step.transfer.messages:
        part = held[message.source][within(message, source, message.source)]
        result[message.target][within(message, target, message.target)] += part
    return result


def run_compute(step: Compute, memory: Memory, *, kernels: bool) -> None:
    for result in step.results:
        memory[result] = {}
    if step.node.name == "join":
        # Half of the devices hold a piece of one operand, and half a piece of the other: nothing to
        # do.
        (result,) = step.results
        memory[result] = {d: v for slot in step.operands for d, v in memory[slot].items()}
        return
    for device, task in tasks(step.node, step.view):
        blocks = [
            Block(memory[slot][device], tuple(p.start for p in place(slot.layout, device)))
            for slot in step.operands
        ]
        outputs = run_task(step.node, task, blocks, kernels=kernels)
        for result, values in zip(step.results, outputs, strict=True):
            memory[result][device] = values


def run_task(node: Node, task: KernelTask, blocks: list[Block], *, kernels: bool) -> list[Array]:
    call = node.operator_call
    if kernels and call.operator.kernel is not None:
        outputs = call.operator.kernel(task, *(torch.tensor(b.values) for b in blocks))
        return [t.numpy() for t in (outputs if isinstance(outputs, tuple) else (outputs,))]
    equation = call.instance(tuple(value.type.rank for value in node.inputs))
    sizes = bind_sizes(call, equation, [value.type.shape for value in node.inputs])
    return [
        evaluate_output(output, blocks, sizes, task.ranges, call.attributes, RING)
        for output in equation.outputs
    ]


def close(a: Array, b: Array) -> None:
    scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * scale)
