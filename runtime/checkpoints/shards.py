"""Describe the shards that a rank saves to torch.distributed.checkpoint.

A checkpoint identifies blocks by the name of the whole tensor and global offsets. So it can be read
by a plan that cuts tensors differently.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from pcg.plan.naming import ParameterFile, swapped_last


@dataclass(frozen=True)
class Shard:
    """A block of a tensor on this rank."""

    name: str
    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    offsets: tuple[int, ...]
    """The global index of the block's first element."""
    tensor: Tensor
    """The block. It is a view of the weight, so that loading into it changes the weight."""
    writes: bool
    """Whether this rank writes the block. One of the ranks that hold it does."""

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.size())

    @property
    def transposed(self) -> Shard:
        """The same block of the transposed matrix, or of the transposed stack of matrices."""
        shape, offsets = swapped_last(self.shape), swapped_last(self.offsets)
        return replace(self, shape=shape, offsets=offsets, tensor=self.tensor.mT)


def apart(shard: Shard, key: str, parameter: ParameterFile) -> Iterator[Shard]:
    """Split a shard of a weight into shards of the module's parameters.

    A weight may stack several parameters along its first dimension. The shard already has the
    module's orientation. ``key``: the pattern of the names in the checkpoint, with {} for the
    parameter's name.
    """
    if not parameter.stacked:
        yield replace(shard, name=key.format(parameter.names[0]))
        return
    for index, part in enumerate(shard.tensor, shard.offsets[0]):
        name = key.format(parameter.stacked[index])
        yield Shard(name, shard.shape[1:], shard.offsets[1:], part, shard.writes)


class ShardSaver(SavePlanner):
    """Tells DCP which rank writes which shards. Each block is written once."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = {_index(shard): shard for shard in shards if shard.writes}

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Do nothing: the shards are known from the beginning."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(shard) for shard in self._shards.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        tensors: dict[str, Any] = {}
        for item in (item for plan in all_plans for item in plan.items):
            data = item.tensor_data
            assert data is not None
            name = item.index.fqn
            tensor = tensors.setdefault(name, TensorStorageMetadata(data.properties, data.size, []))
            tensor.chunks.append(data.chunk)
        return all_plans, Metadata(tensors)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self._shards[write_item.index].tensor.detach().contiguous()


def _index(shard: Shard) -> MetadataIndex:
    return MetadataIndex(shard.name, shard.offsets)


def _write_item(shard: Shard) -> WriteItem:
    properties = TensorProperties(dtype=shard.tensor.dtype)
    data = TensorWriteData(shard.chunk, properties, torch.Size(shard.shape))
    return WriteItem(_index(shard), WriteItemType.SHARD, tensor_data=data)
