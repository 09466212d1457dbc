"""The outputs and gradients of a training graph, computed task by task in a single process.

Tasks are run by the operators' equations or by their kernels, which other tests compare with each
other. Sums of sums, such as the batch norm of a convolution, take far too much memory by their
equations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from support.graphs.strategies import parts_of_leaves

from pcg.graph.graph import Graph
from pcg.readings.evaluate import Block, Range, RunTask, evaluate_shards, meaning
from pcg.readings.ring import Reals, Ring
from pcg.types.operator import Call
from pcg.types.task import KernelTask
from runtime.execute.kernels import TorchReals, run_task

RING = TorchReals(torch.float64, torch.device("cpu"))
RTOL, ATOL = 1e-8, 1e-10


@dataclass(frozen=True)
class Behaviour:
    """The outputs of a graph, and the gradient of its first output for each weight, by name.
    Gradients are the derivative of what the tasks of all devices compute from their own blocks."""

    outputs: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor]


def by_kernel(
    call: Call,
    operands: Sequence[Block],
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    ring: Ring,
) -> tuple[torch.Tensor, ...]:
    """Compute a task by the operator's kernel."""
    plain = {name[1:-1]: size for name, size in sizes.items() if name.startswith("|")}
    blocks = [block.values for block in operands]
    return run_task(
        call, KernelTask(call.values, plain, ranges), blocks, [b.start for b in operands]
    )


def leaves_of(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """Random values for the leaves of a whole graph. Products keep their magnitude."""
    below = {node.leaf.name: node.leaf.below for node in graph.leaves}
    values = parts_of_leaves(graph, seed, Reals())
    return {
        name: torch.tensor(v if below[name] is not None else v / max(v.shape) ** 0.5)
        for name, v in values.items()
    }


def behaviour(graph: Graph, leaves: dict[str, torch.Tensor], run: RunTask = by_kernel) -> Behaviour:
    """The behaviour of a graph that is cut in any way, from the values of its leaves."""
    weights = [node.leaf.name for node in graph.leaves if node.leaf.kind == "weight"]
    known = {name: values.clone() for name, values in leaves.items()}
    for name in weights:
        known[name].requires_grad_()
    outputs = tuple(
        meaning(value, RING) for value in evaluate_shards(graph, known, RING, by_kernel)
    )
    read = [known[name] for name in weights]
    gradients = torch.autograd.grad(outputs[0].sum(), read, materialize_grads=True)
    return Behaviour(outputs, dict(zip(weights, gradients, strict=True)))


def assert_same(model: Graph, graph: Graph, run: RunTask = by_kernel) -> None:
    """Check that a graph computes the same as a model, and that no value is too large."""
    leaves = leaves_of(model, 3)
    wanted, actual = behaviour(model, leaves, run), behaviour(graph, leaves, run)
    for a, b in zip(wanted.outputs, actual.outputs, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(b, a, rtol=RTOL, atol=ATOL)
    assert wanted.gradients.keys() >= actual.gradients.keys()
    for name, gradient in wanted.gradients.items():
        assert torch.isfinite(gradient).all()
        torch.testing.assert_close(actual.gradients[name], gradient, rtol=RTOL, atol=ATOL)
