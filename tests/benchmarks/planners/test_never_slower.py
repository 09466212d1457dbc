"""Plans of other systems' planners, beside ours: `make bench`.

Each planner has the same graph, prices, rules and seconds. Ours is never slower than any of them.
One simulator prices the plans of all. Pipelines with late updates are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import process_time

import pytest
import torch
from fidelity.models import Gpt
from fidelity.price import graph_of

from pcg.capture import capture
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.models.resnext import ResNext, ResNextSize
from pcg.plan.training import Training
from search.choices import OTHER_SYSTEMS
from substitutions.rules.store import load_library
from unity.nn import Experts, MixtureOfExperts, Router
from unity.support.planners import planner_of

pytestmark = pytest.mark.benchmark

SECONDS = 60.0
"""The time limit of each search."""
ROUNDING = 1e-9
GPT = Gpt(32, 2560, 32, 1024, 51200, dropout=0.0)
WIDE = ResNextSize((3, 4, 6, 3), 256, 1, 256, 1024, 224)
"""Wide-ResNet-50 of about 1 billion parameters: four times the channels of its stem, and as many
inside a block as its stem has."""


def routed() -> MixtureOfExperts:
    return MixtureOfExperts(Router(1024, 16, 2), Experts(16, 1024, 4096), capacity_factor=1.25)


class ExpertLayers(torch.nn.Module):
    """Two feed-forward layers of 16 experts. A token takes two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = routed(), routed()
        self.last = torch.nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.first(x)[0]
        return self.last(h + self.second(h)[0]).square().mean()


def gpt(devices: int) -> Graph:
    return graph_of(GPT, 8 * devices)


def wide_resnet(devices: int) -> Graph:
    """A Wide-ResNet whose batch norms take the statistics of each device's samples, as by
    default."""
    with torch.device("meta"):
        batch = 24 * devices
        given = torch.zeros(batch, 3, WIDE.image, WIDE.image), torch.zeros(batch, dtype=torch.long)
        return capture(ResNext(WIDE), given, "wide-resnet", devices).graph


def experts(devices: int) -> Graph:
    given = torch.zeros(2 * devices, 512, 1024)
    return capture(ExpertLayers(), (given,), "experts").graph


def zoo(name: str) -> Callable[[int], Graph]:
    return lambda devices: build_model(name, None, devices)


MODELS: dict[str, Callable[[int], Graph]] = {
    **{name: zoo(name) for name in ("mlp", "dlrm", "xdl", "candle-uno")},
    "experts": experts,
    **{name: zoo(name) for name in ("bert-large", "resnext50", "inception-v3")},
    "wide-resnet": wide_resnet,
    "gpt-2.6b": gpt,
}


@pytest.mark.parametrize("devices", [8, 16, 32, 64])
@pytest.mark.parametrize("name", MODELS)
def test_joint_plan_is_never_slower_than_other_planners(name: str, devices: int):
    machine = load_machine("dgx-a100").with_nodes(devices // 8)
    graph, library = MODELS[name](devices), load_library()
    library.concrete(graph)
    training, steps = Training("adam", "bf16"), dict[str, float]()
    for planner in ("joint", *OTHER_SYSTEMS):
        begin, stop = process_time(), "no plan"
        try:
            asked = planner, machine, library, SECONDS, training, None
            planned = planner_of(*asked).plan(name, graph)
            steps[planner], stop = planned.plan.estimates.step_seconds, planned.report.stop
        except NegativeAnswer:
            steps[planner] = inf
        spent = process_time() - begin
        print(
            f"{name:13s} {devices:3d} {planner:8s} {steps[planner] * 1e3:9.4g} ms"
            f" {steps[planner] / steps['joint']:6.3f} {spent:5.0f} s  {stop}",
            flush=True,
        )
    assert steps["joint"] <= min(steps.values()) * (1 + ROUNDING)
