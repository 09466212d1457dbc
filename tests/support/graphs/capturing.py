"""Compare captured graphs with the modules that they come from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pcg.capture import Captured, capture
from runtime.train.check import evaluate

NEAR = 1e-9


def flat_tensors(value):
    """The tensors of a module's inputs, with lists taken apart."""
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in flat_tensors(part)]
    return [value]


def filled(value, bounds, generator):
    """Inputs of the same shapes with random values; integers stay below the next bound."""
    if isinstance(value, (list, tuple)):
        return type(value)(filled(part, bounds, generator) for part in value)
    below = next(bounds)
    if below is not None:
        return torch.randint(below, value.shape, generator=generator)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64)


def bounds_of(captured: Captured):
    """The bounds of the integers that feed the module's inputs."""
    below = {node.leaf.name: node.leaf.below for node in captured.graph.leaves}
    return iter([None if name is None else below[name] for name in captured.inputs])


def leaves_for(captured: Captured, module: nn.Module, inputs) -> dict[str, Tensor]:
    """A value for each leaf of the graph."""
    state = dict(module.named_parameters(remove_duplicate=False))
    state |= dict(module.named_buffers())
    leaves = {w.leaf: w.of(state[w.parameter]) for w in captured.weights}
    leaves |= {name: state[buffer].detach() for name, buffer in captured.buffers.items()}
    fed = zip(captured.inputs, flat_tensors(inputs), strict=True)
    doubles = torch.float64
    return leaves | {name: x.to(doubles) for name, x in fed if name is not None}


def assert_agrees(module: nn.Module, inputs, captured: Captured | None = None) -> Captured:
    """Check that the graph has the module's outputs and the gradients of its loss, in double
    precision."""
    module = module.double()
    captured = captured or capture(module, inputs)
    expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = evaluate(captured.graph, leaves_for(captured, module, inputs))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=NEAR, atol=NEAR)
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = [
        torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        for loss in (actual[0], expected[0])
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=NEAR, atol=NEAR)
    return captured
