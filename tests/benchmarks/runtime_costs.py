"""A program of its own, for processes without the traces of others: what the runtime costs.

    python runtime_costs.py ddp PROCESSES        step of a data-parallel plan, and of torch's DDP
    python runtime_costs.py one                  step of a one-device plan, and of the module
    python runtime_costs.py peak plan|module     bytes that training takes at its peak

One line of JSON on the standard output.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from pcg.machine import load_machine
from pcg.models.mlp import MlpSize, mlp, sized
from runtime.collectives import World
from runtime.data import input_batch
from runtime.executor import Executor
from runtime.lower import Lowering
from search.mesh.planner import MeshPlanner
from substitutions.store import load_library

WIDTHS, SAMPLES = (1024,) * 9, 512
"""mlp with half of its layers, an eighth as wide."""
ROUNDS, WARM = 20, 3


class OneBatch:
    """The same data in every step, so that making it takes no time."""

    def __init__(self) -> None:
        self._made: dict[str, Tensor] = {}

    def piece(self, leaf, region, step) -> Tensor:
        if leaf.name not in self._made:
            self._made[leaf.name] = input_batch(leaf, 0, 0, region, torch.float32)
        return self._made[leaf.name]


def plan_step(world: World, samples: int):
    """A step by the data-parallel plan."""
    machine = load_machine("local").with_devices(world.size)
    planner = MeshPlanner(machine, load_library(), "data-parallel")
    plan = planner.plan("mlp", mlp(samples, WIDTHS)).plan
    program = Lowering(plan).program(world.rank)
    executor = Executor(program, world, source=OneBatch())
    optimizer = torch.optim.SGD(list(executor.weights.values()), lr=1e-4)

    def update(gradients) -> None:
        for register, gradient in gradients.items():
            executor.weights[register].grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    return lambda: executor.step(0, update)


def module_step(samples: int, wrap=lambda module: module):
    """The same step by torch alone, as it is usually written."""
    module: nn.Module = wrap(sized(MlpSize(WIDTHS), samples)[0])
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    x, y = torch.randn(samples, WIDTHS[0]), torch.randn(samples, WIDTHS[-1])

    def step() -> None:
        (loss,) = module(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compared(ours, theirs, meet=lambda: None) -> dict[str, float]:
    """Median seconds of both, and the quartiles of the ratios of pairs: one of each in a round,
    the other one first in every second round, so that what else goes on disturbs both alike."""
    found: tuple[list[float], list[float]] = ([], [])
    both = list(zip(found, (ours, theirs), strict=True))
    for number in range(ROUNDS + WARM):
        for seconds, step in both if number % 2 else both[::-1]:
            meet()
            start = perf_counter()
            step()
            meet()
            seconds.append(perf_counter() - start)
    a, b = (seconds[WARM:] for seconds in found)
    lower, ratio, upper = quantiles([x / y for x, y in zip(a, b, strict=True)], n=4)
    return {
        "plan_seconds": median(a),
        "torch_seconds": median(b),
        "ratio": ratio,
        "lower": lower,
        "upper": upper,
        "rounds": len(a),
    }


def rank_main(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    ours = plan_step(World(rank, ranks), SAMPLES)
    theirs = module_step(SAMPLES // ranks, nn.parallel.DistributedDataParallel)
    found = compared(ours, theirs, dist.barrier)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def peak_bytes(make) -> int:
    """What is resident at the peak of some steps, beyond what is before they are made ready."""
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    step = make()
    before = _field(status, "VmRSS")
    forget.write_text("5")  # which resets the peak
    for _ in range(WARM):
        step()
    weights = 4 * sum(a * b for a, b in pairwise(WIDTHS))
    return _field(status, "VmHWM") - before + weights


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main() -> None:
    match sys.argv[1:]:
        case ["ddp", ranks]:
            with tempfile.TemporaryDirectory() as folder:
                store = (Path(folder) / "store").as_uri()
                spawn(rank_main, (int(ranks), store), int(ranks))
        case ["one"]:
            torch.set_num_threads(1)
            print(json.dumps(compared(plan_step(World(), SAMPLES), module_step(SAMPLES))))
        case ["peak", what]:
            torch.set_num_threads(1)
            make = (
                (lambda: plan_step(World(), SAMPLES))
                if what == "plan"
                else (lambda: module_step(SAMPLES))
            )
            print(json.dumps({"bytes": peak_bytes(make)}))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
