"""What a rank has of each tensor of a checkpoint, and how torch.distributed.checkpoint is told.

A checkpoint knows whole tensors by name and global offsets, so that whoever reads it may be cut
otherwise than who wrote it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from pcg.errors import InputError


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
        """The same block of the transposed matrix."""
        shape, offsets = self.shape[::-1], self.offsets[::-1]
        return replace(self, shape=shape, offsets=offsets, tensor=self.tensor.mT)


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


class ShardLoader(LoadPlanner):
    """Plans what a rank reads: its blocks, of whatever blocks they are written in."""

    def __init__(self, shards: Iterable[Shard], where: str) -> None:
        self._shards = {_index(shard): shard for shard in shards}
        self._where = where
        self._saved: Mapping[str, Any] = {}

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        assert metadata is not None
        self._saved = metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for shard in self._shards.values():
            saved = self._saved.get(shard.name)
            if not isinstance(saved, TensorStorageMetadata):
                raise InputError(self._where, f"has no tensor {shard.name}")
            if tuple(saved.size) != shard.shape:
                problem = f"expected shape {list(shard.shape)}, got {list(saved.size)}"
                raise InputError(self._where, f"{shard.name}: {problem}")
            items += create_read_items_for_chunk_list(shard.name, saved, [shard.chunk])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise InputError(self._where, f"{read_item.dest_index.fqn} is no tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        # The destination's index has the offset of the block that the rank wants.
        index = read_item.dest_index
        block = self._shards[MetadataIndex(index.fqn, index.offset)].tensor.detach()
        for dim, (start, size) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            block = block.narrow(dim, start, size)
        return block

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """It has been read into its place."""


class SafeReader(FileSystemReader):
    """Reads a checkpoint whose table of contents may name nothing but what such a table is made of:
    it is a pickle, and others run what they like."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        with path.open("rb") as file:
            found = _Contents(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f"{type(found).__name__} is no table of contents")
        return found


class _Contents(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in _CONTENTS or module_name in _CLASSES_OF:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"names {module_name}.{global_name}")


_CLASSES_OF = frozenset({"torch.distributed.checkpoint.metadata"})
_CONTENTS = frozenset(
    {
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        *(("torch", name) for name in ("float64", "float32", "bfloat16", "float16", "int64")),
    }
)


def _index(shard: Shard) -> MetadataIndex:
    return MetadataIndex(shard.name, shard.offsets)


def _write_item(shard: Shard) -> WriteItem:
    properties = TensorProperties(dtype=shard.tensor.dtype)
    data = TensorWriteData(shard.chunk, properties, torch.Size(shard.shape))
    return WriteItem(_index(shard), WriteItemType.SHARD, tensor_data=data)
