"""Parameters that are one weight in a plan keep their names in states and checkpoints."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support.runs.own_loop import captured, once, planned
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import Captured
from pcg.errors import InputError
from pcg.plan.plan import Plan
from runtime.checkpoints.checkpoint import newest_manifest
from runtime.checkpoints.shards import Shard
from runtime.module.module import ParallelModule
from runtime.module.resuming import ModuleCheckpoints
from runtime.program.lower import Lowering
from runtime.train.plain import state_dict
from runtime.world.collectives import World

RANKS, COUNT = 4, 4


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(COUNT))
        self.gate = nn.Linear(8, COUNT)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.stack([layer.get_parameter("weight") for layer in self.layers])
        biases = torch.stack([layer.get_parameter("bias") for layer in self.layers])
        each = torch.tanh(x.expand(COUNT, *x.shape) @ weights.mT + biases[:, None])
        return f.mse_loss((each * self.gate(x).softmax(-1).t()[..., None]).sum(0), x)


def drawn() -> Experts:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Experts().double()


DRAWN = drawn()
"""Drawn here, because ranks that are threads would draw in each other's order."""


def experts() -> Experts:
    return deepcopy(DRAWN)


def batch_of(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 8, dtype=torch.float64, generator=generator)


@once
def made() -> Captured:
    return captured(experts(), {"x": batch_of(0)})


@once
def plan_of(planner: str, ranks: int = RANKS) -> Plan:
    return planned(made(), planner, ranks)


PLANS = ("zero", "data-parallel")


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        model(batch_of(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def eagerly(steps: int) -> dict[str, Tensor]:
    module = experts()
    stepped(module, torch.optim.AdamW(module.parameters(), lr=0.05), range(steps))
    return dict(module.state_dict())


def parallel(name: str, world: World) -> ParallelModule:
    return ParallelModule(experts(), Lowering(plan_of(name)), world, 0)


def test_states_speak_the_names_of_the_module():
    expected = eagerly(2)

    def on_rank(world: World) -> tuple[dict[str, Tensor], set[str]]:
        model = parallel("zero", world)
        stepped(model, torch.optim.AdamW(model.parameters(), lr=0.05), range(2))
        state = model.state_dict()
        fresh = parallel("data-parallel", world)
        fresh.load_state_dict(state)
        again = fresh.state_dict()
        assert all(torch.equal(again[name], state[name]) for name in state)
        return state, {name for name, _ in model.named_parameters()}

    for state, names in on_ranks(RANKS, on_rank):
        assert list(state) == list(expected)
        torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-9)
        assert names == {"layers.*.weight", "layers.*.bias", "gate.weight", "gate.bias"}
        # Each is a separate tensor, as code that writes to it expects.
        assert state["layers.1.weight"].untyped_storage().nbytes() == 8 * 8 * 8


def trained(model: ParallelModule, folder: Path, last: int, *, saves: bool = False) -> None:
    """Go on from the newest checkpoint."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    first = model.load_checkpoint(folder, optimizer)
    stepped(model, optimizer, range(first, last))
    if saves:
        model.save_checkpoint(folder, optimizer, step=last)


@pytest.mark.parametrize("name", PLANS)
def test_checkpoints_go_on_with_another_plan(name: str, tmp_path: Path):
    """One process writes, and four go on. Its state dict has the names of the module."""
    trained(
        ParallelModule(experts(), Lowering(plan_of("joint", 1)), World(), 0),
        tmp_path,
        2,
        saves=True,
    )
    written, expected = state_dict(newest_manifest(tmp_path)), eagerly(2)
    assert written.keys() == expected.keys()
    torch.testing.assert_close(written, {n: expected[n] for n in written}, rtol=1e-9, atol=1e-9)

    def on_rank(world: World) -> dict[str, Tensor]:
        model = parallel(name, world)
        trained(model, tmp_path, 4)
        return model.state_dict()

    for state in on_ranks(RANKS, on_rank):
        torch.testing.assert_close(state, eagerly(4), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_four_ranks_write_each_element_of_the_state_once(name: str):
    """The elements of parameters and optimizer states, under the module's names."""

    def on_rank(world: World) -> tuple[list[Shard], dict[str, Tensor]]:
        model = parallel(name, world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        stepped(model, optimizer, range(1))
        shards = {place.leaf: place.parameter for place in model._own.places}
        return list(
            ModuleCheckpoints(model._own.engine, shards, {}).shards_of(optimizer)
        ), model.state_dict()

    by_rank = on_ranks(RANKS, on_rank)
    whole: dict[str, Tensor] = {}
    for shard in (shard for shards, _ in by_rank for shard in shards if shard.writes):
        target = whole.setdefault(shard.name, torch.full(shard.shape, torch.nan).double())
        ends = zip(shard.offsets, shard.tensor.shape, strict=True)
        at = tuple(slice(start, start + size) for start, size in ends)
        assert target[at].isnan().all()
        target[at] = shard.tensor.detach().double()
    assert not any(tensor.isnan().any() for tensor in whole.values())
    for parameter, tensor in by_rank[0][1].items():
        assert torch.equal(whole[f"model.{parameter}"], tensor)
        for state in ("exp_avg", "exp_avg_sq"):
            assert whole[f"optimizer.{parameter}.{state}"].shape == tensor.shape


def test_a_state_that_does_not_fit_changes_nothing():
    def on_rank(world: World) -> list[str]:
        model = parallel("zero", world)
        before = model.state_dict()
        said: list[str] = []
        short = {n: t for n, t in before.items() if n != "layers.2.weight"}
        for state in (short, {**before, "layers.2.weight": torch.zeros(8, 7)}):
            with pytest.raises(RuntimeError) as raised:
                model.load_state_dict(state)
            said.append(str(raised.value))
        after = model.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)
        return said

    for short, wide in on_ranks(RANKS, on_rank):
        assert "layers.2.weight is missing" in short
        assert "layers.2.weight has shape [8, 7], expected [8, 8]" in wide


def test_a_module_that_lacks_a_part_is_refused():
    def on_rank(world: World) -> str:
        module = experts()
        del module.layers[3]
        with pytest.raises(InputError) as raised:
            ParallelModule(module, Lowering(plan_of("zero")), world, 0)
        return str(raised.value)

    for said in on_ranks(RANKS, on_rank):
        assert "has no layers.3.weight, which the plan's model has" in said
