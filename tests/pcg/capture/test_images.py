"""Models of torchvision and timm at tiny size, in training mode: their graphs agree with them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchvision")
from support.public.compared import compared
from support.public.images import TORCHVISION

QUICK = ("convnext", "densenet")
CASES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in TORCHVISION
]


@pytest.mark.parametrize("name", CASES)
def test_graphs_agree_with_models_of_torchvision(name: str) -> None:
    torch.manual_seed(0)
    captured, _ = compared(*TORCHVISION[name]())
    assert captured.opaque == ()
