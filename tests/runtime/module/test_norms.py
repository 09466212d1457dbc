"""Norms of gradients by torch's own functions are those of whole gradients."""

from __future__ import annotations

import copy
import io
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import a_third
from support.runs.own_loop import (
    MODULES,
    RANKS,
    assert_same,
    batch_of,
    eagerly,
    trained,
    words,
    words_cut_at_random,
    words_planned,
)
from support.runs.simulated import on_ranks
from torch import Tensor, nn

from pcg.errors import InputError
from runtime.module.gradient import Gradient
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World

PLANS = ("zero", "data-parallel")

FOREACH = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]


def with_gradients(plan: str, world: World) -> ParallelModule:
    model = ParallelModule(MODULES[world.rank], Lowering(words_planned(plan)), world, 0)
    for number in range(2):
        (model(**batch_of(number)).loss / 2).backward()
    return model


def eager() -> nn.Module:
    module = words()
    for number in range(2):
        (module(**batch_of(number))["loss"] / 2).backward()
    return module


@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_any_plan_trains_as_the_module_with_torchs_clipping(data):
    """Also if ranks hold no part of some weights."""
    plan = words_cut_at_random(data.draw)

    def loop(world: World):
        model = ParallelModule(MODULES[world.rank], Lowering(plan), world, 0)
        return trained(model, lambda most: nn.utils.clip_grad_norm_(model.parameters(), most))

    expected = eagerly(words())
    for actual in on_ranks(RANKS, loop):
        assert_same(actual, expected)


@pytest.mark.parametrize("plan", a_third(PLANS))
@pytest.mark.parametrize("kind", a_third([2.0, 1, 3.5, inf]))
def test_clipping_of_torch_equals_clipping_of_the_module(plan: str, kind: float):
    """The module's own function and torch's give the same norm and the same gradients."""

    def seen(world: World):
        norms: list[Tensor] = []
        kept: list[list[Tensor | None]] = []
        for clip in (0, 1):
            model = with_gradients(plan, world)
            parameters = model.parameters()
            if clip:
                norms.append(nn.utils.clip_grad_norm_(parameters, 0.1, kind))
            else:
                norms.append(model.clip_grad_norm_(0.1, kind))
            kept.append([p.grad for p in model.parameters()])
        assert all(type(norm) is Tensor for norm in norms)
        for ours, theirs in zip(*kept, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
        return norms

    module = eager()
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.1, kind)
    for norms in on_ranks(RANKS, seen):
        for norm in norms:
            torch.testing.assert_close(norm, expected, rtol=1e-9, atol=0)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


WAYS = {
    "each": lambda all: torch.stack([gradient.norm() for gradient in all]),
    "of one kind": lambda all: torch.stack([torch.norm(g, p=1) for g in all]).sum(),
    "squares": lambda all: sum(torch.linalg.vector_norm(g).item() ** 2 for g in all),
    "norm of another kind": lambda all: torch.linalg.vector_norm(
        torch.stack([g.norm(1) for g in all]), 2.0
    ),
    "largest": lambda all: max(float(torch.linalg.vector_norm(g, inf)) for g in all),
    "total": nn.utils.get_total_norm,
    "together": lambda all: torch.stack(FOREACH(all)),
    "beside another": lambda all: nn.utils.get_total_norm([torch.ones(3).double(), *all]),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_norms_over_ranks_equal_those_of_the_module(way):
    expected = torch.as_tensor(way(gradients(eager())))

    def seen(world: World) -> Tensor:
        # Read at the same time as by the other ranks.
        return torch.as_tensor(way(gradients(with_gradients("zero", world)))) * 1

    for actual in on_ranks(RANKS, seen):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)


def test_norm_of_order_0_is_refused():
    def seen(world: World):
        with pytest.raises(InputError, match="expected a number above 0"):
            nn.utils.clip_grad_norm_(with_gradients("zero", world).parameters(), 1.0, 0.0)

    on_ranks(RANKS, seen)


def test_other_functions_of_a_gradient_see_the_piece_of_this_rank():
    """The piece is a plain tensor. Copies and files are plain tensors, too."""

    def seen(world: World):
        gradient = gradients(with_gradients("data-parallel", world))[0]
        assert isinstance(gradient, Gradient)
        assert type(gradient * 2) is Tensor
        torch.testing.assert_close(copy.deepcopy(gradient), gradient.as_subclass(Tensor))
        file = io.BytesIO()
        torch.save(gradient, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=True)) is Tensor
        return gradient

    (first, *_) = on_ranks(RANKS, seen)
    assert first.shape == gradients(eager())[0].shape


def test_clipping_of_torch_returns_nan_for_gradients_that_are_nan():
    def seen(world: World):
        model = with_gradients("zero", world)
        first = next(p for p in model.parameters() if p.grad is not None and p.grad.numel())
        assert first.grad is not None
        if world.rank == 1:
            first.grad[:] = torch.nan
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        return norm

    assert all(norm.isnan() for norm in on_ranks(RANKS, seen))
