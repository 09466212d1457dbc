"""The same training on one process, in double precision, and how far a distributed run is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pcg.graph import Graph, Node, Value
from runtime.data import initial_weight, input_batch
from runtime.job import Comparison
from runtime.kernels import run_whole


@dataclass(frozen=True)
class Outcome:
    """What a training run leaves: every step's loss, outputs of the last step, weights by name.

    Of outputs and weights there are as many tensors as there are copies, each whole.
    """

    losses: tuple[float, ...]
    outputs: tuple[tuple[Tensor, ...], ...]
    weights: Mapping[str, tuple[Tensor, ...]]


def train_alone(graph: Graph, steps: int, rate: float, seed: int, device: torch.device) -> Outcome:
    """Train a graph as written: whole tensors, one process, float64, autograd from end to end."""
    weights = {
        node.leaf.name: initial_weight(node.leaf, seed).to(device).requires_grad_()
        for node in graph.leaves
        if node.leaf.kind == "weight"
    }
    losses: list[float] = []
    outputs: tuple[Tensor, ...] = ()
    for step in range(steps):
        leaves = {
            node.leaf.name: input_batch(node.leaf, seed, step).to(device)
            for node in graph.leaves
            if node.leaf.kind == "input"
        }
        outputs = evaluate(graph, leaves | weights)
        loss = outputs[0].sum()
        losses.append(loss.item())
        weights = _updated(weights, loss, rate)
    return Outcome(
        tuple(losses),
        tuple((output.detach(),) for output in outputs),
        {name: (weight.detach(),) for name, weight in weights.items()},
    )


def evaluate(graph: Graph, leaves: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a graph on whole tensors. Parallel operators leave a tensor's meaning alone,
    and join adds its operands up, which is what their equations say."""
    known: dict[Node, tuple[Tensor, ...]] = {}

    def tensor(value: Value) -> Tensor:
        return known[value.node][value.port]

    for node in graph.nodes:
        if node.is_leaf:
            known[node] = (leaves[node.leaf.name],)
        else:
            known[node] = run_whole(node.operator_call, [tensor(value) for value in node.inputs])
    return tuple(tensor(value) for value in graph.outputs)


def _updated(weights: Mapping[str, Tensor], loss: Tensor, rate: float) -> dict[str, Tensor]:
    if not loss.requires_grad:
        return dict(weights)
    gradients = torch.autograd.grad(
        loss, list(weights.values()), allow_unused=True, materialize_grads=True
    )
    return {
        name: (weight.detach() - rate * gradient).requires_grad_()
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
    }


def compare(expected: Outcome, measured: Outcome) -> tuple[Comparison, ...]:
    """Errors of every loss, output and weight."""
    found = [
        _compare("loss", f"step {step + 1}", _number(a), (_number(b),))
        for step, (a, b) in enumerate(zip(expected.losses, measured.losses, strict=True))
    ]
    found += [
        _compare("output", str(i), whole, copies)
        for i, ((whole,), copies) in enumerate(zip(expected.outputs, measured.outputs, strict=True))
    ]
    found += [
        _compare("weight", name, expected.weights[name][0], copies)
        for name, copies in measured.weights.items()
    ]
    return tuple(found)


def _compare(
    kind: Literal["loss", "output", "weight"], name: str, whole: Tensor, copies: Sequence[Tensor]
) -> Comparison:
    wanted = whole.to(torch.float64)
    scale = max(1.0, wanted.abs().max().item())
    absolute = torch.stack([(copy.to(torch.float64) - wanted).abs().max() for copy in copies])
    # torch's max passes a NaN on, where Python's would drop it.
    worst = absolute.max().item()
    return Comparison(kind, name, worst, worst / scale)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
