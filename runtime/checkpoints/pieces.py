"""Read pieces of tensors from a checkpoint's files as bytes, without unpickling.

A piece is the output of torch.save for one tensor: a zip archive without compression. One entry is
a pickle that describes the tensor, another has its elements. The description is compared with the
table of contents, and a piece that differs from the table is refused.
"""

from __future__ import annotations

import io
import pickletools
import struct
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pcg.errors import InputError
from runtime.checkpoints.contents import PieceFile, TensorFile
from runtime.checkpoints.shards import Shard

_STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "bfloat16": "BFloat16Storage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
}
_DESCRIPTION = 1 << 16
"""The largest description, in bytes."""
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
_INSTRUCTIONS = _NUMBERS | {
    *("PROTO", "GLOBAL", "MARK", "BINUNICODE", "BINPERSID", "NEWFALSE", "REDUCE", "STOP"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE", "BINPUT", "LONG_BINPUT", "BINGET"),
}
"""The only pickle instructions in the description of a tensor."""

_ARCHIVE_ERRORS = (ValueError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile)
"""The errors of ``zipfile`` for an archive that is damaged, encrypted or of another kind."""

Slices = tuple[slice, ...]


def fill(shards: Iterable[Shard], tensors: Mapping[str, TensorFile], folder: Path) -> None:
    """Fill shards from the pieces of a checkpoint. A shard may need parts of several pieces.

    Raises InputError for a tensor that the checkpoint lacks, or has in another shape or kind of
    number, and for a piece that differs from the table of contents.
    """
    readers_of: dict[str, dict[PieceFile, list[Shard]]] = defaultdict(lambda: defaultdict(list))
    for shard in shards:
        tensor = _tensor(shard, tensors, str(folder))
        for piece in tensor.pieces:
            if _overlap(shard, piece) is not None:
                readers_of[piece.file][piece].append(shard)
    for name, pieces in readers_of.items():
        path = folder / name
        try:
            with path.open("rb") as file:
                for piece, readers in pieces.items():
                    values = _read(file, piece, tensors[readers[0].name].dtype)
                    for shard in readers:
                        _copy(values, piece, shard)
        except OSError as error:
            raise InputError(str(path), f"cannot be read: {error.strerror}") from None
        except _ARCHIVE_ERRORS as error:
            raise InputError(str(path), f"has no such piece: {error}") from None


def _tensor(shard: Shard, tensors: Mapping[str, TensorFile], where: str) -> TensorFile:
    """The tensor in the checkpoint to which a shard belongs. Raises InputError as ``fill``."""
    tensor = tensors.get(shard.name)
    if tensor is None:
        raise InputError(where, f"has no tensor {shard.name}")
    if tensor.shape != shard.shape:
        problem = f"expected shape {list(shard.shape)}, got {list(tensor.shape)}"
        raise InputError(where, f"{shard.name}: {problem}")
    if tensor.torch_dtype.is_floating_point != shard.tensor.dtype.is_floating_point:
        problem = f"expected {shard.tensor.dtype}, got {tensor.torch_dtype}"
        raise InputError(where, f"{shard.name}: {problem}")
    return tensor


def _overlap(shard: Shard, piece: PieceFile) -> tuple[Slices, Slices] | None:
    """The elements that a shard and a piece share, as slices of the shard and slices of the piece.
    None if they share none."""
    in_shard: list[slice] = []
    in_piece: list[slice] = []
    sizes = zip(shard.offsets, shard.tensor.shape, piece.offsets, piece.shape, strict=True)
    for shard_start, shard_size, piece_start, piece_size in sizes:
        start = max(shard_start, piece_start)
        end = min(shard_start + shard_size, piece_start + piece_size)
        if start >= end:
            return None
        in_shard.append(slice(start - shard_start, end - shard_start))
        in_piece.append(slice(start - piece_start, end - piece_start))
    return tuple(in_shard), tuple(in_piece)


def _copy(values: Tensor, piece: PieceFile, shard: Shard) -> None:
    overlap = _overlap(shard, piece)
    assert overlap is not None
    shard.tensor.detach()[overlap[0]].copy_(values[overlap[1]])


def _read(file: BinaryIO, piece: PieceFile, dtype: str) -> Tensor:
    """The elements of a piece. Raises one of ``_ARCHIVE_ERRORS`` if they differ from the table."""
    with zipfile.ZipFile(_Window(file, piece.at, piece.bytes)) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        description, data = entries.get("data.pkl"), entries.get("data/0")
        if description is None or data is None or "data/1" in entries:
            raise ValueError("expected one tensor")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("is compressed")
        if description.file_size > _DESCRIPTION:
            raise ValueError("expected the description of a tensor")
        _check(archive.read(description), piece, dtype)
        if (order := entries.get("byteorder")) and order.file_size <= _DESCRIPTION:
            _check_order(archive.read(order))
        values = torch.empty(piece.shape, dtype=getattr(torch, dtype))
        size = values.numel() * values.itemsize
        if data.file_size != size:
            raise ValueError(f"{data.file_size} bytes of elements, expected {size}")
        buffer = values.reshape(-1).view(torch.uint8).numpy()
        with archive.open(data) as entry:  # zipfile verifies the checksum at the end
            elements: Any = entry
            read = elements.readinto(buffer)
            while read < size and (more := elements.readinto(buffer[read:])):
                read += more
        if read != size:
            raise ValueError(f"{read} bytes of elements, expected {size}")
    return values


def _check(description: bytes, piece: PieceFile, dtype: str) -> None:
    """Raise ValueError unless a pickle describes a contiguous tensor with the shape of a piece and
    the given number format. The pickle's instructions are read, not executed."""
    names: list[str] = []
    numbers: list[int] = []
    for operation, argument, _ in pickletools.genops(description):
        if operation.name == "GLOBAL":
            names.append(str(argument))
        elif operation.name in _NUMBERS:
            numbers.append(int(str(argument)))
        elif operation.name not in _INSTRUCTIONS:
            raise ValueError(f"expected a tensor of {dtype}")
    rebuild = "torch._utils _rebuild_tensor_v2"
    if names != [rebuild, f"torch {_STORAGES[dtype]}", "collections OrderedDict"]:
        raise ValueError(f"expected a tensor of {dtype}, got {', '.join(names)[:80]}")
    rank = len(piece.shape)
    strides = [prod(piece.shape[dim + 1 :]) for dim in range(rank)]
    # A dimension of size 1 may have any stride.
    normal_strides = [
        expected if size == 1 else stride
        for stride, expected, size in zip(numbers[2 + rank :], strides, piece.shape, strict=True)
    ]
    found = [*numbers[: 2 + rank], *normal_strides]
    if found != [prod(piece.shape), 0, *piece.shape, *strides]:
        raise ValueError(f"expected a tensor of shape {list(piece.shape)}")


def _check_order(order: bytes) -> None:
    if order.decode() != sys.byteorder:
        raise ValueError(f"numbers are written in another order of bytes, {order!r}")


class _Window(io.RawIOBase):
    """A byte range of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        size = max(0, min(len(buffer), self._size - self._position))
        self._file.seek(self._start + self._position)
        read = self._file.readinto(memoryview(buffer)[:size])  # pyright: ignore[reportAttributeAccessIssue]
        self._position += read
        return read
