"""Plans of a multi-layer perceptron by hand, priced like those of the search."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Value, apply, leaf
from pcg.machine import Machine
from pcg.models.mlp import MlpSize
from pcg.ops.algebra import add, matmul, multiply, relu, scale
from pcg.ops.layers import mean_loss
from pcg.ops.parallel import combine, partition, reduce, replicate
from pcg.placement.layout import grid
from pcg.placement.schedule import schedule
from pcg.placement.view import MachineView
from search.cost.cost import CostModel
from search.cost.simulate import simulate


def best_by_hand(machine: Machine, size: MlpSize, batch: int, *, on_all: bool) -> tuple[float, str]:
    """Seconds of the best data x tensor plan of all degrees, and its name. ``on_all``: only plans
    that use all devices."""
    best, name = inf, "none"
    degrees = [d for d in range(1, machine.devices + 1) if machine.devices % d == 0]
    for data, tensor in product(degrees, repeat=2):
        if machine.devices % (data * tensor) or (on_all and machine.devices != data * tensor):
            continue
        graph = data_times_tensor(batch, size, data, tensor)
        try:
            graph.check()
        except OperatorError:
            continue  # the degree does not divide a size
        seconds = min(_seconds(graph, machine, (tensor, 1)), _seconds(graph, machine, (1, data)))
        if seconds < best:
            best, name = seconds, f"data {data} x tensor {tensor}"
    return best, name


def _seconds(graph: Graph, machine: Machine, strides: tuple[int, int]) -> float:
    """Seconds of a step. ``strides``, in devices: from one part of the batch to the next, and from
    one part of a layer to the next."""
    rows, layer = strides
    views = {
        node: MachineView(0, shape := grid(node), (rows, *[layer] * (len(shape) - 1)))
        for node in graph.operators
    }
    return simulate(schedule(graph, views), CostModel(machine)).step_seconds


def data_times_tensor(batch: int, size: MlpSize, data: int, tensor: int) -> Graph:
    """``data`` copies of the model, each cut ``tensor`` ways: columns of one layer, rows of the
    next, as Megatron does."""
    widths = size.widths
    value = _cut(leaf("input", "x", (batch, widths[0])), 0, data)
    columns = True
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        if i:
            value = apply(relu(), value)
        weight = leaf("weight", f"w{i + 1}", (fan_in, fan_out))
        stored = _copy(_cut(weight, 1 if columns else 0, tensor), data)
        if columns:
            value = apply(matmul(), _copy(value, tensor), stored)
        else:
            value = _sum(apply(matmul(), value, stored), tensor)
        columns = not columns
    if not columns and tensor > 1:
        value = apply(combine(dim=1, degree=tensor), value)
    shown = (_joined(value, data),) if size.prediction else ()
    target = _cut(leaf("input", "target", (batch, widths[-1])), 0, data)
    error = apply(add(), value, apply(scale(factor=-1.0), target))
    loss = _sum(apply(mean_loss(), apply(multiply(), error, error)), data)
    return Graph((loss, *shown))


def _joined(value: Value, degree: int) -> Value:
    return value if degree == 1 else apply(combine(dim=0, degree=degree), value)


def _cut(value: Value, dim: int, degree: int) -> Value:
    return value if degree == 1 else apply(partition(dim=dim, degree=degree), value)


def _copy(value: Value, degree: int) -> Value:
    return value if degree == 1 else apply(replicate(degree=degree), value)


def _sum(value: Value, degree: int) -> Value:
    return value if degree == 1 else apply(reduce(degree=degree), value)
