"""A module that is too large to run is compared as a small copy, or reported as not compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unity
from pcg.capture import Captured
from pcg.errors import InputError
from runtime.train.eager import compare_captured
from unity.api import optimizing
from unity.api.shrunk import shrunk


@dataclass
class Config:
    """A configuration as in transformers."""

    num_hidden_layers: int = 3
    hidden_size: int = 2048
    vocab_size: int = 5000
    pad_token_id: int | None = 4000
    layer_types: list[str] = field(default_factory=lambda: ["relu", "tanh", "relu"])
    least: int = 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


class Deep(nn.Module):
    """Layers of the kinds that the configuration lists, and a buffer that only code fills."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.hidden_size < config.least:
            raise ValueError("too narrow")
        self.config, width = config, config.hidden_size
        self.table = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList(
            nn.Linear(width, width) for _ in range(config.num_hidden_layers)
        )
        self.head = nn.Linear(width, config.vocab_size)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids) * self.scale
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = x + getattr(torch, kind)(layer(x))
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def deep(hidden_size: int = 2048, least: int = 0) -> Deep:
    with torch.device("meta"):
        return Deep(Config(hidden_size=hidden_size, least=least))


TEXTS = (torch.zeros(2, 64, dtype=torch.long),) * 2


def planned(model: nn.Module) -> unity.PlannedModel:
    return unity.optimize(model, TEXTS, devices=1, planner="data-parallel", quiet=True)


def test_a_large_module_is_compared_as_a_small_copy():
    model = deep()
    agreement = planned(model).agreement
    assert agreement is not None
    assert agreement.copy == "a copy with 2 layers"
    assert agreement.error is not None
    assert agreement.error < 1e-12
    assert agreement.gradients == 7
    assert model.config == Config()


def test_small_copy_is_as_narrow_as_it_has_to_be():
    copy = shrunk(deep(hidden_size=16384))
    assert copy is not None
    small, words = copy
    assert words == "a copy with 2 layers, 1/8 as wide"
    assert not any(parameter.is_meta for parameter in small.parameters())


def test_model_that_cannot_be_shrunk_is_reported_as_not_compared():
    agreement = planned(deep(hidden_size=4096, least=4096)).agreement
    assert agreement is not None
    assert agreement.error is None
    assert "parameters, more than" in str(agreement)


def test_a_copy_whose_graph_differs_is_refused(monkeypatch: pytest.MonkeyPatch):
    def other(name: str, captured: Captured, make: object):
        raise InputError(name, "differs")

    assert optimizing.compare_captured is compare_captured
    monkeypatch.setattr(optimizing, "compare_captured", other)
    with pytest.raises(InputError, match="Deep, a copy with 2 layers: differs"):
        planned(deep())
