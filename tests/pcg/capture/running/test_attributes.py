"""What a forward keeps in its module is there after a capture as it was before."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pcg.capture import capture


class Logs(nn.Module):
    """Counts its calls, and keeps its loss in several places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.calls = 0
        self.history: list[object] = ["begin"]
        self.by_name: dict[str, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        loss = self.layer(x).square().mean()
        self.calls += 1
        self.last = loss.item()
        self.history.append(loss.detach())
        self.by_name["loss"] = loss.item()
        return loss


def test_attributes_are_as_before() -> None:
    module = Logs()
    assert capture(module, (torch.zeros(2, 3),)).opaque == ()
    assert (module.calls, module.history, module.by_name) == (0, ["begin"], {})
    assert not hasattr(module, "last")
    copy.deepcopy(module)(torch.zeros(2, 3))
    module(torch.zeros(2, 3))
    assert (module.calls, len(module.history)) == (1, 2)
    assert isinstance(module.last, float)
