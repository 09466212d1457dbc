"""A program of its own, one of torchrun's processes: steps of a loop by a plan and by torch's own
ways, paired in one run. Prints on rank 0 the median ratio of seconds, for each way.

    torchrun --nproc-per-node 4 own_loops.py FOLDER

FOLDER has ``copied.json`` and ``sharded.json``, plans of data parallelism and of fully sharded
weights.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import unity

WIDTH, LAYERS, SAMPLES, PAIRS = 512, 6, 64, 100


class Layers(nn.Module):
    """Layers of equal width."""

    def __init__(self) -> None:
        super().__init__()
        parts = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.layers = nn.Sequential(*parts, nn.Linear(WIDTH, 10))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x), labels)


def inputs(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, WIDTH), torch.randint(10, (samples,))


def stepper(module: nn.Module):
    """A step of a plain loop; its seconds."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step(given: tuple[Tensor, Tensor]) -> float:
        dist.barrier()
        begin = perf_counter()
        module(*given).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        return perf_counter() - begin

    return step


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = Layers()
    sharded = copy.deepcopy(module)
    for part in sharded.layers:
        if isinstance(part, nn.Linear):
            fully_shard(part)
    fully_shard(sharded)
    pairs = {
        "copied": stepper(DistributedDataParallel(copy.deepcopy(module))),
        "sharded": stepper(sharded),
    }
    medians = {}
    for name, other in pairs.items():
        own = stepper(unity.parallelize(module, folder / f"{name}.json"))
        ratios = []
        for number in range(PAIRS):
            given = inputs()
            first, second = (own, other) if number % 2 else (other, own)
            seconds = first(given), second(given)
            ratios.append(seconds[0] / seconds[1] if number % 2 else seconds[1] / seconds[0])
        medians[name] = median(ratios[3:])
    if dist.get_rank() == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
