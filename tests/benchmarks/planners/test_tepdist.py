"""TePDist's plans, beside the plans that its authors publish.

Their Wide-ResNet of 250 million to 13 billion parameters gets one stage on two GPUs, because a
pipeline is slower there (alibaba/TePDist, examples/wide_resnet/README.md). Their paper states that
TePDist finds the plans of experts for GPT (arXiv:2302.08141, abstract). On GPUs of one node these
cut products as Megatron does, or the samples.
"""

from __future__ import annotations

from time import process_time

import pytest
import torch
from fidelity.models import Gpt
from fidelity.price import graph_of

from pcg.capture import capture
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models.resnext import ResNext, ResNextSize
from pcg.plan.training import Training
from search.planners.common import PlannerSetting
from search.planners.tepdist.planner import TepdistPlanner
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

pytestmark = pytest.mark.benchmark

WIDE = ResNextSize((3, 4, 6, 3), 128, 1, 128, 1024, 224)
"""Wide-ResNet-50 of about 250 million parameters."""
GPT = Gpt(24, 1024, 16, 1024, 51200, dropout=0.0)
"""GPT-2 of 345 million parameters, one of their examples."""
V100 = "p3-16xlarge"


def wide_resnet(devices: int, batch: int) -> Graph:
    """A Wide-ResNet whose batch norms take the statistics of each device's samples, so that stages
    are possible."""
    with torch.device("meta"):
        given = torch.zeros(batch, 3, WIDE.image, WIDE.image), torch.zeros(batch, dtype=torch.long)
        return capture(ResNext(WIDE), given, "wide-resnet", devices).graph


def setting(devices: int, training: Training) -> PlannerSetting:
    machine = load_machine(V100).with_devices(devices)
    return PlannerSetting(machine, load_library(), training)


def test_wide_resnet_has_one_stage_on_two_gpus():
    begin = process_time()
    planned = TepdistPlanner(setting(2, Training("adam"))).plan("wide", wide_resnet(2, 64))
    print(f"{planned.plan.estimates.step_seconds * 1e3:.4g} ms, {process_time() - begin:.0f} s CPU")
    assert planned.plan.pipeline is None


def test_gpt_has_the_plan_of_experts():
    """As fast as Megatron's best plan and data parallelism, priced alike."""
    asked = setting(8, Training("adam", "fp16"))
    graph = graph_of(GPT, 64)
    own = TepdistPlanner(asked).plan("gpt", graph).plan.estimates.step_seconds
    for name in ("megatron", "data-parallel"):
        expert = planner_of(name, asked.machine, asked.library, 120.0, asked.training, None)
        seconds = expert.plan("gpt", graph).plan.estimates.step_seconds
        print(f"tepdist {own * 1e3:.4g} ms, {name} {seconds * 1e3:.4g} ms")
        assert own <= seconds * (1 + 1e-9)
