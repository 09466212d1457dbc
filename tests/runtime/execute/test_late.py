"""Gradients of weights that are computed while the gradient of the other operand is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear

from runtime.execute.late import DelayedGradient, WeightsPass, parted
from runtime.execute.recompute import Notes


def product(blocks):
    return (blocks[0] @ blocks[1],)


def with_bias(blocks):
    return (linear(blocks[0], blocks[1].t(), blocks[2]),)


def leaves(seed: int, rows: int, width: int, bias: bool) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    shapes = [(2, rows, width), (width, 3), *([(3,)] if bias else [])]
    made = [torch.randn(s, generator=drawn, dtype=torch.float64) for s in shapes]
    return [tensor.requires_grad_() for tensor in made]


@settings(max_examples=25)
@given(seed=st.integers(0, 99), rows=st.integers(1, 4), width=st.integers(1, 4), bias=st.booleans())
def test_gradients_equal_torchs_and_that_of_the_weight_comes_last(seed, rows, width, bias):
    compute: Callable = with_bias if bias else product
    off, own, whole = (
        DelayedGradient(),
        leaves(seed, rows, width, bias),
        leaves(seed, rows, width, bias),
    )
    (expected,) = compute([torch.tanh(whole[0]), *whole[1:]])
    expected.square().sum().backward()
    order: list[str] = []
    own[0].register_post_accumulate_grad_hook(lambda _: order.append("operand"))
    own[1].register_post_accumulate_grad_hook(lambda _: order.append("weight"))
    (actual,) = parted(compute, 1, own[1], off.put_off, 7, [torch.tanh(own[0]), *own[1:]])
    torch.testing.assert_close(actual, expected)
    actual.square().sum().backward()
    assert order == ["operand"]
    assert off.beside == 7
    assert own[1].grad is None
    off.settle()
    assert order == ["operand", "weight"]
    for one, other in zip(own, whole, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_at_most_one_gradient_is_delayed():
    off, done = DelayedGradient(), []
    off.put_off(partial(done.append, 1), 3)
    off.put_off(partial(done.append, 2), 5)
    assert done == [1]
    assert off.beside == 5
    off.settle()
    off.settle()
    assert done == [1, 2]
    assert off.beside == -1


@pytest.mark.parametrize("which", [0, 1])
def test_product_with_one_gradient_delays_nothing(which):
    off, own = DelayedGradient(), leaves(0, 2, 2, False)
    own[which].requires_grad_(False)
    (output,) = parted(product, 1, own[1], off.put_off, 1, own)
    output.sum().backward()
    assert off.beside == -1
    assert own[1 - which].grad is not None


def test_product_with_late_gradient_does_not_save_its_output():
    """Saved are the operands alone."""
    off, (x, w) = DelayedGradient(), leaves(0, 2, 2, False)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        (output,) = parted(product, 1, w, off.put_off, 1, [x * 1.0, w])
    pointers = {tensor.data_ptr() for tensor in saved}
    assert output.data_ptr() not in pointers
    assert w.data_ptr() in pointers


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99), rows=st.integers(1, 4), width=st.integers(1, 4), again=st.booleans()
)
def test_a_pass_for_weights_has_the_gradients_of_torch(seed, rows, width, again):
    """Also for tensors that are recomputed for the backward pass and freed after it."""
    notes, left = Notes(), WeightsPass()
    own, whole = leaves(seed, rows, width, False), leaves(seed, rows, width, False)
    (expected,) = product([torch.tanh(whole[0]), whole[1]])
    expected.square().sum().backward()
    made: list[int] = []

    def tanh(blocks):
        made.append(1)
        return (torch.tanh(blocks[0]),)

    with notes.hooks() if again else nullcontext():
        (x,) = notes.run(tanh, [own[0]]) if again else tanh([own[0]])
        pack = notes.pack if again else None
        (actual,) = parted(product, 1, own[1], left.of("w"), 0, [x, own[1]], pack)
    del x
    actual.square().sum().backward()
    assert own[1].grad is None
    torch.testing.assert_close(own[0].grad, whole[0].grad, rtol=1e-12, atol=1e-12)
    notes.end(0)
    assert list(left.run()) == ["w"]
    torch.testing.assert_close(own[1].grad, whole[1].grad, rtol=1e-12, atol=1e-12)
    assert len(made) == 1 + again
    assert list(left.run()) == []


def test_weights_have_their_gradients_in_the_order_of_the_backward_pass():
    left, (x, w) = WeightsPass(), leaves(0, 2, 3, False)
    _, v = leaves(1, 2, 3, False)
    (between,) = parted(product, 1, w, left.of("w"), 0, [x, w])
    (output,) = parted(product, 1, v, left.of("v"), 0, [between, v])
    output.sum().backward()
    assert (w.grad, v.grad) == (None, None)
    assert list(left.run()) == ["v", "w"]
