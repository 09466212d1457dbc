"""Public models at tiny size, with their own losses: their graphs agree with them."""

from __future__ import annotations

import pytest
import torch
from support.cases import a_third
from support.public.compared import compared
from support.public.others import OTHERS

WITHOUT_EQUATION = {
    "u-net": {"aten.upsample_nearest2d.vec"},
    "recommender": {"aten.index.Tensor"},
}


@pytest.mark.parametrize("name", a_third(OTHERS))
def test_models_of_other_kinds(name: str) -> None:
    torch.manual_seed(0)
    captured, _ = compared(*OTHERS[name]())
    assert set(captured.opaque) <= WITHOUT_EQUATION.get(name, set[str]())
