"""What a forward keeps in its module is there after a capture as it was before. A step that depends
on what earlier steps have kept is refused, by the capture or by the comparison with the module."""

from __future__ import annotations

import copy

import pytest
import torch
from support.changing_modules import (
    REMEMBERING,
    REPLACING,
    ROWS,
    WIDTH,
    Change,
    TwoLayers,
    only_logs,
)
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError
from runtime.train.eager import ModuleAgreement, compare_module


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


@pytest.mark.parametrize("change", REPLACING, ids=lambda change: change.__name__)
def test_a_forward_that_changes_its_parameters_is_refused(change: Change) -> None:
    module = TwoLayers(change)
    before = dict(module.named_parameters())
    with pytest.raises(InputError, match=f"^model: {REPLACING[change]}"):
        capture(module, (torch.zeros(ROWS, WIDTH),), "model")
    after = dict(module.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("change", REMEMBERING, ids=lambda change: change.__name__)
def test_a_step_that_depends_on_earlier_ones_is_refused(change: Change) -> None:
    with pytest.raises(InputError, match=r"^model: a second step on the same numbers has another"):
        compared(change)


def test_a_step_that_only_logs_agrees() -> None:
    assert compared(only_logs).error is not None


def compared(change: Change) -> ModuleAgreement:
    module, inputs = TwoLayers(change), (torch.zeros(ROWS, WIDTH),)
    return compare_module(module, inputs, capture(module, inputs), "model")
