"""Train on one process in double precision, and compare a distributed run with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pcg.graph.graph import Graph, Leaf, Node, topological
from pcg.placement.region import whole_region
from pcg.readings.evaluate import evaluate_nodes
from runtime.execute.kernels import run_whole
from runtime.execute.precision import in_float64
from runtime.inputs.seeded import InputSource, initial_weight
from runtime.job.job import Comparison, TrainingOptions
from runtime.train.optimizer import Updater
from runtime.world.collectives import World


@dataclass(frozen=True)
class Outcome:
    """The result of a training run: the loss of each step, the outputs of the last step, and the
    weights by name. Outputs and weights are whole tensors, one for each copy."""

    losses: tuple[float, ...]
    outputs: tuple[tuple[Tensor, ...], ...]
    weights: Mapping[str, tuple[Tensor, ...]]


def _initial_weights(
    leaves: Iterable[Leaf], seed: int, initial: Mapping[str, Tensor] | None, device: torch.device
) -> dict[str, Tensor]:
    """The initial weights as whole tensors, by leaf: from ``initial``, or else from the seed."""
    return {
        leaf.name: (
            initial_weight(leaf, seed) if initial is None else initial[leaf.name].clone()
        ).to(device)
        for leaf in leaves
        if leaf.kind == "weight"
    }


def _inputs(
    leaves: Iterable[Leaf], source: InputSource, number: int, device: torch.device
) -> dict[str, Tensor]:
    """The inputs of batch ``number`` as whole tensors, in double precision."""
    return {
        leaf.name: source.piece(leaf, whole_region(leaf.shape), number).to(device, torch.float64)
        for leaf in leaves
        if leaf.kind == "input"
    }


def train_alone(
    graph: Graph,
    options: TrainingOptions,
    source: InputSource,
    device: torch.device,
    *,
    delayed: bool = False,
    initial: Mapping[str, Tensor] | None = None,
) -> Outcome:
    """Train a graph without a plan: whole tensors, one process, float64, and autograd for all of
    it.

    ``delayed``: whether gradients belong to the weights before the last update, as in
    PipeDream-2BW. ``initial``: the initial weights, by leaf; by default drawn from the seed.
    """
    leaves = [node.leaf for node in graph.leaves]
    weights = _initial_weights(leaves, options.seed, initial, device)
    weights_read = {name: w.clone() if delayed else w for name, w in weights.items()}
    for weight in weights_read.values():
        weight.requires_grad_()
    recipe = options.recipe
    updater = Updater(_trained(graph, weights), recipe, World(device=device))
    losses: list[float] = []
    outputs: tuple[Tensor, ...] = ()
    for step in range(options.steps):
        numbers = range(step * recipe.accumulate, (step + 1) * recipe.accumulate)
        batches = (_inputs(leaves, source, number, device) for number in numbers)
        total, sums, outputs = _backward(graph, weights_read, batches)
        with torch.no_grad():
            for name, weight in weights.items() if delayed else ():
                weights_read[name].copy_(weight)
            updater.update(sums)
        losses.append(total / recipe.accumulate)
    return Outcome(
        tuple(losses),
        tuple((output,) for output in outputs),
        {name: (weight.detach(),) for name, weight in weights.items()},
    )


def _backward(
    graph: Graph, weights: Mapping[str, Tensor], batches: Iterable[Mapping[str, Tensor]]
) -> tuple[float, dict[str, Tensor], tuple[Tensor, ...]]:
    """The sums of the loss and of the gradients over batches, and the outputs of the last batch."""
    total, outputs = 0.0, tuple[Tensor, ...]()
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for batch in batches:
        with in_float64():  # for constants
            results = evaluate(graph, {**batch, **weights})
        loss = results[0].sum()
        total += loss.item()
        for name, gradient in zip(sums, gradients(loss, weights.values()), strict=True):
            sums[name] += gradient
        # Cloned, because outputs may be views of weights, which are updated in place.
        outputs = tuple(result.detach().clone() for result in results)
    return total, sums, outputs


def _trained(graph: Graph, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights on which the loss depends. Others are not updated, not even by weight decay."""
    used = {n.leaf.name for n in topological([graph.outputs[0].node]) if n.is_leaf}
    return {name: weight for name, weight in weights.items() if name in used}


def evaluate(graph: Graph, leaves: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a graph on whole tensors. By their equations, parallel operators change
    nothing, and a join adds its operands up."""

    def run(node: Node, operands: list[Tensor]) -> tuple[Tensor, ...]:
        return run_whole(node.operator_call, operands)

    return evaluate_nodes(graph.outputs, graph.nodes, leaves, run)


def gradients(loss: Tensor, of: Iterable[Tensor]) -> Sequence[Tensor]:
    """The gradients of a loss by tensors. Zeros for a tensor on which it does not depend."""
    tensors = list(of)
    if not tensors or not loss.requires_grad:
        return [torch.zeros_like(tensor) for tensor in tensors]
    return torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)


def compare(expected: Outcome, measured: Outcome) -> tuple[Comparison, ...]:
    """Errors of every loss, output and weight."""
    errors = [
        _compare("loss", f"step {step + 1}", _number(a), (_number(b),))
        for step, (a, b) in enumerate(zip(expected.losses, measured.losses, strict=True))
    ]
    errors += [
        _compare("output", str(i), whole, copies)
        for i, ((whole,), copies) in enumerate(zip(expected.outputs, measured.outputs, strict=True))
    ]
    errors += [
        _compare("weight", name, expected.weights[name][0], copies)
        for name, copies in measured.weights.items()
    ]
    return tuple(errors)


def _compare(
    kind: Literal["loss", "output", "weight"], name: str, whole: Tensor, copies: Sequence[Tensor]
) -> Comparison:
    expected = whole.to(torch.float64)
    scale = max(1.0, expected.abs().max().item())
    absolute = torch.stack([(copy.to(torch.float64) - expected).abs().max() for copy in copies])
    # torch's max returns NaN if there is one; Python's may not.
    worst = absolute.max().item()
    return Comparison(kind, name, worst, worst / scale)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
