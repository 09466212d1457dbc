"""A user's training loop over a module whose plan is an interleaved pipeline."""

from __future__ import annotations

from copy import deepcopy

import torch
from support.plans.pipelines import in_stages
from support.runs.own_loop import BATCH, assert_same, captured, trained
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.nn import functional

from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library


class Layers(nn.Module):
    """Layers one after the other. The output of the first is used once more at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.later = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        first = self.first(x)
        return {"loss": functional.cross_entropy(self.head(self.later(first) + first), labels)}


def numbers_of(number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return {"x": x, "labels": torch.randint(5, (BATCH,), generator=generator)}


def test_each_rank_has_the_results_of_the_module():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Layers().double()
    made = captured(module, numbers_of(0))
    plan = in_stages(made.graph, load_library(), 2, 2, interleave=2, devices=2)
    plan = of_module(plan, made, ())
    modules = [deepcopy(module) for _ in range(2)]

    def loop(world):
        model = ParallelModule(modules[world.rank], Lowering(plan), world, 0)
        return trained(model, model.clip_grad_norm_, numbers_of, 2)

    actual = on_ranks(2, loop)
    expected = trained(
        module, lambda most: nn.utils.clip_grad_norm_(module.parameters(), most), numbers_of, 2
    )
    for own in actual:
        assert_same(own, expected)
