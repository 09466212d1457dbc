"""Operators mean what torch computes, forward and backward, and exact arithmetic agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import COMPUTE, Applied, applied, parts_of_leaves, seeds
from torch.nn import functional

from pcg.evaluate import evaluate_whole
from pcg.ops import OPERATORS
from pcg.ring import PrimeField, Reals

Attributes = Mapping[str, Any]
Inputs = list[Any]

TORCH: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, x, w: torch.matmul(x, w),
    "batch_matmul": lambda a, x, y: torch.matmul(x, y),
    "add": lambda a, x, y: x + y,
    "multiply": lambda a, x, y: x * y,
    "scale": lambda a, x: x * a["factor"],
    "relu": lambda a, x: torch.relu(x),
    "gelu": lambda a, x: functional.gelu(x),
    "concat": lambda a, x, y: torch.cat((x, y), a["axis"]),
    "split": lambda a, x: torch.split(x, [a["at"], x.shape[a["axis"]] - a["at"]], a["axis"]),
    "transpose": lambda a, x: torch.transpose(x, a["dim0"], a["dim1"]),
    "flatten": lambda a, x: torch.flatten(x, a["axis"], a["axis"] + 1),
    "unflatten": lambda a, x: torch.unflatten(x, a["axis"], (a["outer"], a["inner"])),
    "softmax": lambda a, x: torch.softmax(x, a["axis"]),
    "layer_norm": lambda a, x, w, b: functional.layer_norm(x, (x.shape[-1],), w, b, a["eps"]),
    "embedding": lambda a, ids, table: functional.embedding(ids.long(), table),
    "sum_loss": lambda a, x: x.sum(),
    "mean_loss": lambda a, x: x.mean(),
}

EXACT: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, x, w: x @ w,
    "batch_matmul": lambda a, x, y: x @ y,
    "add": lambda a, x, y: x + y,
    "multiply": lambda a, x, y: x * y,
    "scale": lambda a, x: x * Fraction(a["factor"]),
    "concat": lambda a, x, y: np.concatenate((x, y), a["axis"]),
    "split": lambda a, x: np.split(x, [a["at"]], a["axis"]),
    "transpose": lambda a, x: np.swapaxes(x, a["dim0"], a["dim1"]),
    "flatten": lambda a, x: x.reshape(*x.shape[: a["axis"]], -1, *x.shape[a["axis"] + 2 :]),
    "unflatten": lambda a, x: x.reshape(
        *x.shape[: a["axis"]], a["outer"], a["inner"], *x.shape[a["axis"] + 1 :]
    ),
    "embedding": lambda a, ids, table: table[ids.astype(np.int64)],
    "sum_loss": lambda a, x: x.sum(),
    "mean_loss": lambda a, x: x.sum() * Fraction(1, x.size),
}
"""The operators that are polynomials of their inputs, on arrays of Python's integers."""


def test_every_operator_is_compared_with_torch():
    assert set(TORCH) == {operator.name for operator in COMPUTE}
    functions = {"relu", "gelu", "softmax", "layer_norm"}
    assert set(EXACT) == set(TORCH) - functions


def inputs_of(case: Applied, seed: int, ring: Reals | PrimeField) -> Inputs:
    """A whole tensor for each operand."""
    parts = parts_of_leaves(case.graph, seed, ring)
    return [np.asarray(parts[name][0]) for name in case.call.operator.operand_names]


def reference(case: Applied, inputs: Inputs, ring: Reals | PrimeField) -> tuple[Any, ...]:
    leaves = dict(zip(case.call.operator.operand_names, inputs, strict=True))
    return evaluate_whole(case.graph, leaves, ring)


def with_torch(case: Applied, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    result = TORCH[case.call.name](case.call.values, *inputs)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=25)
@given(data=st.data(), seed=seeds)
def test_forward(name: str, data: st.DataObject, seed: int):
    case = data.draw(applied((OPERATORS[name],), cut=False))
    inputs = inputs_of(case, seed, Reals())
    expected = with_torch(case, [torch.from_numpy(x) for x in inputs])
    for ours, theirs in zip(reference(case, inputs, Reals()), expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=10)
@given(data=st.data(), seed=seeds)
def test_backward(name: str, data: st.DataObject, seed: int):
    """torch's gradient is the derivative of the equation, along a random direction."""
    case = data.draw(applied((OPERATORS[name],), cut=False))
    inputs = inputs_of(case, seed, Reals())
    rng = np.random.default_rng(seed + 1)
    step = [np.zeros(x.shape) if i in case.below else rng.choice((-1e-5, 1e-5), x.shape)
            for i, x in enumerate(inputs)]  # fmt: skip
    after = reference(case, [x + h for x, h in zip(inputs, step, strict=True)], Reals())
    before = reference(case, [x - h for x, h in zip(inputs, step, strict=True)], Reals())
    tensors = [torch.tensor(x, requires_grad=True) for x in inputs]
    outputs = with_torch(case, tensors)
    weights = [rng.standard_normal(out.shape) for out in outputs]
    total = sum((out * torch.from_numpy(w)).sum() for out, w in zip(outputs, weights, strict=True))
    assert isinstance(total, torch.Tensor)
    total.backward()
    slope = sum(
        float((h * t.grad.numpy()).sum())
        for h, t in zip(step, tensors, strict=True)
        if t.grad is not None
    )
    change = sum(float((w * (a - b)).sum()) for w, a, b in zip(weights, after, before, strict=True))
    assert change / 2 == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15)
@given(data=st.data(), seed=seeds)
def test_prime_field(name: str, data: st.DataObject, seed: int):
    case = data.draw(applied((OPERATORS[name],), cut=False))
    field = PrimeField()
    inputs = inputs_of(case, seed, field)
    expected = EXACT[name](case.call.values, *(as_objects(x) for x in inputs))
    outputs = reference(case, inputs, field)
    for ours, exact in zip(outputs, expected if len(outputs) > 1 else (expected,), strict=True):
        assert ours.shape == np.shape(exact)
        assert ours.ravel().tolist() == [modulo(n, field.prime) for n in np.ravel(exact)]


def as_objects(x: Any) -> Any:
    """Python's integers, which do not overflow, as an array of whatever rank."""
    result = np.empty(x.shape, object)
    result[...] = x.astype(object)
    return result


def modulo(value: int | Fraction, prime: int) -> int:
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, prime) % prime
