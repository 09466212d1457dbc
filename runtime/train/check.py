"""Train on one process in double precision, and measure how far a distributed run is off."""

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
    """What a training run leaves: every step's loss, outputs of the last step, weights by name.

    Of outputs and weights there are as many tensors as there are copies, each whole.
    """

    losses: tuple[float, ...]
    outputs: tuple[tuple[Tensor, ...], ...]
    weights: Mapping[str, tuple[Tensor, ...]]


def _initial_weights(
    leaves: Iterable[Leaf], seed: int, initial: Mapping[str, Tensor] | None, device: torch.device
) -> dict[str, Tensor]:
    """Whole weights by leaf, as they are given or drawn."""
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
    """The whole inputs of a micro-step, in double precision."""
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
    """Train a graph as written: whole tensors, one process, float64, autograd from end to end.

    ``delayed``: gradients are of the weights of one update before, as in PipeDream-2BW.
    ``initial``: whole weights by leaf; by default they are drawn from the seed.
    """
    leaves = [node.leaf for node in graph.leaves]
    weights = _initial_weights(leaves, options.seed, initial, device)
    read = {name: w.clone() if delayed else w for name, w in weights.items()}
    for weight in read.values():
        weight.requires_grad_()
    recipe = options.recipe
    updater = Updater(_trained(graph, weights), recipe, World(device=device))
    losses: list[float] = []
    outputs: tuple[Tensor, ...] = ()
    for step in range(options.steps):
        numbers = range(step * recipe.accumulate, (step + 1) * recipe.accumulate)
        batches = (_inputs(leaves, source, number, device) for number in numbers)
        total, sums, outputs = _backward(graph, read, batches)
        with torch.no_grad():
            for name, weight in weights.items() if delayed else ():
                read[name].copy_(weight)
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
    """The sums of the loss and of gradients over batches, and the outputs of the last one."""
    total, outputs = 0.0, tuple[Tensor, ...]()
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for batch in batches:
        with in_float64():  # constants too
            results = evaluate(graph, {**batch, **weights})
        loss = results[0].sum()
        total += loss.item()
        for name, gradient in zip(sums, gradients(loss, weights.values()), strict=True):
            sums[name] += gradient
        # Copied, for outputs may be views of weights, which are updated in place.
        outputs = tuple(result.detach().clone() for result in results)
    return total, sums, outputs


def _trained(graph: Graph, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that the loss depends on: weight decay and momentum leave others alone."""
    read = {n.leaf.name for n in topological([graph.outputs[0].node]) if n.is_leaf}
    return {name: weight for name, weight in weights.items() if name in read}


def evaluate(graph: Graph, leaves: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a graph on whole tensors. Parallel operators leave a tensor's meaning alone,
    and join adds its operands up, which is what their equations say."""

    def run(node: Node, operands: list[Tensor]) -> tuple[Tensor, ...]:
        return run_whole(node.operator_call, operands)

    return evaluate_nodes(graph.outputs, graph.nodes, leaves, run)


def gradients(loss: Tensor, of: Iterable[Tensor]) -> Sequence[Tensor]:
    """The gradients of a loss by tensors, 0 where it does not depend on one."""
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
    wanted = whole.to(torch.float64)
    scale = max(1.0, wanted.abs().max().item())
    absolute = torch.stack([(copy.to(torch.float64) - wanted).abs().max() for copy in copies])
    # torch's max passes a NaN on, where Python's would drop it.
    worst = absolute.max().item()
    return Comparison(kind, name, worst, worst / scale)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
