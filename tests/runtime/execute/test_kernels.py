"""Each kernel, and torch itself as a number system, against the operators' equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import each, examples
from support.graphs.strategies import POSITIVE, applied, seeds
from support.graphs.torch_functions import default_dtype
from torch.utils._python_dispatch import TorchDispatchMode

from pcg.ops import OPERATORS
from pcg.placement.layout import grid, tasks
from pcg.placement.view import MachineView
from pcg.readings.evaluate import evaluate_call
from pcg.readings.ring import Reals
from runtime.execute.kernels import TorchReals, run_equation, run_task, run_whole, whole_task

COMPUTE = [op for op in OPERATORS.values() if op.parallel is None]


CASTS = {"to_float16": torch.float16, "to_bfloat16": torch.bfloat16, "to_float32": torch.float32}


@pytest.fixture(autouse=True)
def double():
    """Constants are made in torch's default format."""
    with default_dtype(torch.float64):
        yield


def assert_close(a, b, near=1e-10):
    torch.testing.assert_close(a.double(), b.double(), rtol=near, atol=near)


def numbers(shape, below, generator, *, positive=False):
    if below is not None:
        return torch.randint(below, shape, generator=generator).to(torch.float64)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values.abs() + 0.1 if positive else values).requires_grad_()


def operands(case, shapes, generator):
    """Random values for the operands of a call, or for blocks of them."""
    positive = case.call.name in POSITIVE
    return [
        numbers(shape, case.below.get(i), generator, positive=positive)
        for i, shape in enumerate(shapes)
    ]


def gradients(results, operands, generator):
    """The operands' gradients for random gradients of the results."""
    given = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in results]
    wanted = [x for x in operands if x.requires_grad]
    if not wanted:
        return ()
    # Zeros instead of None: one side may not have noticed that it does not depend on an operand.
    return torch.autograd.grad(results, wanted, given, allow_unused=True, materialize_grads=True)


@each("operator", COMPUTE, ids=lambda op: op.name)
@settings(max_examples=1, deadline=None)
@given(data=st.data(), seed=seeds)
def test_kernel_is_the_equation_forward_and_backward(operator, data, seed):
    """On the blocks of every task, cut in the ways of the operator's typing."""
    case = data.draw(applied([operator]))
    assume(all(cut == 1 for t in case.types for cut in t.degrees.slices))
    node, generator = case.node, torch.Generator().manual_seed(seed)
    for _, task in tasks(node, MachineView.packed(0, grid(node))):
        shapes, starts = blocks_of(case, task)
        blocks = operands(case, shapes, generator)
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


@settings(max_examples=30, deadline=None)
@given(case=applied(COMPUTE, cut=False), seed=seeds)
def test_torch_gives_what_numpy_gives(case, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [x.detach() for x in operands(case, [t.shape for t in case.types], generator)]
    task = whole_task(case.call, [t.shape for t in case.types])
    ours = run_equation(case.call, task, tensors, [(0,) * t.rank for t in case.types])
    wanted = evaluate_call(case.call, [x.numpy() for x in tensors], Reals())
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-10)


@each("dtype", [torch.float32, torch.float64])
@each("name", [o.name for o in COMPUTE if o.kernel is None and o.arity])
def test_an_equation_keeps_the_number_format(name, dtype):
    operator = OPERATORS[name]
    sizes = dict.fromkeys(operator.sizes, 2)
    call = operator(**dict.fromkeys(operator.attributes, 2.0) | sizes)
    results = run_whole(call, [torch.ones(3, 4, dtype=dtype)] * operator.arity)
    assert [r.dtype for r in results] == [dtype]


@each("dtype", [torch.float32, torch.bfloat16])
@each("operator", COMPUTE, ids=lambda op: op.name)
@examples(1)
@given(data=st.data(), seed=seeds)
def test_kernels_compute_in_the_format_of_their_operands(operator, dtype, data, seed):
    """Near the value of the equation in double precision, and in the operands' own format."""
    case = data.draw(applied([operator], cut=False))
    exact = operands(case, [t.shape for t in case.types], torch.Generator().manual_seed(seed))
    rounded = [x.detach().to(dtype) for x in exact]
    with default_dtype(torch.float32):
        ours = run_whole(case.call, rounded)
    task = whole_task(case.call, [t.shape for t in case.types])
    starts = [(0,) * t.rank for t in case.types]
    wanted = run_equation(case.call, task, [x.double() for x in rounded], starts)
    expected = CASTS.get(operator.name, dtype if rounded else torch.float32)
    near = 1e-4 if dtype == torch.float32 else 5e-2
    for a, b in zip(ours, wanted, strict=True):
        assert a.dtype == expected
        scale = max(1.0, float(b.abs().max()))
        assert_close(a.double() / scale, b / scale, near)


def test_equality_keeps_the_number_format():
    ring = TorchReals(torch.float32, torch.device("cpu"))
    equal = ring.apply("eq", [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])])
    assert equal.dtype == torch.float32
    assert equal.tolist() == [1.0, 0.0]


class Recorded(TorchDispatchMode):
    """Records the calls of torch."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.done.append(func)
        return func(*args, **(kwargs or {}))


def test_an_element_wise_equation_is_one_call_of_torch():
    """No arrays of indices are made. Those would take hundreds of times as long as the sum."""
    x = torch.randn(16, 16)
    with Recorded() as recorded:
        run_whole(OPERATORS["add"](), [x, x])
    assert recorded.done == [torch.ops.aten.add.Tensor]
