"""Models of torch alone, as people write them: their graphs agree with them, or the line is named
that cannot be captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.public.by_hand import BY_HAND
from support.public.by_hand.inputs import CLASSES, FEATURES, SAMPLES
from support.public.compared import compared
from support.public.planned import row
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import capture
from pcg.errors import InputError

IN_EACH_RUN = ("vae", "gan-discriminator", "word2vec", "dqn", "mixup")
WHOLE = {"mixup": {"argsort": 1}}
"""The functions that are kept whole, with the number of their calls."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in IN_EACH_RUN else pytest.mark.soak) for n in BY_HAND],
)
def test_models_written_by_hand(name: str) -> None:
    torch.manual_seed(0)
    captured, _ = compared(*BY_HAND[name]())
    assert row(name, "", captured, 0.0, {}).whole == WHOLE.get(name, {})


class Parts(nn.Module):
    """Layers for a loss that is refused."""

    def __init__(self, loss: Callable[[Parts, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
        self.lstm = nn.LSTM(1, CLASSES, batch_first=True)
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self, x, labels)


def packed(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    sequences = nn.utils.rnn.pack_padded_sequence(
        x.unsqueeze(-1), labels + 1, batch_first=True, enforce_sorted=False
    )
    states, _ = nn.utils.rnn.pad_packed_sequence(m.lstm(sequences)[0], batch_first=True)
    return f.cross_entropy(states.mean(1), labels)


def penalty(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(m.layer(x).sum(), x, create_graph=True)
    return ((gradient.norm(2, 1) - 1) ** 2).mean()


def equation(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda point: m.layer(point).sum()))(x).sum()


def averaged(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        for mean, weight in zip(m.other.parameters(), m.layer.parameters(), strict=True):
            mean.mul_(0.99).add_(weight, alpha=0.01)
        target = m.other(x)
    return f.mse_loss(m.layer(x), target)


def aligned(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    scores = m.layer(x).log_softmax(-1).expand(4, SAMPLES, CLASSES)
    lengths = torch.full((SAMPLES,), 4)
    return f.ctc_loss(scores, labels.clamp(min=1)[:, None], lengths, torch.ones_like(lengths))


def selected(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    return m.layer(x)[labels > 1].cumsum(0).mean()


def looped(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    chosen = m.layer(x).argmax(1)
    made = torch.zeros(SAMPLES, CLASSES)
    for number, expert in enumerate((m.layer, m.other)):
        of_expert = chosen == number
        if of_expert.any():
            made[of_expert] += expert(x[of_expert])
    return f.cross_entropy(made, labels)


def hooked(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    logits = m.layer(x)
    logits.register_hook(lambda gradient: gradient * 2)
    return f.cross_entropy(logits, labels)


def seeded(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(CLASSES)
    return f.cross_entropy(m.layer(x) + noise, labels)


def by_gradient(m: Parts, x: Tensor, labels: Tensor) -> Tensor:
    gradient = m.layer.weight.grad
    scale = 1.0 if gradient is None else gradient.norm()
    return f.cross_entropy(m.layer(x), labels) / scale


HERE = r"test_by_hand\.py: line \d+: "
REFUSED: dict[Callable[[Parts, Tensor, Tensor], Tensor], str] = {
    packed: HERE + "a packed sequence has sizes that depend on values",
    penalty: HERE + "torch.autograd.grad takes gradients within forward",
    equation: HERE + "torch.func.grad takes gradients within forward",
    averaged: HERE + r"aten.mul_.Tensor changes p_other_\w+ in place where gradients are off",
    aligned: HERE + r"aten\._ctc_loss\.Tensor has a size that depends on values",
    seeded: HERE + "torch.manual_seed sets the state of random numbers",
    by_gradient: HERE + "reads a gradient of an earlier backward pass",
    selected: HERE + "aten.cumsum.default has a size that depends on values",
    looped: HERE + "branches on the values of a tensor",
    hooked: HERE + "a hook by register_hook is lost",
}


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_refusal_is_one_line_with_the_place(
    loss: Callable[[Parts, Tensor, Tensor], Tensor],
) -> None:
    labels = torch.arange(SAMPLES) % CLASSES
    with pytest.raises(InputError, match=REFUSED[loss]) as raised:
        capture(Parts(loss), (torch.randn(SAMPLES, FEATURES), labels))
    assert "\n" not in str(raised.value)
