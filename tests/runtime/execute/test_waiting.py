"""The host waits for a GPU once a step, to read the loss."""

from __future__ import annotations

import warnings

import pytest
import torch

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.training import Training
from runtime.execute.executor import Executor
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.optimizer import Updater
from runtime.world.collectives import World
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["mlp-tiny", "dlrm-tiny", "bert-large-tiny", "resnext50-tiny"])
def test_the_host_waits_once_a_step(model, precision):
    machine = load_machine("dgx-h100").with_devices(1)
    planner = MeshPlanner(machine, load_library(), training=Training("sgd", precision))
    plan = planner.plan(model, build_model(model, None, 1)).plan
    world = World(device=torch.device("cuda", 0))
    executor = Executor(Lowering(plan).program(0), world, precision)
    updater = Updater(executor.weights, Recipe(), world)
    executor.step(0, updater.update)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            executor.step(1, updater.update)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = [
        f"{wait.filename}:{wait.lineno}" for wait in waits if "synchroniz" in str(wait.message)
    ]
    assert len(places) == 1, places
