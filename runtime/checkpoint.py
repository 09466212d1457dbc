"""Checkpoints in a folder: each whole or not there, the last few kept, damage noticed.

A checkpoint is a folder ``step-N`` with the files of torch.distributed.checkpoint and a manifest,
``checkpoint.json``, that has their hashes and what else a run needs to go on. It is written under
another name, which it keeps until all ranks are done and everything is on the disk.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import Field
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from pcg.errors import InputError, UnityError, one_line
from pcg.files import FileModel, read_json, write_text_atomic
from runtime.collectives import World
from runtime.folder import REPLACED, WRITING, numbered, path_of, sync, tidy
from runtime.job import AgreedError
from runtime.recipe import Recipe
from runtime.shards import SafeReader, Shard, ShardLoader, ShardSaver
from runtime.status import TRY_AGAIN
from runtime.words import words

T = TypeVar("T")

MANIFEST = "checkpoint.json"
Warn = Callable[[str], None]
"""Takes one line for the user."""


class CheckpointError(AgreedError):
    """A checkpoint that could not be written, by all ranks' knowledge."""

    exit_status = TRY_AGAIN


class FileRecord(FileModel):
    """What a file of a checkpoint has to be."""

    bytes: int
    digest: str
    """BLAKE2b."""


class ScaleRecord(FileModel):
    """What the loss is multiplied with in float16, and after how many good steps."""

    value: float
    good_steps: int


