"""Call torch.distributed for groups, collectives and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch.distributed as dist
from torch import Tensor

Handle = Any
"""A torch process group, or None for the default group."""
FlatName = Literal["all_gather", "reduce_scatter", "all_to_all"]


class PendingCommunication(Protocol):
    """Communication under way."""

    def wait(self) -> object: ...


def _named(*names: str) -> Callable[..., Any]:
    """The first function of ``torch.distributed`` by one of these names, newest name first."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def _all_gather(result: Tensor, own: Tensor, group: Handle) -> PendingCommunication | None:
    return _GATHER(result, own, group, async_op=True)


def _all_to_all(result: Tensor, own: Tensor, group: Handle) -> PendingCommunication | None:
    return dist.all_to_all_single(result, own, group=group, async_op=True)


def _reduce_scatter(result: Tensor, own: Tensor, group: Handle) -> PendingCommunication | None:
    return _SCATTER(result, own, dist.ReduceOp.SUM, group, async_op=True)


_GATHER = _named("all_gather_single", "all_gather_into_tensor")

_SCATTER = _named("reduce_scatter_single", "reduce_scatter_tensor")
COLLECTIVES: Mapping[FlatName, Callable[..., PendingCommunication | None]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
"""Functions that begin a collective on flat tensors. Arguments: the result, this rank's tensor, the
group. gloo and NCCL both offer all three collectives."""


class Network:
    """torch.distributed, with gloo or NCCL.

    With NCCL each group has one stream. An operation of a rank on it, a message or a collective,
    begins when the earlier operations of this rank on it have ended, which depends on other ranks.
    """

    everyone: Handle = None
    """The group of all ranks, which exists from the beginning."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        """``timeout``: how long a communication in further groups may take. The default is torch's
        half an hour, even if the default group has another timeout."""
        self._timeout = timeout

    def group(self, ranks: Sequence[int]) -> Handle:
        """Create a group. All ranks of the run have to create it together. Returns None on a rank
        that is no member."""
        handle = dist.new_group(list(ranks), timeout=self._timeout)
        # torch returns a placeholder on a rank that is no member.
        return handle if isinstance(handle, dist.ProcessGroup) else None

    def apart(self, size: int) -> Network:
        """A network of the same ranks with another group of all of them, on the CPU, for a second
        thread. All ranks have to call this together."""
        network = Network(self._timeout)
        network.everyone = dist.new_group(list(range(size)), timeout=self._timeout, backend="gloo")
        return network

    def all_reduce(self, values: Tensor, group: Handle) -> PendingCommunication | None:
        """Begin to replace a tensor by the sum of the members' tensors."""
        return dist.all_reduce(values, group=group, async_op=True)

    def collective(
        self, name: FlatName, result: Tensor, own: Tensor, group: Handle
    ) -> PendingCommunication | None:
        """Begin a collective on flat tensors, from ``own`` to ``result``."""
        return COLLECTIVES[name](result, own, group)

    def messages(
        self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor], group: Handle
    ) -> Sequence[PendingCommunication]:
        """Begin to send and receive tensors, by rank, all at once."""
        operations = [dist.P2POp(dist.isend, values, peer, group) for peer, values in sent.items()]
        operations += [
            dist.P2POp(dist.irecv, values, peer, group) for peer, values in received.items()
        ]
        return dist.batch_isend_irecv(operations)

    def notes(self, value: Any, size: int) -> list[Any]:
        """The values of all ranks, in the order of ranks. A value has to be picklable."""
        values: list[Any] = [None] * size
        dist.all_gather_object(values, value, group=self.everyone)
        return values
