"""Save, find, verify and load checkpoints, each whole or not there.

A checkpoint is a folder ``step-N`` with the files of torch.distributed.checkpoint, a table of their
contents (``runtime.checkpoints.contents``) and a manifest, ``checkpoint.json``, that has their
hashes and what else a run needs to go on. It is written under another name, which it keeps until
all ranks are done and everything is on the disk. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field, StringConstraints
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from pcg.errors import InputError, UnityError, one_line
from pcg.files import FileModel, Name, read_json, write_text_atomic
from runtime.checkpoints.contents import (
    CONTENTS,
    DATA,
    PICKLED,
    TableWriter,
    TensorFile,
    read_contents,
)
from runtime.checkpoints.folder import REPLACED, WRITING, numbered, path_of, sync, tidy
from runtime.checkpoints.pieces import fill
from runtime.checkpoints.shards import Shard, ShardSaver
from runtime.job.job import AgreedError
from runtime.job.recipe import Recipe
from runtime.world.collectives import World
from runtime.world.error_names import words
from runtime.world.status import TRY_AGAIN

T = TypeVar("T")

MANIFEST = "checkpoint.json"
Warn = Callable[[str], None]
"""Takes one line for the user."""


class CheckpointError(AgreedError):
    """A checkpoint that could not be written, by all ranks' knowledge."""

    exit_status = TRY_AGAIN


FileName = Annotated[str, StringConstraints(pattern=rf"^({DATA}|{CONTENTS}|{PICKLED})$")]
"""Of the files beside the manifest: a place elsewhere is no name."""
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class FileRecord(FileModel):
    """What a file of a checkpoint has to be."""

    bytes: Count
    digest: str
    """BLAKE2b."""


class ScaleRecord(FileModel):
    """What the loss is multiplied with in float16, and after how many good steps."""

    value: Annotated[float, Field(gt=0)]
    good_steps: Count


