"""Planning, training and measuring on a GPU, as a user does. With two GPUs, also over NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="there is no GPU"),
]


def unity(*arguments: object) -> str:
    """The output of a command."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_agrees(model: str, devices: int, folder: Path, *options: str) -> None:
    """Check that a plan for GPUs of this computer trains as the module does on one CPU process."""
    plan = folder / "plan.json"
    given = ("--machine", "dgx-h200", "--devices", devices, "-o", plan)
    unity("unity.optimize", model, *given, *options)
    report = json.loads(unity("unity.run", plan, "--steps", 3, "--check", "--json"))
    assert report["devices"] == devices
    assert report["check"]["passes"]


@pytest.mark.parametrize("model", ["mlp-tiny", "dlrm-tiny", "bert-large-tiny", "resnext50-tiny"])
def test_one_gpu_trains_as_the_module_does(model, tmp_path):
    check_agrees(model, 1, tmp_path)


@pytest.mark.skipif(GPUS < 2, reason="there is one GPU")
@pytest.mark.parametrize("planner", ["joint", "data-parallel", "zero", "pipeline"])
def test_two_gpus_train_as_the_module_does(planner, tmp_path):
    check_agrees("mlp-tiny", 2, tmp_path, "--planner", planner)


def test_compiled_segments_in_bf16_train(tmp_path):
    plan = tmp_path / "plan.json"
    unity("unity.optimize", "mlp-tiny", "--machine", "dgx-h200", "--devices", 1, "-o", plan)
    run = ("--steps", 20, "--lr", 20, "--precision", "bf16", "--compile", "--json")
    steps = json.loads(unity("unity.run", plan, *run))["steps"]
    assert steps[-1]["loss"] < 0.9 * steps[0]["loss"]


def test_a_profile_of_a_gpu(tmp_path):
    profile = tmp_path / "profile.json"
    unity("unity.profile", "--machine", "dgx-h200", "--devices", 1, "-o", profile)
    assert json.loads(profile.read_text())
