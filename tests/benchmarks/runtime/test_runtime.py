"""The cost of the runtime beside torch alone, in one run on one computer: `make bench`.

No time is required, because the computer does other work as well. The ratio is printed beside its
intended bound, with its variation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

pytestmark = pytest.mark.benchmark

TIMES = {("ddp", "4"): 1.05, ("resnet", "2"): 1.05, ("one",): 1.02}
"""The measurements, and the intended bound of each ratio."""
MEMORY = 1.05


def measured(*arguments: str, program: str = "runtime_costs.py") -> dict[str, float]:
    script = Path(__file__).with_name(program)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("arguments", TIMES)
def test_seconds_of_a_step(arguments):
    seconds = measured(*arguments)
    rival = "the module alone" if arguments[0] == "one" else "DistributedDataParallel"
    model = "ResNet of 8 layers" if arguments[0] == "resnet" else "mlp 8 x 1024"
    print(
        f"\n{model}, {' '.join(arguments)}: plan {seconds['plan_seconds'] * 1e3:.1f} ms,"
        f" {rival} {seconds['torch_seconds'] * 1e3:.1f} ms; ratio of pairs {seconds['ratio']:.3f},"
        f" half of them {seconds['lower']:.3f} to {seconds['upper']:.3f}, bound {TIMES[arguments]}"
    )
    assert seconds["rounds"] >= 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(("model", "batch"), [("resnext50", "64"), ("bert-large", "4")])
def test_seconds_of_a_step_beside_torch_compile(model, batch):
    case = f"{model}:{batch}:fp32:compiled"
    seconds = measured("cuda", "dgx-h200", case, program="one_device.py")
    print(
        f"\n{model}, batch {batch}, {torch.cuda.get_device_name()}: plan"
        f" {seconds['plan_seconds'] * 1e3:.1f} ms,"
        f" torch.compile {seconds['torch_seconds'] * 1e3:.1f} ms;"
        f" ratio of pairs {seconds['ratio']:.3f}, half of them {seconds['lower']:.3f} to"
        f" {seconds['upper']:.3f}, bound 1"
    )
    assert seconds["rounds"] >= 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_at_the_peak():
    plan, module = (measured("peak", what)["bytes"] for what in ("plan", "module"))
    print(
        f"\nmlp 8 x 1024, one process: plan {plan / 1e6:.1f} MB, the module alone"
        f" {module / 1e6:.1f} MB, ratio {plan / module:.3f}, bound {MEMORY}"
    )
    assert plan / module <= MEMORY
