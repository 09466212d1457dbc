"""Call torch.distributed for groups, collectives and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch.distributed as dist
from torch import Tensor

Handle = Any
"""What a network knows a group of ranks by: a process group, or None for the default one."""
FlatName = Literal["all_gather", "reduce_scatter", "all_to_all"]


class PendingCommunication(Protocol):
    """Communication under way."""

    def wait(self) -> object: ...


def _named(*names: str) -> Callable[..., Any]:
    """Torch's function that goes by one of these names, the newest first."""
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
"""How each collective on flat tensors begins: the result, this rank's own, the group. Both gloo and
NCCL offer all three."""


class Network:
    """torch.distributed, with gloo or NCCL.

    With NCCL a group has one stream: what a rank posts to it, messages as well as collectives,
    begins when all that this rank posted to it before has ended, which takes its peers too.
    """

    everyone: Handle = None
    """The group of all ranks that is there from the beginning."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        """``timeout``: how long communication in further groups may take; by default half an hour
        as torch has it, whatever that of the first group is."""
        self._timeout = timeout

    def group(self, ranks: Sequence[int]) -> Handle:
        """A new group, which all ranks of the run have to create together; of no use to a rank
        that is no member."""
        made = dist.new_group(list(ranks), timeout=self._timeout)
        # A rank that is no member is given a placeholder.
        return made if isinstance(made, dist.ProcessGroup) else None

    def apart(self, size: int) -> Network:
        """A network of the same ranks with a group of its own, on the CPU, for a second thread. All
        ranks have to call together."""
        made = Network(self._timeout)
        made.everyone = dist.new_group(list(range(size)), timeout=self._timeout, backend="gloo")
        return made

    def all_reduce(self, values: Tensor, group: Handle) -> PendingCommunication | None:
        """Begin to replace a tensor by the sum of the members'."""
        return dist.all_reduce(values, group=group, async_op=True)

    def collective(
        self, name: FlatName, result: Tensor, own: Tensor, group: Handle
    ) -> PendingCommunication | None:
        """Begin a collective on flat tensors, from ``own`` to ``result``."""
        return COLLECTIVES[name](result, own, group)

    def messages(
        self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor], group: Handle
    ) -> Sequence[PendingCommunication]:
        """Begin to send to some ranks and receive from some, all at once."""
        operations = [dist.P2POp(dist.isend, values, peer, group) for peer, values in sent.items()]
        operations += [
            dist.P2POp(dist.irecv, values, peer, group) for peer, values in received.items()
        ]
        return dist.batch_isend_irecv(operations)

    def notes(self, value: Any, size: int) -> list[Any]:
        """Every rank's value, which has to be one that can be pickled."""
        values: list[Any] = [None] * size
        dist.all_gather_object(values, value, group=self.everyone)
        return values
