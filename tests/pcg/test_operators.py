"""Operators compute the same as torch, forward and backward, and exact arithmetic agrees."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each
from support.graphs.strategies import COMPUTE, SIMPLE, Applied, applied, parts_of_leaves, seeds
from support.graphs.torch_functions import TORCH, default_dtype

from pcg.ops import OPERATORS
from pcg.readings.evaluate import evaluate_call
from pcg.readings.ring import PrimeField, Reals
from runtime.execute.kernels import run_equation, whole_task

Inputs = list[Any]

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


FRACTIONS = (
    *("subtract", "negate", "where", "slice", "pad", "stack", "expand"),
    *("sum_axis", "mean_axis", "cumulative_sum", "gather", "embedding_bag", "one_hot"),
    *("index_add", "scatter_add"),
    *("moe_dispatch", "moe_combine", "conv2d", "grouped_conv2d", "depthwise_conv2d"),
    *("avg_pool2d", "avg_pool2d_inside", "enlarge"),
    *("ones1", "ones2", "ones3", "ones4", "identity_matrix", "position_ids"),
    *("identity_kernel", "averaging_kernel"),
)
"""Further operators that give small fractions for small integers, which torch computes exactly
enough."""

SMOOTH = (
    *("silu", "conv2d", "batch_norm", "ghost_batch_norm", "rms_norm", "log_softmax"),
    *("cross_entropy", "logsumexp", "nll", "attention", "causal_attention", "masked_attention"),
)
"""Operators of more than a few steps whose slopes are moderate everywhere."""

ROUNDING = {"to_float16": 1e-3, "to_bfloat16": 1e-2, "to_float32": 1e-7}
"""The tolerance of a gradient that is rounded. The values are rounded equally."""


@pytest.fixture(autouse=True)
def double():
    """Constants are made in torch's default format."""
    with default_dtype(torch.float64):
        yield


def test_every_operator_is_compared_with_torch():
    assert set(TORCH) == {operator.name for operator in COMPUTE}
    assert set(EXACT).isdisjoint(FRACTIONS)
    assert set(FRACTIONS) < set(TORCH)


def inputs_of(case: Applied, seed: int, ring: Reals | PrimeField) -> Inputs:
    """A whole tensor for each operand."""
    parts = parts_of_leaves(case.graph, seed, ring)
    return [np.asarray(parts[name][0]) for name in case.call.operator.operand_names]


def reference(case: Applied, inputs: Inputs, ring: Reals | PrimeField) -> tuple[Any, ...]:
    return evaluate_call(case.call, inputs, ring)


def with_torch(case: Applied, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    result = TORCH[case.call.name](case.call.values, *inputs)
    return result if isinstance(result, tuple) else (result,)


@each("name", TORCH)
@settings(max_examples=6)
@given(data=st.data(), seed=seeds)
def test_values_are_those_of_torch(name: str, data: st.DataObject, seed: int):
    case = data.draw(applied((OPERATORS[name],), cut=False))
    inputs = inputs_of(case, seed, Reals())
    expected = with_torch(case, [torch.from_numpy(x) for x in inputs])
    outputs = reference(case, inputs, Reals())
    for ours, theirs, t in zip(outputs, expected, case.node.types, strict=True):
        assert ours.shape == tuple(theirs.shape) == t.shape
        np.testing.assert_allclose(ours, theirs.double().numpy(), rtol=1e-12, atol=1e-12)


@each("name", [o.name for o in COMPUTE if o.arity and o.name != "one_hot"])
@settings(max_examples=4)
@given(data=st.data(), seed=seeds)
def test_gradients_are_those_of_torch(name: str, data: st.DataObject, seed: int):
    """torch's gradients are those of the equation, differentiated by itself."""
    case = data.draw(applied((OPERATORS[name],), cut=False))
    inputs = inputs_of(case, seed, Reals())
    task = whole_task(case.call, [x.shape for x in inputs])
    starts = [(0,) * x.ndim for x in inputs]
    theirs = gradients(case, inputs, seed, lambda tensors: with_torch(case, tensors))
    ours = gradients(
        case, inputs, seed, lambda tensors: run_equation(case.call, task, tensors, starts)
    )
    near = ROUNDING.get(name, 1e-10)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


def gradients(
    case: Applied,
    inputs: Inputs,
    seed: int,
    function: Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]],
) -> tuple[torch.Tensor, ...]:
    """The gradients of a random linear function of the outputs, for each operand of real
    numbers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.tensor(x, requires_grad=i not in case.below) for i, x in enumerate(inputs)]
    outputs = [out.double() for out in function(tensors)]
    weights = [torch.randn(out.shape, generator=generator) for out in outputs]
    wanted = [t for t in tensors if t.requires_grad]
    # Zeros instead of None: one side may not have noticed that it does not depend on an operand.
    return torch.autograd.grad(outputs, wanted, weights, allow_unused=True, materialize_grads=True)


@each("name", [*(operator.name for operator in SIMPLE), *SMOOTH])
@settings(max_examples=6)
@given(data=st.data(), seed=seeds)
def test_gradients_are_the_slopes_of_the_equation(name: str, data: st.DataObject, seed: int):
    """torch's gradient is the slope of the equation along a random direction. The equation is not
    differentiated automatically here."""
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


@each("name", EXACT)
@settings(max_examples=7)
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


@each("name", FRACTIONS)
@settings(max_examples=6)
@given(data=st.data(), seed=seeds)
def test_fractions_in_the_prime_field(name: str, data: st.DataObject, seed: int):
    case = data.draw(applied((OPERATORS[name],), cut=False))
    field, rng = PrimeField(), np.random.default_rng(seed)
    inputs = [
        rng.integers(*((0, case.below[i]) if i in case.below else (-4, 5)), t.shape)
        for i, t in enumerate(case.types)
    ]
    expected = with_torch(case, [torch.from_numpy(np.asarray(x, np.float64)) for x in inputs])
    outputs = reference(case, [np.asarray(x % field.prime) for x in inputs], field)
    for ours, theirs in zip(outputs, expected, strict=True):
        exact = [Fraction(n).limit_denominator(1000) for n in theirs.flatten().tolist()]
        assert np.ravel(ours).tolist() == [modulo(n, field.prime) for n in exact]


def as_objects(x: Any) -> Any:
    """Python's integers, which do not overflow, as an array of whatever rank."""
    result = np.empty(x.shape, object)
    result[...] = x.astype(object)
    return result


def modulo(value: int | Fraction, prime: int) -> int:
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, prime) % prime
