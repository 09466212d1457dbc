"""Torch's own list of its operators with samples, each as a small model, and the outcome of its
capture.

The list is the one of torch's tests. It needs a package for one class of tests alone, which do not
run here. If the package is missing, the class is made.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest import TestCase

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from pcg.capture import Captured, capture
from pcg.errors import UnityError
from pcg.graph.opaque import Batched, Opaque, torch_functions
from runtime.train.eager import compare_module

NEAR = 1e-8
ROUNDS = frozenset(
    {
        *("float", "half", "bfloat16", "chalf", "cfloat", "cdouble"),
        *("float.channels_last", "half.channels_last", "bfloat16.channels_last"),
    }
)
"""Casts, which a comparison in double precision leaves out."""
MOST_SAMPLES = 12
"""The number of samples to choose one from."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an operator: ``kind``, and the functions that were kept whole or the error
    line."""

    kind: str
    """Captured as an ``equation`` alone, or with parts that are ``batched`` or ``whole``. Otherwise
    ``refused`` or ``not compared``. The faults are ``traceback`` and ``wrong``."""
    detail: str = ""


class SingleOperator(nn.Module):
    """A model of one operator with parameters. The loss weighs the elements of its results with the
    input."""

    def __init__(self, operator: Any, sample: Any) -> None:
        super().__init__()
        self.operator = operator
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        leaves, self.spec = tree_flatten(given)
        self.leaves: list[Any] = []
        for number, value in enumerate(leaves):
            is_tensor = isinstance(value, Tensor)
            if is_tensor and value.is_floating_point():
                self.register_parameter(f"t{number}", nn.Parameter(value.detach().clone()))
            elif is_tensor:
                self.register_buffer(f"t{number}", value.detach().clone())
            self.leaves.append(None if is_tensor else value)

    def results(self) -> list[Tensor]:
        """The results that are real numbers, and the parts of complex ones."""
        tensors = dict((*self.named_parameters(), *self.named_buffers()))
        leaves = [tensors.get(f"t{i}", value) for i, value in enumerate(self.leaves)]
        first, args, kwargs = tree_unflatten(leaves, self.spec)
        if isinstance(first, Tensor) and first.is_floating_point():
            first = first * 1.0  # so that the operator may change it in place
        flat = tree_flatten(self.operator(first, *args, **kwargs))[0]
        tensors = [t for t in flat if isinstance(t, Tensor)]
        real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
        return [t for t in real if t.is_floating_point()]

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum() * 0.0
        for result in self.results():
            total = total + (result * x[: result.numel()].reshape(result.shape)).mean()
        return total


def operators() -> Iterator[tuple[str, SingleOperator, int]]:
    """The operators of one tensor or more that have gradients: a name, a model, and the largest
    number of elements of its results."""
    if find_spec("expecttest") is None and "expecttest" not in sys.modules:
        made = ModuleType("expecttest")
        vars(made)["TestCase"] = TestCase
        sys.modules["expecttest"] = made
    listed = import_module("torch.testing._internal.common_methods_invocations").op_db
    for operator in listed:
        if not operator.supports_autograd or torch.float64 not in operator.dtypes:
            continue
        if operator.full_name in ROUNDS or "sparse" in operator.name:
            continue
        if (sample := _largest(operator)) is not None:
            yield operator.full_name, *sample


def _largest(operator: Any) -> tuple[SingleOperator, int] | None:
    """The model of the largest of the first samples without empty tensors."""
    best: tuple[int, SingleOperator, int] | None = None
    samples = operator.sample_inputs("cpu", torch.float64, requires_grad=False)
    for _, sample in zip(range(MOST_SAMPLES), samples, strict=False):
        module = SingleOperator(operator, sample)
        state = (*module.parameters(), *module.buffers())
        if not all(tensor.numel() for tensor in state):
            continue
        try:
            results = module.results()
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # a sample that must not be called like this
        if not any(result.requires_grad and result.numel() for result in results):
            continue
        size = sum(tensor.numel() for tensor in state)
        if best is None or size > best[0]:
            best = size, module, max(result.numel() for result in results)
    return None if best is None else best[1:]


def outcome(module: SingleOperator, most: int) -> Outcome:
    """The outcome of the capture of a model."""
    example = (torch.randn(most, dtype=torch.float64),)
    try:
        captured = capture(module, example)
    except UnityError as error:
        return Outcome("traceback" if "\n" in str(error) else "refused", str(error))
    except Exception:
        return Outcome("traceback", traceback.format_exc(limit=-2))
    try:
        comparison = compare_module(module, example, captured, "model")
    except UnityError as error:
        return Outcome("wrong", str(error))
    except Exception:
        return Outcome("traceback", traceback.format_exc(limit=-2))
    if comparison.error is None:
        return Outcome("not compared", comparison.reason)
    if not comparison.error < NEAR:
        return Outcome("wrong", f"by {comparison.error:.1e}")
    return _captured(captured)


def _captured(captured: Captured) -> Outcome:
    kept = torch_functions(captured.graph)
    whole = sorted({function.target for function in kept if isinstance(function, Opaque)})
    sliced = sorted({function.target for function in kept if isinstance(function, Batched)})
    if whole:
        return Outcome("whole", ", ".join(whole))
    return Outcome("batched", ", ".join(sliced)) if sliced else Outcome("equation")
