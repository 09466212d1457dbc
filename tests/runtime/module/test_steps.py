"""Steps of a parallel module: the form of its calls, and the tensors that stay after them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from support.runs.own_loop import (
    BATCH,
    MODULES,
    RANKS,
    batch_of,
    captured,
    parallel,
    planned,
    words_planned,
)
from support.runs.simulated import on_ranks
from torch import Tensor, nn

from runtime.world.collectives import World


def test_a_loss_without_a_backward_pass_keeps_no_batch():
    plan = words_planned("data-parallel")

    def loop(world: World) -> Callable[[], object]:
        model = parallel(MODULES[world.rank], plan, world)
        loss = model(**batch_of(0))
        batch = weakref.ref(loss.grad_fn.next_functions[0][0].batch)
        assert batch() is not None
        return batch

    gc.collect()
    gc.disable()
    try:
        assert all(batch() is None for batch in on_ranks(RANKS, loop))
    finally:
        gc.enable()


class TwoInputs(nn.Module):
    """A loss of two inputs of one shape that are not alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.layer(left) * self.layer(right).sigmoid()).mean()


def test_calls_may_change_their_form_between_steps():
    module = TwoInputs().double()
    left, right = (torch.randn(BATCH, 6, dtype=torch.float64) for _ in range(2))
    plan = planned(captured(module, {"left": left, "right": right}), "data-parallel")
    calls = [
        ((left, left), {}),
        ((left, right), {}),
        ((right, left), {}),
        ((), {"right": left, "left": right}),
        ((), {"left": left, "right": left}),
        ((), {"left": left, "right": right}),
        ((right,), {"right": left}),
        ((left,), {"right": right}),
        ((left, right), {}),
    ]

    def loop(world: World) -> list[float]:
        model = parallel(module, plan, world)
        return [model(*args, **kwargs).item() for args, kwargs in calls]

    expected = [module(*args, **kwargs).item() for args, kwargs in calls]
    assert len(set(expected)) == 3
    for actual in on_ranks(RANKS, loop):
        assert actual == pytest.approx(expected, abs=1e-12)
