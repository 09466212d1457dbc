"""The parameters of a parallel module, and the memory of their shards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from pcg.errors import InputError


@dataclass(frozen=True)
class ShardedParameter:
    """The parameter of a weight's shard: attribute ``last`` of ``owner``. ``shard``: the memory of
    this rank's block, in the module's orientation."""

    leaf: str
    name: str
    owner: Module
    last: str
    shard: Tensor

    @property
    def parameter(self) -> Parameter:
        # Not by get_parameter, which parses names: each step asks for every parameter.
        parameter = getattr(self.owner, self.last)
        assert isinstance(parameter, Parameter), "torch refuses anything else under this name"
        return parameter

    @torch.no_grad()
    def follow(self) -> None:
        """Copy a parameter whose memory was replaced, as by ``parameter.data = ...``, back into its
        shard. Raises InputError for another shape, number format or device."""
        shard, current = self.shard, self.parameter
        if current.data_ptr() == shard.data_ptr() and current.dtype == shard.dtype:
            return
        actual = current.shape, current.dtype, current.device
        if actual != (shard.shape, shard.dtype, shard.device):
            problem = f"is {_described(current)} now, expected {_described(shard)} by the plan"
            raise InputError(f"parameter {self.name}", problem)
        shard.copy_(current)
        current.data = shard


def _described(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} on {tensor.device}"
