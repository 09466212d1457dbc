"""A program of its own: steps of one device, predicted and measured, beside the module's own.

    python one_device.py cpu|cuda MACHINE [--profile FILE] [--plans FOLDER] CASE ...

A CASE is MODEL:BATCH:PRECISION or MODEL:BATCH:PRECISION:compiled. Each model of the zoo is planned
for one device of the machine. Its step by that plan takes turns with the step of the module itself,
both with plain SGD, and both eager or both by torch.compile. One line of JSON for each case is
printed: seconds in pairs, predictions by the machine file and by the profile; with CUDA also bytes,
predicted and at the peak of torch's allocator, and the longest kernels. Each case is measured by a
process of its own. Plans are kept in the folder, so that a later run need not search.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from runtime_costs import compared, steps_of, steps_of_module
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pcg.files import make_folder
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import MODELS, capture_model
from pcg.plan.plan import Plan, load_plan, save_plan
from pcg.plan.precision import Precision, precision_of
from pcg.plan.training import Training
from runtime.execute.precision import RunFormats, allow_tf32, run_formats
from runtime.world.collectives import World
from search.plan.planner import MeshPlanner
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library
from unity.support.speed import measured

SECONDS = 400
"""The seconds that the process of one model may take."""
LONGEST, NAME = 60, 90
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


def measure(case: Case, options: Namespace) -> dict[str, object]:
    """Plan, predict and measure a case."""
    allow_tf32(allowed=case.precision == "tf32")
    kind = options.kind
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    machine = load_machine(options.machine).with_devices(1)
    captured = capture_model(case.model, case.batch, 1)
    plan = _planned(case, captured.graph, machine, options.plans)
    simulated = simulate_plan(plan, machine)
    told: dict[str, object] = {
        "case": case.__dict__,
        "predicted_seconds": simulated.step_seconds,
        "predicted_bytes": simulated.memory.total,
    }
    if options.profile is not None:
        by_profile = simulate_plan(plan, *measured(machine, options.profile))
        told["profiled_seconds"] = by_profile.step_seconds
    world, below = World(device=device), _below(captured.graph)
    ours = steps_of(plan, world, compiles=case.compiles, precision=case.precision)
    taken = 0
    if kind == "cuda":
        told["plan_bytes"] = peak(ours)
        taken = torch.cuda.memory_allocated()
    module, examples = MODELS[case.model].make(case.batch)
    inputs = tree_map(lambda example: _drawn(example, below, device), examples)
    if case.compiles:
        module.compile()
    mixed = Mixed(module.to(device), run_formats(case.precision, device))
    theirs = steps_of_module(mixed, inputs)
    if kind == "cuda":
        told["torch_bytes"] = peak(theirs) - taken
    wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
    told |= compared(ours, theirs, wait)
    if kind == "cuda":
        told |= {"plan_kernels": kernels(ours), "torch_kernels": kernels(theirs)}
    return told


def _planned(case: Case, graph: Graph, machine: Machine, folder: Path | None) -> Plan:
    """The plan of a case, from the folder if it is there."""
    path = None if folder is None else folder / f"{'-'.join(map(str, astuple(case)))}.json"
    if path is not None and path.exists():
        return load_plan(path)
    training = Training("sgd", case.precision, case.compiles)
    plan = MeshPlanner(machine, load_library(), training=training).plan("", graph).plan
    if path is not None:
        make_folder(path.parent)
        save_plan(plan, path)
    return plan


def _below(graph: Graph) -> int:
    """The least bound of whole numbers in a graph's inputs."""
    return min((node.leaf.below for node in graph.leaves if node.leaf.below), default=2)


def _drawn(example: Tensor, below: int, device: torch.device) -> Tensor:
    """Random data of the kind of an example. Whole numbers are below ``below``, as all tables and
    losses of the model accept."""
    if example.is_floating_point():
        return torch.randn(example.shape, dtype=example.dtype, device=device)
    return torch.randint(below, example.shape, dtype=example.dtype, device=device)


class Mixed(nn.Module):
    """A module in a number format, as a user of torch trains it."""

    def __init__(self, module: nn.Module, formats: RunFormats) -> None:
        super().__init__()
        self._module, self._formats = module.to(formats.wide), formats

    def forward(self, *inputs: Tensor) -> object:
        if not self._formats.is_mixed:
            return self._module(*inputs)
        with torch.autocast(self._formats.device, self._formats.narrow):
            return self._module(*inputs)


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
    parser = ArgumentParser()
    parser.add_argument("kind", choices=("cpu", "cuda"))
    parser.add_argument("machine")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--plans", type=Path)
    options = parser.parse_args()
    if len(options.cases) == 1:
        print(json.dumps(measure(Case.of(options.cases[0]), options)), flush=True)
        return
    given = [word for word in sys.argv[1:] if word not in options.cases]
    for case in options.cases:
        command = [sys.executable, __file__, *given, case]
        subprocess.run(command, timeout=SECONDS, check=False)


if __name__ == "__main__":
    main()
