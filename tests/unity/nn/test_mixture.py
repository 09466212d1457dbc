"""Routed layers against loops over tokens, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mixtures import Words, mixture_by_loops
from torch import Tensor, nn

import unity
from pcg.capture import capture
from runtime.train.eager import compare_module
from unity.nn.routing import SCORES

F64 = torch.float64


@st.composite
def layers(draw: st.DrawFn) -> tuple[unity.nn.MixtureOfExperts, Tensor]:
    """A small layer and an input with some equal tokens, so that experts get more tokens than they
    take."""
    torch.manual_seed(draw(st.integers(0, 99)))
    experts = draw(st.integers(1, 5))
    top_k, width = draw(st.integers(1, experts)), draw(st.integers(1, 4))
    router = unity.nn.Router(
        width,
        experts,
        top_k,
        scores=draw(st.sampled_from(SCORES)),
        normalize=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 2.5))),
        correction=draw(st.booleans()),
        bias=draw(st.booleans()),
    )
    if router.correction is not None:
        router.correction.normal_()
    inner = unity.nn.Experts(
        experts,
        width,
        draw(st.integers(1, 3)),
        gated=draw(st.booleans()),
        activation=draw(st.sampled_from(("silu", "gelu", "relu"))),
        bias=draw(st.booleans()),
    )
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    group = draw(st.sampled_from((None, 1, length, rows * length)))
    factor = draw(st.sampled_from((None, 0.01, 0.5, 1.0, 1.25, 100.0)))
    shared = nn.Linear(width, width) if draw(st.booleans()) else None
    moe = unity.nn.MixtureOfExperts(
        router, inner, shared=shared, capacity_factor=factor, group=group
    )
    x = torch.randn(rows, length, width, dtype=F64)
    if draw(st.booleans()):
        x[:, 1:] = x[:, :1]
    return moe.double(), x.requires_grad_()


@given(layers())
@settings(max_examples=50, deadline=None)
def test_a_layer_is_the_loop(made: tuple[unity.nn.MixtureOfExperts, Tensor]):
    moe, x = made
    of = [x, *moe.parameters()]
    out, routing = moe(x)
    expected = mixture_by_loops(moe, x)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-12)
    assert routing.logits.shape == (*x.shape[:-1], moe.router.experts)
    upstream = torch.randn_like(out)
    gradients = torch.autograd.grad(out, of, upstream, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected, of, upstream, allow_unused=True, materialize_grads=True)
    for own, other in zip(gradients, wanted, strict=True):
        assert torch.allclose(own, other, rtol=1e-10, atol=1e-12)


def test_ties_are_chosen_and_ranked_alike():
    """Equal tokens choose the same experts, and the first ones are taken."""
    router, experts = unity.nn.Router(3, 4, 2), unity.nn.Experts(4, 3, 5)
    moe = unity.nn.MixtureOfExperts(router, experts, capacity_factor=1.0).double()
    nn.init.zeros_(router.logits.weight)
    x = torch.randn(2, 6, 3, dtype=F64)
    out, routing = moe(x)
    assert (routing.weights == 0.5).all()
    assert torch.allclose(out, mixture_by_loops(moe, x), atol=1e-13)
    # Each of two experts takes 3 tokens: the last three tokens of a row are dropped.
    assert out[:, :3].abs().sum(-1).min() > 0
    assert not out[:, 3:].any()


@pytest.mark.parametrize("factor", [1.0, pytest.param(None, marks=pytest.mark.soak)])
def test_a_graph_has_no_part_that_is_kept_whole(factor: float | None):
    """All operators have equations or are cut between slices, and the graph agrees with the
    module."""
    torch.manual_seed(0)
    mixtures = [
        unity.nn.MixtureOfExperts(
            unity.nn.Router(4, 6, 2, scores=scores, correction=True, noise=0.1),
            unity.nn.Experts(6, 4, 8, bias=True),
            shared=nn.Linear(4, 4),
            capacity_factor=factor,
        )
        for scores in SCORES
    ]
    model = Words(*mixtures, balance=0.1)
    inputs = (torch.randn(4, 6, 4), torch.randn(4, 6, 4))
    captured = capture(model, inputs)
    assert not captured.opaque
    assert len(captured.draws) == 3
    comparison = compare_module(model, inputs, captured, "model")
    assert comparison.error is not None, comparison
    assert comparison.error < 1e-12


def test_an_even_router_has_the_least_loss():
    """If all experts are chosen equally often with equal probability, the loss is top_k."""
    logits = torch.zeros(6, 3)
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0]] * 2)
    even = unity.nn.Routing(chosen, torch.ones(6, 2), logits)
    assert unity.nn.load_balancing_loss(even).item() == pytest.approx(2.0)
    leaning = logits.clone()
    leaning[:, 0] = 3.0
    uneven = unity.nn.Routing(torch.zeros_like(chosen), torch.ones(6, 2), leaning)
    assert unity.nn.load_balancing_loss(uneven).item() > 2.5
    assert unity.nn.router_z_loss(even).item() == pytest.approx(torch.tensor(3.0).log().item() ** 2)


def test_noise_is_drawn_in_training_alone():
    router = unity.nn.Router(4, 3, 1, noise=0.5)
    x = torch.randn(5, 4)
    assert not torch.equal(router(x).logits, router(x).logits)
    router.eval()
    assert torch.equal(router(x).logits, router.logits(x))
    near = router.train()(torch.ones(1000, 4)).logits - router.logits.weight.sum(1)
    assert near.abs().max() <= 0.5 * router.logits.weight.abs().sum(1).max() + 1e-6


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: unity.nn.Router(4, 3, 4), "top_k is 4, expected 1 to 3"),
        (lambda: unity.nn.Router(4, 3, 0), "top_k is 0, expected 1 to 3"),
        (lambda: unity.nn.Router(4, 3, 1, scores="tanh"), "scores are 'tanh'"),
        (lambda: unity.nn.Router(4, 3, 1, noise=1.0), "noise is 1.0"),
        (lambda: unity.nn.Experts(3, 4, 4, activation="tan"), "activation is 'tan'"),
        (lambda: mixture(experts=4), "the router has 3 experts, but experts has 4"),
        (lambda: mixture(capacity_factor=0.0), "capacity_factor is 0.0"),
        (lambda: mixture(capacity_factor=float("nan")), "capacity_factor is nan"),
        (lambda: mixture(group=0), "group is 0"),
        (
            lambda: mixture(group=4, capacity_factor=1.0)(torch.zeros(2, 3, 4)),
            "6 tokens, expected a multiple",
        ),
        (
            lambda: mixture(capacity_factor=1.0)(torch.zeros(2, 0, 4)),
            "0 tokens, expected a multiple of the group of 0",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make: Callable[[], object], said: str):
    with pytest.raises(unity.InputError) as raised:
        make()
    assert said in str(raised.value)


def mixture(experts: int = 3, **options: float | None) -> unity.nn.MixtureOfExperts:
    inner = unity.nn.Experts(experts, 4, 2)
    return unity.nn.MixtureOfExperts(unity.nn.Router(4, 3, 1), inner, **options)  # pyright: ignore[reportArgumentType]
