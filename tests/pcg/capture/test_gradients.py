"""Features of torch that change gradients: exact in the captured graph, or refused in one line."""

from __future__ import annotations

# Functions of autograd override backward as torch documents, with operands of their own.
# pyright: reportIncompatibleMethodOverride=false
import re

import pytest
import torch
from support.cases import a_third
from support.graphs.capturing import assert_agrees
from support.graphs.gradient_cases import EXACT, decorated
from torch import nn
from torch.autograd import Function
from torch.nn import functional as f
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from pcg.capture import capture
from pcg.errors import InputError


class Two(nn.Module):
    """Two layers and a function of them and the rows."""

    def __init__(self, function, prepare=lambda module: None):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("kept", torch.ones(4))
        self.function = function
        prepare(self)

    def forward(self, x):
        return self.function(self, x)


class Scales(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Reverses(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Clips(Function):
    """Only large gradients show that its backward is not the derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class Masks(Function):
    """A mask of zeros alone does not show that its backward is not the derivative."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask / 2, None


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Signs(Function):
    """A sign with the gradient of a clipped identity, as binary networks have it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Steps(Function):
    """Steps of a learned size, as quantized networks have them."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.save_for_backward(x, size)
        return (x / size).round() * size

    @staticmethod
    def backward(ctx, gradient):
        x, size = ctx.saved_tensors
        return gradient, (gradient * ((x / size).round() - x / size)).sum().view(1)


class Fails(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("not written yet")


def frozen(m):
    m.a.requires_grad_(False)


def hooked(m):
    m.a.register_forward_hook(lambda module, given, result: result * 2)
    m.b.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def normed(m):
    m.a = parametrizations.weight_norm(m.a)


def plain(m, x):
    return (m.b(torch.tanh(m.a(x))) * x).sum()


STRAIGHT = {
    "rounds": lambda m, x: m.b(StraightThrough.apply(m.a(x) * 3)).square().sum(),
    "signs": lambda m, x: m.b(Signs.apply(m.a(x) * 2)).square().sum(),
    "reverses": lambda m, x: m.b(Reverses.apply(m.a(x))).square().sum(),
    "scales": lambda m, x: m.b(Scales.apply(m.a(x))).square().sum(),
    "masks": lambda m, x: m.b(Masks.apply(m.a(x), x > 0)).square().sum(),
    "some without gradients": lambda m, x: (
        m.b(StraightThrough.apply(m.a(x) * 3)) * StraightThrough.apply(x)
    ).sum(),
}
"""Autograd functions that multiply each element of the gradient by a number."""
PREPARED = {"frozen": frozen, "forward hooks": hooked, "weight_norm": normed}


@pytest.fixture(autouse=True)
def same_values():
    torch.manual_seed(0)


def rows():
    return torch.randn(3, 4, dtype=torch.float64)


@pytest.mark.parametrize("name", a_third(EXACT))
def test_gradients_are_those_of_torch(name):
    assert_agrees(Two(EXACT[name]), (rows(),))


@pytest.mark.parametrize("name", a_third(STRAIGHT))
def test_gradients_that_a_function_multiplies_are_those_of_torch(name):
    assert_agrees(Two(STRAIGHT[name]), (rows(),))


def test_autocast_has_no_effect_and_a_line_says_so():
    """The precision of a plan decides the number formats."""
    module = Two(under_autocast)
    captured = capture(module, (rows().float(),))
    (note,) = captured.notes
    assert re.search(r"test_gradients\.py: line \d+: autocast has no effect in a plan", note)
    assert captured.graph == capture(Two(lambda m, x: m.a(x).sum()), (rows().float(),)).graph
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", a_third(PREPARED))
def test_modules_that_are_prepared_have_their_gradients(name):
    assert_agrees(Two(plain, PREPARED[name]), (rows(),))


def test_reentrant_checkpoint_is_captured_as_its_function():
    """Torch differentiates them by `backward` alone."""
    module = Two(lambda m, x: m.b(checkpoint(torch.tanh, m.a(x), use_reentrant=True)).sum())
    other = Two(lambda m, x: m.b(torch.tanh(m.a(x))).sum())
    assert capture(module, (rows(),)).graph == capture(other, (rows(),)).graph
    # If the operands have no gradients, torch gives the weights none either.
    blind = Two(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=True)).sum())
    assert {w.parameter for w in capture(blind, (rows(),)).weights} == {"b.weight", "b.bias"}


@pytest.mark.parametrize(
    ("function", "prepare"),
    [
        (plain, frozen),
        (lambda m, x: m.b(m.a(x).detach()).sum(), lambda m: None),
        (lambda m, x: m.b(decorated(m, x)).sum(), lambda m: None),
        (lambda m, x: (m.b(x) * f.one_hot(m.a(x).argmax(1), 4)).sum(), lambda m: None),
    ],
)
def test_parameters_without_gradients_are_not_trained(function, prepare):
    captured = capture(Two(function, prepare), (rows(),))
    assert {w.parameter for w in captured.weights} == {"b.weight", "b.bias"}
    assert set(captured.buffers.values()) == {"a.weight", "a.bias"}
    # Nothing is left to detach, so all operators can be cut.
    assert "aten.detach.default" not in captured.opaque


def under_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.a(x).float().sum()


def decays(m, x):
    with torch.no_grad():
        m.a.weight.mul_(0.9)
    return m.a(x).sum()


def doubles_in_silence(m, x):
    h = m.a(x)
    with torch.no_grad():
        h.mul_(2)
    return m.b(h).sum()


def through_a_view(m, x):
    h = m.a(x)
    h.detach()[0].mul_(2)
    return m.b(h).sum()


def freezes(m, x):
    m.a.requires_grad_(False)
    return plain(m, x)


def adds_hook(m, x):
    h = m.a(x)
    h.register_hook(lambda gradient: gradient / 2)
    return m.b(h).sum()


def adds_hooks(m, x):
    h = m.a(x)
    torch.autograd.graph.register_multi_grad_hook([h], lambda gradients: None)
    return m.b(h).sum()


@torch.library.custom_op("unity_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(lambda x: torch.empty_like(x))
doubled.register_autograd(lambda ctx, gradient: gradient * 3)

HERE = r"test_gradients\.py: line \d+: "
OWN = f"{HERE}autograd function {{}} has a backward of its own, expected the derivative"
REFUSED = {
    "clips": (lambda m, x: m.b(Clips.apply(m.a(x))).sum(), OWN.format("Clips")),
    "steps": (
        lambda m, x: m.b(Steps.apply(m.a(x), m.b.bias[:1])).sum(),
        r"Steps has a backward of its own \(its operands have other shapes than its result\)",
    ),
    "fails": (lambda m, x: m.b(Fails.apply(m.a(x))).sum(), "ValueError: not written yet"),
    "tensor hook": (adds_hook, f"{HERE}a hook by register_hook is lost"),
    "hook of several": (adds_hooks, f"{HERE}a hook by register_multi_grad_hook is lost"),
    "decay": (decays, "changes p_a_weight in place where gradients are off"),
    "in place": (doubles_in_silence, "changes a tensor with gradients in place"),
    "in place through a view": (through_a_view, "changes a tensor with gradients in place"),
    "freezes": (freezes, "forward changes requires_grad of parameter a.weight"),
    "custom operator": (lambda m, x: m.b(doubled(m.a(x))).sum(), "is no function of torch's own"),
    "gradients within": (
        lambda m, x: torch.autograd.grad(m.a(x).sum(), x)[0].sum(),
        f"{HERE}torch.autograd.grad takes gradients within forward",
    ),
}


@pytest.mark.parametrize("name", a_third(REFUSED))
def test_functions_that_change_gradients_are_refused_in_one_line(name):
    function, problem = REFUSED[name]
    with pytest.raises(InputError, match=problem) as raised:
        capture(Two(function).double(), (rows(),), "my.py:make")
    assert "\n" not in str(raised.value)


HOOKS = {
    "parameter": (
        lambda m: m.a.weight.register_hook(lambda gradient: gradient / 2),
        "a hook of parameter a.weight is lost",
    ),
    "after accumulation": (
        lambda m: m.b.bias.register_post_accumulate_grad_hook(lambda p: None),
        "a hook of parameter b.bias is lost",
    ),
    "module": (
        lambda m: m.a.register_full_backward_hook(lambda module, *gradients: None),
        r"a backward hook of a \(Linear\) is lost",
    ),
    "before a module": (
        lambda m: m.register_full_backward_pre_hook(lambda module, gradients: None),
        "a backward hook of the module",
    ),
}


@pytest.mark.parametrize("name", a_third(HOOKS))
def test_hooks_in_the_backward_pass_are_one_line(name):
    prepare, problem = HOOKS[name]
    with pytest.raises(InputError, match=problem):
        capture(Two(plain, prepare), (rows(),))


def test_global_hooks():
    everywhere = nn.modules.module
    handle = everywhere.register_module_full_backward_hook(lambda module, *gradients: None)
    try:
        with pytest.raises(InputError, match="a backward hook of all modules is lost"):
            capture(Two(plain), (rows(),))
    finally:
        handle.remove()
    forward = everywhere.register_module_forward_hook(
        lambda module, given, result: result * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        assert_agrees(Two(plain), (rows(),))
    finally:
        forward.remove()


def test_capture_restores_all_patched_functions_of_torch():
    watched = (torch.Tensor.register_hook, torch.inference_mode.__enter__, Function.apply)
    module = Two(adds_hook)
    with pytest.raises(InputError):
        capture(module, (rows(),))
    assert not module._forward_hooks
    assert watched == (
        torch.Tensor.register_hook,
        torch.inference_mode.__enter__,
        Function.apply,
    )
