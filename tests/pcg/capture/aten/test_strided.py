"""Views by strides that reach beyond their tensor are refused by their line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError

BEYOND = {
    "before it": lambda x: x[2:].as_strided((2, 3), (6, 1), 1),
    "beside it": lambda x: x[:, :4].as_strided((3, 6), (6, 1)),
    "copies": lambda x: x[:, None].expand(4, 2, 6).as_strided((2, 3), (6, 1), 1),
    "replaced": lambda x: torch.as_strided_scatter(x, x[:2, :2], (2, 2), (6, 1), 1),
}
"""Views of memory that a plan would not keep, because the plan decides how tensors lie in
memory."""


@pytest.mark.parametrize("name", BEYOND)
def test_view_beyond_its_tensor_is_refused_by_its_line(name: str) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return BEYOND[name](self.layer(x)).square().sum()

    with pytest.raises(InputError, match=r"line \d+: aten.as_strided\S* reads memory beside"):
        capture(Reads(), (torch.zeros(4, 6),))
