"""The inputs of a comparison of a module with its graph: the same for both, in double precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from pcg.capture import Captured
from runtime.train.initial import tensors_of
from runtime.train.replay import below


class ComparisonInputs:
    """The inputs of a module and the leaves of its graph, with the same values in double precision.
    The inputs are random, or the module's example inputs."""

    def __init__(self, captured: Captured, module: Module, *, of_examples: bool = False) -> None:
        self._captured, self._of_examples = captured, of_examples
        self.kind = "example" if of_examples else "random"
        _make_double(module)
        state = tensors_of(module)
        records = captured.naming.parameters
        self.parameters = {own[0]: state[own[0]] for r in records.values() for own in r.parts}
        self.leaves: dict[str, Tensor] = {
            leaf: record.weight(state).detach().requires_grad_() for leaf, record in records.items()
        }
        self.leaves |= {
            leaf: state[name].detach().double().clone() for leaf, name in captured.buffers.items()
        }
        by_name = {n.leaf.name: n.leaf for n in captured.graph.leaves}
        leaves = [by_name[name] for name in captured.draws]
        self.drawn = [torch.randn(leaf.shape, dtype=torch.float64) for leaf in leaves]
        for leaf, normal in zip(leaves, self.drawn, strict=True):
            self.leaves[leaf.name] = normal if leaf.share is None else below(normal, leaf.share)

    def of(self, inputs: Any) -> Any:
        """The inputs of the comparison, in the structure of the module's example inputs. Sets the
        same values in ``leaves``."""
        leaves = {node.leaf.name: node.leaf for node in self._captured.graph.leaves}
        names = iter(self._captured.inputs)

        def replaced(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: replaced(part) for key, part in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(replaced(part) for part in value)
            if not isinstance(value, Tensor):
                next(names, None)
                return value
            name = next(names, None)
            below = leaves[name].below if name in leaves else None
            if self._of_examples:
                tensor = value.double() if value.is_floating_point() else value
            elif value.is_floating_point():
                tensor = torch.randn(value.shape, dtype=torch.float64)
            else:
                tensor = torch.randint(below or 1, value.shape).to(value.dtype)
            if name is not None:
                self.leaves[name] = tensor.double()
            return tensor

        return replaced(inputs)


def any_meta(inputs: Any) -> bool:
    """Whether any of a module's inputs is a meta tensor, which has no values."""
    if isinstance(inputs, dict):
        return any(map(any_meta, inputs.values()))
    if isinstance(inputs, (list, tuple)):
        return any(map(any_meta, inputs))
    return isinstance(inputs, Tensor) and inputs.is_meta


def _make_double(module: Module) -> None:
    """Convert a module to double precision, with its plain attributes, which ``Module.double``
    leaves as they are."""
    module.double()
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.double())
