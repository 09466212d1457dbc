"""Describe the blocks that a rank saves, as torch.distributed.checkpoint wants them.

A checkpoint knows whole tensors by name and global offsets, so that whoever reads it may be cut
otherwise than who wrote it.
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
    """A block of a tensor."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    """The global index of the block's first element."""
    tensor: Tensor
    """The block; a view of where it lives, so that what is read into it arrives there."""
    writes: bool
    """Whether this rank writes it: of the holders of a block one does."""

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.size())

    @property
    def transposed(self) -> Shard:
        """The same block of the transposed matrix, or matrices."""
        shape, offsets = swapped_last(self.shape), swapped_last(self.offsets)
        return replace(self, shape=shape, offsets=offsets, tensor=self.tensor.mT)


def apart(shard: Shard, key: str, parameter: ParameterFile) -> Iterator[Shard]:
    """The blocks of the module's parameters that a block of a weight holds, which is given as the
    module has it. ``key``: what a checkpoint calls them, with {} for the parameter's name."""
    if not parameter.stacked:
        yield replace(shard, name=key.format(parameter.names[0]))
        return
    for at, part in enumerate(shard.tensor, shard.offsets[0]):
        name = key.format(parameter.stacked[at])
        yield Shard(name, shard.shape[1:], shard.offsets[1:], part, shard.writes)


class ShardSaver(SavePlanner):
    """Plans which rank writes what: every block is written once."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = {_index(shard): shard for shard in shards if shard.writes}

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Everything is known already."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(shard) for shard in self._shards.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        tensors: dict[str, Any] = {}
        for item in (item for plan in all_plans for item in plan.items):
            data = item.tensor_data
            assert data is not None
            name = item.index.fqn
            known = tensors.setdefault(name, TensorStorageMetadata(data.properties, data.size, []))
            known.chunks.append(data.chunk)
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