class Manifest(FileModel):
    """``checkpoint.json``."""

    schema_version: Literal[1] = 1
    model: Name
    graph: Name
    """Hash of the model's graph."""
    updates: Count
    """How often weights had been updated: finished training steps."""
    batches: Count | None = None
    """Batches that these took; None where each took as many as the recipe says."""
    seed: int
    recipe: Recipe
    run: Name = ""
    """The identity of the run that wrote it."""
    delayed: bool = False
    """Whether it has the weights of one update before as well (PipeDream-2BW)."""
    loss_scale: ScaleRecord | None = None
    parameters: dict[Name, tuple[Name, ...]]
    """Every parameter and running statistic in it, with its further names in the module."""
    files: dict[FileName, FileRecord] = Field(default_factory=dict[str, FileRecord])
    digest: str = ""
    """BLAKE2b of all else in it."""

    def own_digest(self) -> str:
        """What ``digest`` has to be. Fields that the file does not have are newer than it."""
        content = self.model_dump_json(exclude={"digest"}, exclude_unset=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    manifest: Manifest
    passed_over: tuple[int, ...] = ()
    """The steps of later ones, which are damaged."""

    def contents(self) -> dict[str, TensorFile]:
        """Its tensors. Raises InputError where its table of contents is wrong."""
        sizes = {name: record.bytes for name, record in self.manifest.files.items()}
        if CONTENTS not in sizes:
            problem = f"has no {CONTENTS}, as those of earlier versions, which are read no more"
            raise InputError(str(self.path), problem)
        return read_contents(self.path, sizes)


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
        # DCP's own communication tells in its own words that another rank is lost.
        with _quiet(), world.reporting(f"checkpoint {path}"):
            _dcp_save(world, part, shards)
        written = _together(world, lambda: _records(part, world.rank))
        files = {name: record for records in written for name, record in records.items()}
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


def find(world: World, folder: Path, warn: Warn) -> Checkpoint | None:
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
            return Checkpoint(path, manifests[world.rank], tuple(passed_over))
    if problem:
        raise AgreedError(str(folder), f"no checkpoint is whole; {problem}")
    return None


def load(world: World, kept: Checkpoint, shards: Iterable[Shard]) -> None:
    """Fill blocks from a checkpoint, whatever blocks it has. All ranks call together.

    Raises AgreedError for a tensor that is not in it, or has another shape.
    """

    def read() -> None:
        with world.busy("reading a checkpoint"):
            fill(shards, kept.contents(), kept.path)

    try:
        _together(world, read, f"checkpoint {kept.path}")
    except _AnyFailed as error:
        where = str(kept.path)
        raise AgreedError(where, _reason(error).removeprefix(f"{where}: ")) from error


def newest_manifest(path: Path) -> Checkpoint:
    """The checkpoint at a path, or the newest whole one of a folder of them. For a single process.

    Raises InputError where there is none.
    """
    if (path / MANIFEST).exists():
        try:
            return Checkpoint(path, _verified(path, World()))
        except _Damaged as error:
            raise InputError(str(path), f"damaged: {error}") from None
    newest = find(World(), path, lambda text: None)
    if newest is None:
        raise InputError(str(path), "has no checkpoint")
    return newest


class _Damaged(UnityError):
    """What is wrong with a checkpoint."""


class _AnyFailed(Exception):
    """A rank's failure, on all of them."""


def _together(world: World, act: Callable[[], T], what: str = "all_gather of notes") -> list[T]:
    """What all ranks' calls return. Where one fails, all raise its error. ``what``: its name where
    a rank is lost."""
    result, problem = None, None
    try:
        result = act()
    except Exception as error:  # a rank that left would keep the others waiting
        rank = f"rank {world.rank}: " if world.size > 1 else ""
        problem = one_line(f"{rank}{words(error)}")
    outcomes = world.gather((result, problem), what)
    for _, failed in outcomes:
        if failed is not None:
            raise _AnyFailed(failed)
    return [cast(T, part) for part, _ in outcomes]


def run_of(path: Path) -> str | None:
    """The identity of the run that wrote a checkpoint, if that can be read."""
    try:
        return _manifest(path).run or None
    except (InputError, _Damaged):
        return None


def _prepare(folder: Path, part: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    part.mkdir()


class _Writer(TableWriter):
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
    """The files that this rank wrote; the tables of contents are rank 0's."""
    own = sorted(part.glob(f"__{rank}_*"))
    own += [part / PICKLED, part / CONTENTS] if rank == 0 else []
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
    manifest = _manifest(path)
    if manifest.digest != manifest.own_digest():
        raise _Damaged(f"{MANIFEST} is not what was written")
    for name, wanted in sorted(manifest.files.items())[world.rank :: world.size]:
        _check_kind(path / name)
        if (path / name).stat().st_size != wanted.bytes or _record(path / name) != wanted:
            raise _Damaged(f"{name} is not what was written")
    return manifest


def _manifest(path: Path) -> Manifest:
    _check_kind(path / MANIFEST)
    return read_json(path / MANIFEST, Manifest)


def _check_kind(path: Path) -> None:
    """Raise _Damaged unless a path is a plain file. A link may lead elsewhere, and to read a pipe
    or device may take for ever."""
    if not path.is_file():
        raise _Damaged(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    if path.is_symlink():
        raise _Damaged(f"{path.name} is a link, expected a file of its own")


def _reason(error: BaseException) -> str:
    """The first rank's error behind one of torch.distributed.checkpoint."""
    if not isinstance(error, CheckpointException):
        return one_line(str(error))
    rank, (first, _) = min(error.failures.items())
    if isinstance(first, InputError):
        return str(first)
    return one_line(f"rank {rank}: {words(first)}")


@contextmanager
def _quiet() -> Generator[None]:
    """Without DCP's remarks that there is a single process, or that it reads its own format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
