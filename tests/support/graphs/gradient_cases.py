"""Functions that switch gradients on and off, of a module with two layers. Their graphs have the
exact gradients."""

from __future__ import annotations

# Functions of autograd override backward as torch documents, with operands of their own.
# pyright: reportIncompatibleMethodOverride=false
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint


class SavesMemory(Function):
    """A function whose backward is the derivative of its forward."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.tanh(x) * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1 - torch.tanh(x) ** 2) * ctx.factor, None


class NewStyle(Function):
    """The same function in the newer two-part form, with a result that has no gradient."""

    @staticmethod
    def forward(x):
        return x * x, (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * 2 * ctx.saved_tensors[0]


def no_grad(m, x):
    with torch.no_grad():
        y = m.a(x)
    return (m.b(y) * m.a(x)).sum()


def nested(m, x):
    with torch.no_grad():
        y = m.a(x)
        with torch.enable_grad():
            z = m.b(y * 2 + m.a(x))
        y = y + z
    return (z * y * m.a(x)).sum()


def region_returns_the_loss(m, x):
    with torch.enable_grad():
        loss = (m.b(x) * m.a(x)).sum()
    with torch.no_grad():
        score = loss * 2 + m.a(x).mean()
    return loss, score


def inference(m, x):
    with torch.inference_mode():
        y = m.a(x)
        with torch.inference_mode(False):
            pass
    return (m.b(x) * m.a(x)).sum() + (m.b(x) + y.clone()).sum()


@torch.no_grad()
def decorated(m, x):
    return m.a(x)


def set_globally(m, x):
    torch.set_grad_enabled(False)
    y = m.a(x)
    torch.set_grad_enabled(True)
    return (m.b(x) * y * m.a(x)).sum()


def splits_off(m, x):
    """A region with a function of several results, and views of tensors that have gradients."""
    h = m.a(x)
    with torch.no_grad():
        low, high = h.split(2, 1)
        top = h.max(1).values
    return (m.b(h) * torch.cat([high, low], 1)).sum() + (h.sum(1) * top).sum()


def asks(m, x):
    h = m.a(x)
    with torch.no_grad():
        if not torch.is_grad_enabled():
            h = h * 3
    return m.b(h * m.a(x)).sum()


def through(m, x):
    h = m.a(x)
    return m.b(h + (h.round() - h).detach()).sum()


def local_buffer(m, x):
    """A tensor that is changed in place under no_grad has no gradients."""
    with torch.no_grad():
        total = torch.zeros_like(m.kept)
        total.add_(m.kept)
        total += m.a(x).mean(0)
    return (m.b(x) * m.a(x) * total).sum()


EXACT = {
    "data": lambda m, x: torch.nn.functional.linear(x, m.a.weight.data).sum() + m.b(x).sum(),
    "no_grad": no_grad,
    "enable_grad in no_grad": nested,
    "a region that makes the loss": region_returns_the_loss,
    "inference_mode": inference,
    "no_grad as a decorator": lambda m, x: (m.b(x) * decorated(m, x) * m.a(x)).sum(),
    "set_grad_enabled": set_globally,
    "parts of a region": splits_off,
    "is_grad_enabled": asks,
    "detach": lambda m, x: (m.b(x) * m.a(x).detach() * m.a(x)).sum(),
    "a new leaf": lambda m, x: m.b(m.a(x).detach().requires_grad_()).sum(),
    "straight through by detach": through,
    "changes in place of what has no gradients": local_buffer,
    "retain_grad": lambda m, x: (h := m.a(x), h.retain_grad(), m.b(h).sum())[2],
    "a checkpoint": lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False)).sum(),
    "a function of its derivative": lambda m, x: m.b(SavesMemory.apply(m.a(x), 3.0)).sum(),
    "a function in two parts": lambda m, x: m.b(torch.mul(*NewStyle.apply(m.a(x)))).sum(),
    "an index": lambda m, x: m.b(torch.where(m.a(x) > 0, m.a(x), x)).sum(),
}
