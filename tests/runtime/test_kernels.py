"""Each kernel, and torch itself as a number system, against the operators' equations."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import applied, seeds

from pcg.evaluate import evaluate_call
from pcg.layout import grid, tasks
from pcg.ops import OPERATORS
from pcg.ring import Reals
from pcg.view import MachineView
from runtime.kernels import TorchReals, run_equation, run_task, run_whole, whole_task

COMPUTE = [op for op in OPERATORS.values() if op.parallel is None]


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def numbers(shape, below, generator):
    if below is not None:
        return torch.randint(below, shape, generator=generator).to(torch.float64)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.requires_grad_()


def gradients(results, operands, generator):
    """The operands' gradients for random gradients of the results."""
    given = [torch.randn(r.shape, generator=generator, dtype=torch.float64) for r in results]
    wanted = [x for x in operands if x.requires_grad]
    # As zeros, not None: one side may not have noticed that it does not depend on an operand.
    return torch.autograd.grad(results, wanted, given, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("operator", COMPUTE, ids=lambda op: op.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=seeds)
def test_kernel_is_the_equation_forward_and_backward(operator, data, seed):
    """On the blocks of every task, cut as the operator's typing allows."""
    case = data.draw(applied([operator]))
    assume(all(cut == 1 for t in case.types for cut in t.degrees.slices))
    node, generator = case.node, torch.Generator().manual_seed(seed)
    for _, task in tasks(node, MachineView.packed(0, grid(node))):
        shapes, starts = blocks_of(case, task)
        below = [case.below.get(i) for i in range(len(shapes))]
        blocks = [numbers(s, b, generator) for s, b in zip(shapes, below, strict=True)]
        ours = run_task(case.call, task, blocks, starts)
        wanted = run_equation(case.call, task, blocks, starts)
        assert len(ours) == len(wanted)
        for a, b in zip(ours, wanted, strict=True):
            assert_close(a, b)
        state = generator.get_state()
        grads = gradients(ours, blocks, generator)
        generator.set_state(state)
        for a, b in zip(grads, gradients(wanted, blocks, generator), strict=True):
            assert_close(a, b)


def blocks_of(case, task):
    """The shape and first element of each operand's block on a task."""
    typing = case.call.typing(tuple(t.rank for t in case.types))
    shapes, starts = [], []
    for i, t in enumerate(case.types):
        shape, start = list(t.shape), [0] * t.rank
        for axis in typing.axes:
            position = axis.operands[i]
            if position is not None:
                # A merged dimension has the block of its leading index.
                inner = t.shape[position] // task.sizes[axis.name]
                shape[position] = task.length(axis.name) * inner
                start[position] = task.start(axis.name) * inner
        shapes.append(tuple(shape))
        starts.append(tuple(start))
    return shapes, starts


@settings(max_examples=60, deadline=None)
@given(case=applied(COMPUTE, cut=False), seed=seeds)
def test_torch_gives_what_numpy_gives(case, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        numbers(t.shape, case.below.get(i), generator).detach() for i, t in enumerate(case.types)
    ]
    task = whole_task(case.call, [t.shape for t in case.types])
    ours = run_equation(case.call, task, tensors, [(0,) * t.rank for t in case.types])
    wanted = evaluate_call(case.call, [x.numpy() for x in tensors], Reals())
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [op.name for op in COMPUTE if op.kernel is None])
def test_an_equation_keeps_the_number_format(name, dtype):
    operator = OPERATORS[name]
    call = operator(**dict.fromkeys(operator.attributes, 2.0))
    results = run_whole(call, [torch.ones(3, 4, dtype=dtype)] * operator.arity)
    assert [r.dtype for r in results] == [dtype]


def test_equality_keeps_the_number_format():
    ring = TorchReals(torch.float32, torch.device("cpu"))
    equal = ring.apply("eq", [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])])
    assert equal.dtype == torch.float32
    assert equal.tolist() == [1.0, 0.0]


def test_element_wise_equations_run_at_the_speed_of_torch():
    """No arrays of indices are made: those would take hundreds of times as long as the sum."""
    x = torch.randn(1024, 1024)
    add = OPERATORS["add"]()

    def best(function):
        times = []
        for _ in range(7):
            begin = perf_counter()
            function()
            times.append(perf_counter() - begin)
        return min(times)

    assert best(lambda: run_whole(add, [x, x])) < 5 * best(lambda: x + x) + 0.005
