"""Steps of torch's DistributedDataParallel, to compare plans with: a helper, and a program.

    python ddp_steps.py RANKS FOLDER

The program trains ``Net`` on RANKS gloo ranks, from ``initial.pt`` in the folder and on the whole
batches of ``batches.pt``. Each rank takes its part of a batch. The program writes ``trained.pt``:
the losses, the gradients of the last step, and the state dict of rank 0, which is the one that
people save.
"""

from __future__ import annotations

import os
import subprocess
import sys
from faulthandler import dump_traceback_later
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from support.paths import ROOT
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SAMPLE = (3, 6, 4)
"""The shape of a sample of ``Net``."""


class Net(nn.Module):
    """Batch norms of images and of rows, with weights and without. One of them is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4, momentum=0.3)
        self.twice = nn.BatchNorm2d(4)
        self.linear = nn.Linear(96, 5)
        self.last = nn.BatchNorm1d(5, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.conv(x)))
        x = self.twice(torch.sigmoid(self.twice(x)))
        x = self.last(self.linear(x.flatten(1)))
        return torch.sigmoid(x).square().mean()


Trained = tuple[list[float], dict[str, Tensor], dict[str, Tensor]]


def trained(folder: Path, ranks: int, state: dict[str, Tensor], batches: list[Tensor]) -> Trained:
    """Losses, last gradients and state dict after a step for each of some whole batches."""
    torch.save(state, folder / "initial.pt")
    torch.save(batches, folder / "batches.pt")
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
    }
    subprocess.run(
        [sys.executable, __file__, str(ranks), str(folder)],
        check=True,
        env=environment,
        cwd=ROOT,
        timeout=120,
    )
    return torch.load(folder / "trained.pt", weights_only=True)


def rank_main(rank: int, ranks: int, folder: Path, rate: float) -> None:
    dump_traceback_later(90, exit=True)  # the end of a rank that hangs
    torch.set_num_threads(1)
    store = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    net = Net().double()
    net.load_state_dict(torch.load(folder / "initial.pt", weights_only=True))
    module = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    losses: list[float] = []
    for batch in torch.load(folder / "batches.pt", weights_only=True):
        optimizer.zero_grad()
        loss = module(batch.chunk(ranks)[rank])
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    if rank == 0:
        gradients = {name: p.grad for name, p in net.named_parameters()}
        torch.save((losses, gradients, net.state_dict()), folder / "trained.pt")
    dist.destroy_process_group()
    os._exit(0)  # torch waits without end now and then while it takes the module apart


def main() -> None:
    from support.runs.plain_steps import RATE

    ranks, folder = int(sys.argv[1]), Path(sys.argv[2])
    context = get_context("fork")  # so that torch is imported once
    started = [
        context.Process(target=rank_main, args=(rank, ranks, folder, RATE)) for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in started))


if __name__ == "__main__":
    main()
