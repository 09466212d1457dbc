"""A comparison with meta-pytorch's AutoParallel, if it is installed: both plan the same transformer
layer, and our simulator prices both plans. Prints seconds of a step and of planning."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch
from support.peers.autoparallel import found_placements, shardings_of
from torch import distributed

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.plan.training import Training
from search.planners.common import PlannerSetting
from search.planners.gspmd.planner import GspmdPlanner
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

pytestmark = pytest.mark.benchmark

WIDTH, HEADS, SAMPLES, LENGTH = 6144, 48, 8, 256
"""The sizes of the layer. Samples are for each row of devices."""


class Layer(torch.nn.Module):
    """Attention and a perceptron without biases, around residual sums."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.w1 = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.w2 = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (
            w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.wo(mixed.transpose(1, 2).flatten(-2))
        return x + self.w2(torch.relu(self.w1(x)))


class Trained(torch.nn.Module):
    """The layer with a loss, for our graph."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean()


@pytest.fixture
def many_devices():
    """A process group of 64 devices that do not exist."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=64)
    yield
    distributed.destroy_process_group()


def test_plan_of_a_layer_is_no_slower_than_autoparallels(many_devices):
    pytest.importorskip("autoparallel.api", reason="AutoParallel is not installed")
    if not torch.cuda.is_available():
        pytest.skip("AutoParallel's meshes need CUDA")
    sizes = {"data": 8, "model": 8}
    machine, library = load_machine("dgx-h100").with_nodes(8), load_library()
    training = Training("adam", "bf16")

    def inputs(device: str = "cuda") -> torch.Tensor:
        return torch.rand(SAMPLES * sizes["data"], LENGTH, WIDTH, device=device)

    with torch.device("meta"):
        layer = Layer()
    begin = perf_counter()
    placements = found_placements(layer, inputs, sizes)
    theirs_planned = perf_counter() - begin
    captured = capture(Trained(layer), (inputs("meta"),))
    named = {f"layer.{name}": own for name, own in placements.items()}
    told = tuple(shardings_of(captured, named, tuple(sizes)))
    mesh = ",".join(f"{name}={size}" for name, size in sizes.items())
    setting = PlannerSetting(machine, library, training)
    theirs = GspmdPlanner(setting, mesh, told).plan("layer", captured.graph)
    begin = perf_counter()
    ours = planner_of("joint", machine, library, 600.0, training, None).plan(
        "layer", captured.graph
    )
    ours_planned = perf_counter() - begin
    steps = [one.plan.estimates.step_seconds for one in (theirs, ours)]
    print(f"AutoParallel {steps[0] * 1e3:.4g} ms, planned in {theirs_planned:.1f} s")
    print(f"Unity        {steps[1] * 1e3:.4g} ms, planned in {ours_planned:.1f} s")
    print("\n".join(told))
    assert steps[1] <= steps[0] * (1 + 1e-9)
