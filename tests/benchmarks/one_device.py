"""A program of its own: steps of one device, predicted and measured, beside the module's own.

    python one_device.py cpu|cuda MACHINE [--profile FILE] MODEL:BATCH:PRECISION[:compiled] ...

Each model of the zoo is planned for one device of the machine. Its step by that plan takes turns
with the step of the module itself, both with plain SGD and both eager or both by torch.compile.
One line of JSON for each is printed: seconds in pairs, predictions by the machine file and by the
profile; with CUDA also bytes, predicted and at the peak of torch's allocator, and the longest
kernels. Each model is measured by a process of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from runtime_costs import compared, steps_of, steps_of_module
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import MODELS, capture_model
from pcg.plan.precision import Precision, precision_of
from pcg.plan.training import Training
from runtime.execute.precision import allow_tf32, run_formats
from runtime.world.collectives import World
from search.plan.planner import MeshPlanner
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library
from unity.support.speed import measured

SECONDS = 400
"""The seconds that the process of one model may take."""

LONGEST, NAME = 14, 90
"""The number of kernels that are told by name, and the letters of a name."""


@dataclass(frozen=True)
class Case:
    """A model with a batch and a number format, eager or compiled."""

    model: str
    batch: int
    precision: Precision
    compiles: bool

    @staticmethod
    def of(text: str) -> Case:
        """Read ``MODEL:BATCH:PRECISION[:compiled]``."""
        model, batch, precision, *mode = text.split(":")
        return Case(model, int(batch), precision_of(precision), mode == ["compiled"])


def measure(case: Case, kind: str, machine_name: str, profile: Path | None) -> dict[str, object]:
    """Plan, predict and measure a case."""
    allow_tf32(allowed=case.precision == "tf32")
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    machine = load_machine(machine_name).with_devices(1)
    captured = capture_model(case.model, case.batch, 1)
    training = Training("sgd", case.precision, case.compiles)
    plan = MeshPlanner(machine, load_library(), training=training).plan("", captured.graph).plan
    simulated = simulate_plan(plan, machine)
    told: dict[str, object] = {
        "case": case.__dict__,
        "predicted_seconds": simulated.step_seconds,
        "predicted_bytes": simulated.memory.total,
    }
    if profile is not None:
        told["profiled_seconds"] = simulate_plan(plan, *measured(machine, profile)).step_seconds
    world, below = World(device=device), _below(captured.graph)
    ours = steps_of(plan, world, compiles=case.compiles, precision=case.precision)
    if kind == "cuda":
        told["plan_bytes"] = peak(ours)
        taken = torch.cuda.memory_allocated()
    module, examples = MODELS[case.model].make(case.batch)
    inputs = tree_map(lambda example: _drawn(example, below, device), examples)
    theirs = steps_of_module(_autocast(module.to(device), case, device), inputs)
    if kind == "cuda":
        told["torch_bytes"] = peak(theirs) - taken
    wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
    told |= compared(ours, theirs, wait)
    if kind == "cuda":
        told |= {"plan_kernels": kernels(ours), "torch_kernels": kernels(theirs)}
    return told


def _below(graph: Graph) -> int:
    """The least bound of whole numbers in a graph's inputs."""
    return min((node.leaf.below for node in graph.leaves if node.leaf.below), default=2)


def _drawn(example: Tensor, below: int, device: torch.device) -> Tensor:
    """Random data of the kind of an example. Whole numbers are below ``below``, as all tables and
    losses of the model accept."""
    if example.is_floating_point():
        return torch.randn(example.shape, dtype=example.dtype, device=device)
    return torch.randint(below, example.shape, dtype=example.dtype, device=device)


def _autocast(module: nn.Module, case: Case, device: torch.device) -> Callable[..., object]:
    """The module in the number format of a case, as a user of torch trains it."""
    if case.compiles:
        module.compile()
    formats = run_formats(case.precision, device)
    if not formats.is_mixed:
        return module.to(formats.wide)

    def forward(*inputs: Tensor) -> object:
        with torch.autocast(device.type, formats.narrow):
            return module(*inputs)

    forward.parameters = module.parameters
    return forward


def peak(step: Callable[[], object]) -> int:
    """The bytes of torch's allocator at the peak of the second step."""
    step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def kernels(step: Callable[[], object]) -> dict[str, object]:
    """The kernels of a step: their number and seconds, and the longest ones by name."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.self_device_time_total]
    events.sort(key=lambda event: -event.self_device_time_total)
    return {
        "number": sum(event.count for event in events),
        "seconds": sum(event.self_device_time_total for event in events) * 1e-6,
        "longest": [
            (event.key[:NAME], event.count, event.self_device_time_total * 1e-6)
            for event in events[:LONGEST]
        ],
    }


def main() -> None:
    kind, machine, *rest = sys.argv[1:]
    profile = Path(rest[1]) if rest[0] == "--profile" else None
    cases = rest[2:] if profile else rest
    if len(cases) == 1:
        print(json.dumps(measure(Case.of(cases[0]), kind, machine, profile)), flush=True)
        return
    options = ["--profile", str(profile)] if profile else []
    for case in cases:
        command = [sys.executable, __file__, kind, machine, *options, case]
        subprocess.run(command, timeout=SECONDS, check=False)


if __name__ == "__main__":
    main()
