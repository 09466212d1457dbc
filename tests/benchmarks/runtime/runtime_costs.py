"""A program of its own, for processes without the traces of others: what the runtime costs.

    python runtime_costs.py ddp PROCESSES        step of a data-parallel plan, and of torch's DDP
    python runtime_costs.py resnet PROCESSES     the same of a small ResNet, batch norms local
    python runtime_costs.py one                  step of a one-device plan, and of the module
    python runtime_costs.py peak plan|module     bytes that training takes at its peak

One line of JSON on the standard output.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from small_resnet import CLASSES, IMAGE, SmallResNet
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.models.mlp import MlpSize, mlp, sized
from pcg.plan.plan import Plan
from pcg.plan.precision import Precision
from runtime.execute.executor import Executor
from runtime.inputs.seeded import input_batch
from runtime.program.lower import Lowering
from runtime.world.collectives import World
from search.plan.planner import MeshPlanner
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library

WIDTHS, SAMPLES = (1024,) * 9, 512
"""An mlp with half of its layers, an eighth as wide."""
IMAGES = 32
"""The number of samples of the small ResNet on a process."""
ROUNDS, WARM = 20, 3


class OneBatch:
    """The same data in every step, made beforehand, so that making them takes no time."""

    counts = False
    constants = ()
    seed = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[str, Tensor] = {}

    def piece(self, leaf, region, step) -> Tensor:
        if leaf.name not in self._made:
            made = input_batch(leaf, 0, 0, region, torch.float32)
            self._made[leaf.name] = made.to(self._device)
        return self._made[leaf.name]


def plan_step(world: World, samples: int):
    """A step by the data-parallel plan."""
    return steps_of(data_parallel(world, samples), world)


def data_parallel(world: World, samples: int) -> Plan:
    machine = load_machine("local").with_devices(world.size)
    planner = MeshPlanner(machine, load_library(), "data-parallel")
    return planner.plan("mlp", mlp(samples, WIDTHS)).plan


def steps_of(plan: Plan, world: World, *, compiles: bool = False, precision: Precision = "fp32"):
    """A step by a plan, with plain SGD."""
    program = Lowering(plan).program(world.rank)
    source = OneBatch(world.device)
    executor = Executor(program, world, precision, source=source, compiles=compiles, drawn=False)
    for weight in executor.weights.values():
        weight.normal_(std=weight.shape[-1] ** -0.5)  # in place of hashes, which take minutes
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
    return steps_of_module(
        module, (torch.randn(samples, WIDTHS[0]), torch.randn(samples, WIDTHS[-1]))
    )


def steps_of_module(module: nn.Module, inputs: Sequence[Tensor]):
    """A step of a module that returns its loss first, with plain SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        given = module(*inputs)
        loss = given[0] if isinstance(given, tuple) else given
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compared(ours, theirs, meet=lambda: None) -> dict[str, float]:
    """Median seconds of both, and the quartiles of the ratios of pairs. A round has one of each, in
    alternating order, so that other work on the computer disturbs both alike."""
    series: tuple[list[float], list[float]] = ([], [])
    both = list(zip(series, (ours, theirs), strict=True))
    for number in range(ROUNDS + WARM):
        for seconds, step in both if number % 2 else both[::-1]:
            meet()
            start = perf_counter()
            step()
            meet()
            seconds.append(perf_counter() - start)
    a, b = (seconds[WARM:] for seconds in series)
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
    pair = compared(ours, theirs, dist.barrier)
    if rank == 0:
        print(json.dumps(pair))
    dist.destroy_process_group()


def resnet_main(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    world, samples = World(rank, ranks), IMAGES * ranks
    given = torch.empty(samples, *IMAGE), torch.zeros(samples, dtype=torch.long)
    captured = capture(SmallResNet(), given, "small resnet", ranks)
    machine, library = load_machine("local").with_devices(ranks), load_library()
    plan = MeshPlanner(machine, library, "data-parallel").plan("small resnet", captured.graph).plan
    ours = steps_of(of_module(plan, captured, library.rules), world)
    own = torch.randn(IMAGES, *IMAGE), torch.arange(IMAGES) % CLASSES
    theirs = steps_of_module(nn.parallel.DistributedDataParallel(SmallResNet()), own)
    pair = compared(ours, theirs, dist.barrier)
    if rank == 0:
        print(json.dumps(pair))
    dist.destroy_process_group()


def peak_bytes(make) -> int:
    """The resident bytes at the peak of some steps, minus those before weights are made."""
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    before = _field(status, "VmRSS")
    forget.write_text("5")  # this resets the peak
    step = make()
    for _ in range(WARM):
        step()
    return _field(status, "VmHWM") - before


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main() -> None:
    match sys.argv[1:]:
        case ["ddp", ranks]:
            with tempfile.TemporaryDirectory() as folder:
                store = (Path(folder) / "store").as_uri()
                spawn(rank_main, (int(ranks), store), int(ranks))
        case ["resnet", ranks]:
            with tempfile.TemporaryDirectory() as folder:
                store = (Path(folder) / "store").as_uri()
                spawn(resnet_main, (int(ranks), store), int(ranks))
        case ["one"]:
            torch.set_num_threads(1)
            print(json.dumps(compared(plan_step(World(), SAMPLES), module_step(SAMPLES))))
        case ["peak", what]:
            torch.set_num_threads(1)
            # Both processes have planned before, so they begin alike.
            plan = data_parallel(World(), SAMPLES)
            makes = {
                "plan": lambda: steps_of(plan, World()),
                "module": lambda: module_step(SAMPLES),
            }
            print(json.dumps({"bytes": peak_bytes(makes[what])}))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
