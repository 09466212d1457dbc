"""The table of contents of a checkpoint: the file and offset of each piece of each tensor.

torch.distributed.checkpoint (DCP) keeps its own table as a pickle, ``.metadata``. A pickle can run
any code when it is loaded. So this module writes the same table as JSON beside it, and reads only
the JSON. The pickle stays for other tools. It is never loaded here, but searched for names that do
not belong in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, StringConstraints
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from pcg.errors import InputError
from pcg.files import FileModel, Name, read_json, write_text_atomic
from runtime.checkpoints.pickles import check_names

CONTENTS = "contents.json"
PICKLED = ".metadata"
"""The table of contents in DCP's own form."""
_LIMIT = 256 * 1024 * 1024
"""The largest table in bytes: about three million pieces."""
DATA = r"__\d{1,7}_\d{1,7}\.distcp"
"""A pattern of the names of files with tensors."""

DTypeName = Literal["float64", "float32", "bfloat16", "float16", "int64"]
Size = Annotated[int, Field(ge=1, le=1 << 48)]
Offset = Annotated[int, Field(ge=0, le=1 << 56)]
Shape = Annotated[tuple[Size, ...], Field(strict=False, max_length=64)]
DataName = Annotated[str, StringConstraints(pattern=f"^{DATA}$", max_length=32)]


class PieceFile(FileModel):
    """A block of a tensor, in the format of torch.save."""

    offsets: Annotated[tuple[Offset, ...], Field(strict=False, max_length=64)]
    """The global index of its first element."""
    shape: Shape
    file: DataName
    at: Offset
    """The position in the file where the piece begins, in bytes."""
    bytes: Size


class TensorFile(FileModel):
    """A tensor, in pieces."""

    dtype: DTypeName
    shape: Shape
    pieces: Annotated[tuple[PieceFile, ...], Field(strict=False, min_length=1)]

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


class ContentsFile(FileModel):
    """``contents.json``."""

    schema_version: Literal[1]
    tensors: dict[Name, TensorFile]


class TableWriter(FileSystemWriter):
    """Writes the files of torch.distributed.checkpoint, and the table of contents as JSON."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Write both tables. DCP calls this on one rank, after all ranks have written."""
        super().finish(metadata, results)
        # The places come from the results: some releases of torch add them to a copy of the table.
        places = {one.index: one.storage_data for of_rank in results for one in of_rank}
        contents = contents_of(metadata, places)
        write_text_atomic(Path(self.path) / CONTENTS, contents.model_dump_json() + "\n")


def contents_of(metadata: Metadata, places: Mapping[MetadataIndex, Any]) -> ContentsFile:
    """DCP's table in this module's format. ``places``: the file and offset of each piece."""
    tensors: dict[Name, TensorFile] = {}
    for name, saved in metadata.state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata), "checkpoints have tensors only"
        pieces: list[PieceFile] = []
        for chunk in saved.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            pieces.append(
                PieceFile(
                    offsets=tuple(chunk.offsets),
                    shape=tuple(chunk.sizes),
                    file=str(place.relative_path),
                    at=place.offset,
                    bytes=place.length,
                )
            )
        dtype: Any = str(saved.properties.dtype).removeprefix("torch.")
        shape = tuple(saved.size)
        tensors[name] = TensorFile(dtype=dtype, shape=shape, pieces=tuple(pieces))
    return ContentsFile(schema_version=1, tensors=tensors)


def read_contents(path: Path, sizes: Mapping[str, int]) -> dict[str, TensorFile]:
    """The tensors of the checkpoint in a folder, by name. ``sizes``: the bytes of each file.

    Raises InputError if the table is missing or wrong: if a piece lies outside of its tensor or its
    file, if pieces overlap, or if a piece is missing.
    """
    where = path / CONTENTS
    if PICKLED in sizes:
        check_names(path / PICKLED)
    contents = read_json(where, ContentsFile, _LIMIT)
    for name, tensor in contents.tensors.items():
        if problem := _fault(tensor):
            raise InputError(f"{where}: tensors.{name}", problem)
    for name, problem in _misplaced(contents.tensors, sizes):
        raise InputError(f"{where}: tensors.{name}", problem)
    return contents.tensors


def _fault(tensor: TensorFile) -> str | None:
    """What is wrong with the pieces of a tensor; None if nothing is.

    The pieces have to be the cells of a grid. Then each element of the tensor is in exactly one
    piece.
    """
    rank, item = len(tensor.shape), tensor.torch_dtype.itemsize
    for piece in tensor.pieces:
        if not rank == len(piece.offsets) == len(piece.shape):
            return f"a piece of rank {len(piece.shape)}, expected {rank}"
        if piece.bytes < prod(piece.shape) * item:
            return f"{piece.bytes} bytes for a piece of shape {list(piece.shape)}"
    ends: list[dict[int, int]] = []
    for dim, size in enumerate(tensor.shape):
        starts = sorted({piece.offsets[dim] for piece in tensor.pieces})
        if starts[0] != 0 or starts[-1] >= size:
            return f"pieces from {starts[0]} to {starts[-1]} in dimension {dim} of size {size}"
        ends.append(dict(pairwise([*starts, size])))
    for piece in tensor.pieces:
        for dim, (start, size) in enumerate(zip(piece.offsets, piece.shape, strict=True)):
            if start + size != ends[dim][start]:
                expected = ends[dim][start] - start
                return f"a piece of {size} at {start} in dimension {dim}, expected {expected}"
    cells = prod(len(intervals) for intervals in ends)
    if len({piece.offsets for piece in tensor.pieces}) != len(tensor.pieces):
        return "has a piece twice"
    return None if len(tensor.pieces) == cells else f"{len(tensor.pieces)} of {cells} pieces"


def _misplaced(
    tensors: Mapping[str, TensorFile], sizes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Tensors with a wrongly placed piece, each with the problem: the file does not exist, the
    piece ends beyond the file, or it overlaps another piece in the file."""
    spans_by_file: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for name, tensor in tensors.items():
        for piece in tensor.pieces:
            spans_by_file[piece.file].append((piece.at, piece.at + piece.bytes, name))
    for file, spans in spans_by_file.items():
        if file not in sizes:
            yield spans[0][2], f"lies in {file}, which is no file of the checkpoint"
            return
        ordered = sorted(spans)
        for (_, end, name), (start, _, _) in pairwise(ordered):
            if start < end:
                yield name, f"ends at byte {end} of {file}, where another piece has begun"
        if ordered[-1][1] > sizes[file]:
            yield ordered[-1][2], f"ends at byte {ordered[-1][1]} of {file}, of {sizes[file]}"
