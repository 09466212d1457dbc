"""Plans are cut between experts if the experts' weights take most of the time, and train as torch
does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from support.mixtures import Words
from support.paths import ROOT
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import Shard
from torch.nn import functional as f

import unity
from pcg.placement.schedule import Reshard, schedule
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World

RANKS, STEPS, EXPERTS = 4, 3, 8
MACHINE = ROOT / "tests" / "data" / "four-devices.toml"


class Apart(nn.Module):
    """Experts that are separate modules, read side by side. Each takes all tokens."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS)
        self.up = nn.ModuleList(nn.Linear(width, hidden) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(hidden, width) for _ in range(EXPERTS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        rows = x.flatten(0, 1).expand(EXPERTS, -1, -1)
        made = self.linear(self.down, torch.relu(self.linear(self.up, rows)))
        mixed = (made * share.flatten(0, 1).t()[..., None]).sum(0)
        return f.mse_loss(mixed.view(x.shape), y)

    @staticmethod
    def linear(layers: nn.ModuleList, x: Tensor) -> Tensor:
        weights = torch.stack([layer.get_parameter("weight") for layer in layers])
        biases = torch.stack([layer.get_parameter("bias") for layer in layers])
        return x @ weights.transpose(1, 2) + biases[:, None]


def routed() -> nn.Module:
    """A layer of large experts with limited capacity."""
    router, experts = unity.nn.Router(8, EXPERTS, 2), unity.nn.Experts(EXPERTS, 8, 96)
    return Words(unity.nn.MixtureOfExperts(router, experts, capacity_factor=1.25))


def made(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return (routed() if name == "routed" else Apart(8, 96)).double()


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 4, 8, 8, dtype=torch.float64, generator=drawn)
    return x, y


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    state: dict[str, Tensor]


def trained(model: nn.Module) -> Trained:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses: list[float] = []
    for step in range(STEPS):
        loss = model(*batch_of(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(losses, {n: t.detach().clone() for n, t in model.state_dict().items()})


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.soak) for name in ("routed", "apart")],
)
def planned(request: pytest.FixtureRequest) -> tuple[str, unity.PlannedModel]:
    """The model's name and the fastest plan, without rewrites, which take longer to try."""
    name: str = request.param
    x, y = batch_of(0)
    model = made(name)
    example = x[:1], y[:1]
    return name, unity.optimize(
        model, example, machine=MACHINE, batch=len(x), mode="parallel", quiet=True
    )


def test_the_fastest_plan_cuts_between_experts(planned: tuple[str, unity.PlannedModel]):
    name, plan = planned
    speedup = plan.speedup
    assert speedup is not None
    assert speedup > 1.2
    products = [n for n in plan.plan.graph.operators if n.name == "batch_matmul"]
    for product in products:
        for operand in product.inputs:
            assert list(operand.type.degrees.dims) == [RANKS, 1, 1]
    said = plan.to_dtensor().parameters
    experts = {key: cut for key, cut in said.items() if "router" not in key}
    if name == "apart":  # their biases are small, and may be whole
        assert {"up.*.weight", "down.*.weight"} <= experts.keys()
    else:
        assert len(experts) == 3
    assert all(cut == (Shard(0),) for cut in experts.values()), experts


def test_expert_parallel_plan_trains_as_torch(planned: tuple[str, unity.PlannedModel]):
    name, plan = planned
    expected = trained(made(name))

    def on_rank(world: World) -> Trained:
        return trained(ParallelModule(models[world.rank], Lowering(plan.plan), world, 0))

    models = [made(name) for _ in range(RANKS)]
    for actual in on_ranks(RANKS, on_rank):
        torch.testing.assert_close(actual.losses, expected.losses, rtol=1e-9, atol=1e-9)
        assert list(actual.state) == list(expected.state)
        torch.testing.assert_close(actual.state, expected.state, rtol=1e-9, atol=1e-9)


class Exchanged(nn.Module):
    """Tokens that a layer makes and experts take."""

    def __init__(self) -> None:
        super().__init__()
        router, experts = unity.nn.Router(32, EXPERTS, 2), unity.nn.Experts(EXPERTS, 32, 256)
        self.first = nn.Linear(32, 32)
        self.mixture = unity.nn.MixtureOfExperts(router, experts, capacity_factor=1.25)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.mse_loss(self.mixture(self.first(x))[0], y)


def test_tokens_go_to_experts_and_come_back_by_all_to_all():
    """Samples are cut before and after the experts. In between each device sends its tokens to
    every other one: one all_to_all each way, and both again for the gradients."""
    x = torch.zeros(1, 64, 32)
    plan = unity.optimize(
        Exchanged(), (x, x), machine=MACHINE, batch=RANKS, mode="parallel", quiet=True
    )
    speedup = plan.speedup
    assert speedup is not None
    assert speedup > 1.2
    steps = schedule(plan.plan.graph, plan.plan.views).steps
    moved = [step for step in steps if isinstance(step, Reshard)]
    tokens = [step for step in moved if step.source.value.type.rank == 4]
    assert [step.transfer.swaps for step in tokens] == [((0, 1, 2, 3),)] * 2
    cuts = [step.source.layout.type.degrees.dims for step in tokens]
    assert cuts == [(RANKS, 1, 1, 1)] * 2  # by samples, then by experts
    programs = [Lowering(plan.plan).program(rank) for rank in range(RANKS)]
    assert all(tuple(range(RANKS)) in program.groups for program in programs)
    whole = [step for step in moved if step not in tokens and step.source.value.type.rank]
    assert all(step.transfer.kind in ("none", "local") for step in whole)
