"""A model for each family of timm at tiny size, in training mode: its graph agrees with it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("timm")
from support.public.compared import compared
from support.public.families import TIMM

QUICK = ("fasternet_t0",)
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in TIMM]


@pytest.mark.parametrize("name", CASES)
def test_graphs_agree_with_models_of_timm(name: str) -> None:
    torch.manual_seed(0)
    captured, _ = compared(*TIMM[name]())
    assert captured.opaque == ()