class Manifest(FileModel):
    """``checkpoint.json``."""

    schema_version: Literal[1] = 1
    model: str
    graph: str
    """Hash of the model's graph."""
    updates: int
    """How often weights had been updated: finished training steps."""
    batches: int | None = None
    """Batches that these took; None where each took as many as the recipe says."""
    seed: int
    recipe: Recipe
    run: str = ""
    """The identity of the run that wrote it."""
    delayed: bool = False
    """Whether it has the weights of one update before as well (PipeDream-2BW)."""
    loss_scale: ScaleRecord | None = None
    parameters: dict[str, tuple[str, ...]]
    """Every parameter and running statistic in it, with its further names in the module."""
    files: dict[str, FileRecord] = Field(default_factory=dict[str, FileRecord])
    digest: str = ""
    """BLAKE2b of all else in it."""

    def own_digest(self) -> str:
        """What ``digest`` has to be. Fields that the file does not have are newer than it."""
        content = self.model_dump_json(exclude={"digest"}, exclude_unset=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Kept:
    """A checkpoint that is whole."""

    path: Path
    manifest: Manifest
    passed_over: tuple[int, ...] = ()
    """The steps of later ones, which are damaged."""


def save(
    world: World,
    folder: Path,
    shards: Sequence[Shard],
    manifest: Manifest,
    keep: int,
    passed_over: Iterable[int] = (),
) -> Path:
    """Write a checkpoint and remove all but the last ``keep``, and those of the steps that were
    ``passed_over``, whose damage makes them none to keep. All ranks call together.

    Raises CheckpointError on all of them where one fails; what was there before stays.
    """
    path = path_of(folder, manifest.updates)
    part = folder / f"{WRITING}{path.name}"
    try:
        _together(world, lambda: _prepare(folder, part) if world.rank == 0 else None)
        with _quiet(), _naming(world, path):
            _dcp_save(world, part, shards)
        found = _together(world, lambda: _records(part, world.rank))
        files = {name: record for records in found for name, record in records.items()}
        complete = manifest.model_copy(update={"files": files})
        _together(world, lambda: _publish(part, path, complete) if world.rank == 0 else None)
    except (CheckpointException, _AnyFailed) as error:
        if world.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(str(path), _reason(error)) from error
    if world.rank == 0:
        damaged = [old for step in passed_over if (old := path_of(folder, step)) != path]
        for old in damaged:
            shutil.rmtree(old, ignore_errors=True)
        for old in list(numbered(folder).values())[keep:]:
            shutil.rmtree(old, ignore_errors=True)
    return path


def find(world: World, folder: Path, warn: Warn) -> Kept | None:
    """The newest checkpoint of a folder that is whole, None where there is none at all. All ranks
    call together. ``warn`` is told of damaged ones that are passed over.

    Raises AgreedError where all are damaged.
    """
    names = world.gather({step: path.name for step, path in numbered(folder).items()})[0]
    problem, passed_over = "", list[int]()
    for step, name in names.items():
        path = folder / name
        try:
            manifests = _together(world, lambda path=path: _verified(path, world))
        except _AnyFailed as error:
            problem = f"{path}: damaged: {_reason(error)}"
            warn(f"{problem}; taking the one before")
            passed_over.append(step)
        else:
            return Kept(path, manifests[world.rank], tuple(passed_over))
    if problem:
        raise AgreedError(str(folder), f"no checkpoint is whole; {problem}")
    return None


def load(world: World, kept: Kept, shards: Iterable[Shard]) -> None:
    """Fill blocks from a checkpoint, whatever blocks it has. All ranks call together.

    Raises AgreedError for a tensor that is not in it, or has another shape.
    """
    where = str(kept.path)
    # DCP wants to know whether to talk to other ranks.
    alone = world.size == 1
    try:
        with _quiet(), _naming(world, kept.path):
            reader, planner = SafeReader(kept.path), ShardLoader(shards, where)
            dcp_load({}, storage_reader=reader, planner=planner, no_dist=alone)
    except CheckpointException as error:
        raise AgreedError(where, _reason(error).removeprefix(f"{where}: ")) from error


def newest_manifest(path: Path) -> Kept:
    """The checkpoint at a path, or the newest whole one of a folder of them. For a single process.

    Raises InputError where there is none.
    """
    if (path / MANIFEST).exists():
        try:
            return Kept(path, _verified(path, World()))
        except _Damaged as error:
            raise InputError(str(path), f"damaged: {error}") from None
    found = find(World(), path, lambda text: None)
    if found is None:
        raise InputError(str(path), "has no checkpoint")
    return found


class _Damaged(UnityError):
    """What is wrong with a checkpoint."""


class _AnyFailed(Exception):
    """A rank's failure, on all of them."""


def _together(world: World, act: Callable[[], T]) -> list[T]:
    """What all ranks' calls return. Where one fails, all raise its error."""
    result, problem = None, None
    try:
        result = act()
    except Exception as error:  # a rank that left would keep the others waiting
        problem = one_line(f"{_of_rank(world)}{words(error)}")
    found = world.gather((result, problem))
    for _, failed in found:
        if failed is not None:
            raise _AnyFailed(failed)
    return [cast(T, part) for part, _ in found]


def _of_rank(world: World) -> str:
    return f"rank {world.rank}: " if world.size > 1 else ""


def run_of(path: Path) -> str | None:
    """The identity of the run that wrote a checkpoint, if that can be read."""
    try:
        return read_json(path / MANIFEST, Manifest).run or None
    except InputError:
        return None


def _prepare(folder: Path, part: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    part.mkdir()


class _Writer(FileSystemWriter):
    """Lets other ranks know that this one writes, and does not wait for them."""

    world: World

    def write_data(self, *given: Any, **named: Any) -> Any:
        with self.world.busy("writing a checkpoint"):
            return super().write_data(*given, **named)


def _dcp_save(world: World, part: Path, shards: Sequence[Shard]) -> None:
    writer = _Writer(part, sync_files=True)
    writer.world = world
    alone = world.size == 1
    group = world.network.everyone
    planner = ShardSaver(shards)
    dcp_save({}, storage_writer=writer, planner=planner, process_group=group, no_dist=alone)


def _records(part: Path, rank: int) -> dict[str, FileRecord]:
    """The files that this rank wrote; the table of contents is rank 0's."""
    own = sorted(part.glob(f"__{rank}_*")) + ([part / ".metadata"] if rank == 0 else [])
    return {path.name: _record(path) for path in own}


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return FileRecord(bytes=path.stat().st_size, digest=digest)


def _publish(part: Path, path: Path, manifest: Manifest) -> None:
    # Read again, for then all fields count as set.
    whole = Manifest.model_validate_json(manifest.model_dump_json())
    signed = whole.model_copy(update={"digest": whole.own_digest()})
    write_text_atomic(part / MANIFEST, signed.model_dump_json(indent=1) + "\n")
    sync(part)
    replaced = path.with_name(f"{REPLACED}{path.name}")
    if path.exists():  # from before a restart, damaged
        path.rename(replaced)
    part.rename(path)
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _verified(path: Path, world: World) -> Manifest:
    """The manifest, when this rank's share of the files is as it says."""
    if not (path / MANIFEST).is_file():
        raise _Damaged(f"{MANIFEST} is missing")
    manifest = read_json(path / MANIFEST, Manifest)
    if manifest.digest != manifest.own_digest():
        raise _Damaged(f"{MANIFEST} is not what was written")
    for name, wanted in sorted(manifest.files.items())[world.rank :: world.size]:
        if not (path / name).is_file():
            raise _Damaged(f"{name} is missing")
        if _record(path / name) != wanted:
            raise _Damaged(f"{name} is not what was written")
    return manifest


def _reason(error: BaseException) -> str:
    """The first rank's error behind one of torch.distributed.checkpoint."""
    if not isinstance(error, CheckpointException):
        return one_line(str(error))
    rank, (first, _) = min(error.failures.items())
    if isinstance(first, InputError):
        return str(first)
    return one_line(f"rank {rank}: {words(first)}")


def _naming(world: World, path: Path) -> AbstractContextManager[object]:
    """Name a checkpoint where another rank is lost, of which DCP's own communication tells in its
    own words."""
    return world.reporting(f"checkpoint {path}")


@contextmanager
def _quiet() -> Generator[None]:
    """Without DCP's remarks that there is a single process, or that it reads its own format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
