"""Communication between the ranks of a run: torch.distributed, or nothing where there is one."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from pcg.errors import InputError, UnityError
from runtime.program import Group

Kind = Literal["cpu", "gpu"]


class CommunicationError(UnityError):
    """Another rank could not be reached in time: most often because it has ended."""


@dataclass
class World:
    """The ranks of a run, seen from one of them, and the device on which it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _groups: dict[Group, dist.ProcessGroup | None] = field(
        default_factory=dict[Group, dist.ProcessGroup | None]
    )
    """Every group that has been created, by all ranks; None where this one is no member."""

    def prepare(self, groups: Iterable[Group]) -> None:
        """Create the process groups that do not exist yet.

        All ranks have to call this with the same groups in the same order: creating a group is
        itself a collective of all of them.
        """
        everyone = tuple(range(self.size))
        for group in groups:
            if group not in self._groups and len(group) > 1:
                with self._reporting(f"creating the group {group}"):
                    whole = group == everyone
                    made = dist.group.WORLD if whole else dist.new_group(list(group))
                    # A rank that is no member is given a placeholder.
                    self._groups[group] = made if isinstance(made, dist.ProcessGroup) else None

    def all_reduce(self, values: Tensor, group: Group) -> Tensor:
        """The sum of the members' tensors. ``group`` has been prepared and holds this rank."""
        total = values.clone(memory_format=torch.contiguous_format)
        if len(group) > 1:
            with self._reporting(f"all_reduce over {group}"):
                dist.all_reduce(total, group=self._groups[group])
        return total

    def exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        """Send a flat tensor to some ranks and receive flat tensors of given lengths from some.

        All operations are posted before any is waited for, so no order of ranks can deadlock.
        """
        received = {
            peer: torch.empty(length, dtype=dtype, device=self.device)
            for peer, length in sorted(incoming.items())
        }
        operations = [
            dist.P2POp(dist.isend, values.contiguous(), peer)
            for peer, values in sorted(outgoing.items())
        ]
        operations += [dist.P2POp(dist.irecv, values, peer) for peer, values in received.items()]
        if operations:
            with self._reporting(f"messages with {sorted({*outgoing, *incoming})}"):
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        return received

    def total(self, value: float) -> float:
        """The sum of a number over all ranks, in double precision."""
        if self.size == 1:
            return value
        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        with self._reporting("all_reduce of the loss"):
            dist.all_reduce(number)
        return float(number.item())

    @contextmanager
    def _reporting(self, what: str) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "failed"
            raise CommunicationError(f"rank {self.rank}: {what}: {reason}") from error


def environment() -> tuple[int, int] | None:
    """(rank, number of ranks) when started by torchrun, else None.

    Raises InputError when torchrun's variables are there and make no sense.
    """
    given = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
    if None in given:
        return None
    try:
        rank, size = int(given[0] or ""), int(given[1] or "")
    except ValueError:
        problem = f"RANK={given[0]} WORLD_SIZE={given[1]}, expected numbers"
        raise InputError("environment", problem) from None
    if not 0 <= rank < size:
        raise InputError("environment", f"RANK={rank}, expected less than WORLD_SIZE={size}")
    return rank, size


@contextmanager
def open_world(kind: Kind, timeout: float) -> Generator[World]:
    """Join the ranks that torchrun started; without it, a world of one.

    ``timeout`` in seconds holds for each communication. Raises InputError for a missing GPU.
    """
    rank, size = environment() or (0, 1)
    device = _device(kind)
    if size == 1:
        yield World(rank, size, device)
        return
    # With a device NCCL connects all ranks at once; point-to-point messages rely on that.
    dist.init_process_group(
        "nccl" if kind == "gpu" else "gloo",
        timeout=timedelta(seconds=timeout),
        device_id=device if kind == "gpu" else None,
    )
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()


def _device(kind: Kind) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    local, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= present:
        raise InputError("machine", f"the plan needs GPU {local}, this computer has {present}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
