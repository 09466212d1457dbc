"""Save, find, verify and load checkpoints. A checkpoint is complete or does not exist.

A checkpoint is a folder ``step-N`` with the files of torch.distributed.checkpoint (DCP), a table of
their contents (``runtime.checkpoints.contents``) and a manifest, ``checkpoint.json``. The manifest
has the hashes of the files and all else that a run needs to go on. A checkpoint is written under a
temporary name. It gets its final name once all ranks have finished and everything is on the disk.
Nothing in it is ever unpickled.
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
"""A callback, which gets one line for the user."""


class CheckpointError(AgreedError):
    """A checkpoint could not be written. Raised on all ranks together."""

    exit_status = TRY_AGAIN


FileName = Annotated[str, StringConstraints(pattern=rf"^({DATA}|{CONTENTS}|{PICKLED})$")]
"""The name of a file beside the manifest. A path to another folder does not match."""
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class FileRecord(FileModel):
    """The expected size and hash of a file of a checkpoint."""

    bytes: Count
    digest: str
    """BLAKE2b."""


class ScaleRecord(FileModel):
    """The loss scale of a float16 run."""

    value: Annotated[float, Field(gt=0)]
    good_steps: Count
    """Updates with finite gradients since the last one without."""


class Manifest(FileModel):
    """``checkpoint.json``."""

    schema_version: Literal[1] = 1
    model: Name
    graph: Name
    """Hash of the model's graph."""
    updates: Count
    """The number of updates of the weights: finished training steps."""
    batches: Count | None = None
    """The batches that these steps read. None if each step read as many as the recipe says."""
    seed: int
    recipe: Recipe
    run: Name = ""
    """The identity of the run that wrote it."""
    delayed: bool = False
    """Whether the checkpoint also has the weights before the last update (PipeDream-2BW)."""
    loss_scale: ScaleRecord | None = None
    parameters: dict[Name, tuple[Name, ...]]
    """Every parameter and running statistic of the checkpoint, with its other names in the
    module."""
    files: dict[FileName, FileRecord] = Field(default_factory=dict[str, FileRecord])
    digest: str = ""
    """BLAKE2b of all other fields."""

    def own_digest(self) -> str:
        """The value that ``digest`` must have. A field that is absent from the file does not count,
        because a later version of the format has added it."""
        content = self.model_dump_json(exclude={"digest"}, exclude_unset=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A complete, undamaged checkpoint."""

    path: Path
    manifest: Manifest
    passed_over: tuple[int, ...] = ()
    """The steps of later checkpoints, which are damaged."""

    def contents(self) -> dict[str, TensorFile]:
        """The tensors of the checkpoint, by name. Raises InputError if its table of contents is
        missing or wrong."""
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
    """Write a checkpoint, and remove all older ones but the newest ``keep``. All ranks call
    together.

    ``passed_over``: the steps of damaged checkpoints, which are removed as well. Raises
    CheckpointError on all ranks if one of them fails; then the older checkpoints stay.
    """
    path = path_of(folder, manifest.updates)
    part = folder / f"{WRITING}{path.name}"
    try:
        _together(world, lambda: _prepare(folder, part) if world.rank == 0 else None)
        # DCP communicates by itself, and would report a lost rank in its own words.
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
    """The newest undamaged checkpoint of a folder. None if the folder has no checkpoint. All ranks
    call together. ``warn`` gets a line about each damaged checkpoint that is passed over.

    Raises AgreedError if all checkpoints are damaged.
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


def load(world: World, source: Checkpoint, shards: Iterable[Shard]) -> None:
    """Fill shards from a checkpoint, which may be cut in other pieces. All ranks call together.

    Raises AgreedError for a tensor that the checkpoint lacks, or has in another shape.
    """

    def read() -> None:
        with world.busy("reading a checkpoint"):
            fill(shards, source.contents(), source.path)

    try:
        _together(world, read, f"checkpoint {source.path}")
    except _AnyFailed as error:
        where = str(source.path)
        raise AgreedError(where, _reason(error).removeprefix(f"{where}: ")) from error


def newest_manifest(path: Path) -> Checkpoint:
    """The checkpoint at a path, or the newest undamaged one if the path is a folder of checkpoints.
    For a single process.

    Raises InputError if there is none.
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
    """A checkpoint is damaged. The text says how."""


class _AnyFailed(Exception):
    """The failure of one rank, raised on all ranks."""


def _together(world: World, act: Callable[[], T], what: str = "all_gather of notes") -> list[T]:
    """Call a function on all ranks. Return their results, in the order of ranks.

    Raises _AnyFailed on all ranks if the call fails on one. ``what``: the name of this
    communication in the error about a lost rank.
    """
    result, problem = None, None
    try:
        result = act()
    except Exception as error:  # if this rank left now, the others would wait for it
        rank = f"rank {world.rank}: " if world.size > 1 else ""
        problem = one_line(f"{rank}{words(error)}")
    outcomes = world.gather((result, problem), what)
    for _, failed in outcomes:
        if failed is not None:
            raise _AnyFailed(failed)
    return [cast(T, part) for part, _ in outcomes]


def run_of(path: Path) -> str | None:
    """The identity of the run that wrote a checkpoint. None if its manifest cannot be read."""
    try:
        return _manifest(path).run or None
    except (InputError, _Damaged):
        return None


def _prepare(folder: Path, part: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    part.mkdir()


class _Writer(TableWriter):
    """Announces to other ranks that this one is writing and does not wait for them."""

    world: World

    def write_data(self, *arguments: Any, **keywords: Any) -> Any:
        with self.world.busy("writing a checkpoint"):
            return super().write_data(*arguments, **keywords)


def _dcp_save(world: World, part: Path, shards: Sequence[Shard]) -> None:
    writer = _Writer(part, sync_files=True)
    writer.world = world
    is_single = world.size == 1
    group = world.network.everyone
    planner = ShardSaver(shards)
    dcp_save({}, storage_writer=writer, planner=planner, process_group=group, no_dist=is_single)


def _records(part: Path, rank: int) -> dict[str, FileRecord]:
    """The records of the files that this rank wrote. Rank 0 wrote the tables of contents, too."""
    paths = sorted(part.glob(f"__{rank}_*"))
    paths += [part / PICKLED, part / CONTENTS] if rank == 0 else []
    return {path.name: _record(path) for path in paths}


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return FileRecord(bytes=path.stat().st_size, digest=digest)


def _publish(part: Path, path: Path, manifest: Manifest) -> None:
    # Parsed from its own text, all fields count as set, and so enter the digest.
    parsed = Manifest.model_validate_json(manifest.model_dump_json())
    signed = parsed.model_copy(update={"digest": parsed.own_digest()})
    write_text_atomic(part / MANIFEST, signed.model_dump_json(indent=1) + "\n")
    sync(part)
    replaced = path.with_name(f"{REPLACED}{path.name}")
    if path.exists():  # a damaged checkpoint from before a restart
        path.rename(replaced)
    part.rename(path)
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _verified(path: Path, world: World) -> Manifest:
    """The manifest of a checkpoint. Raises _Damaged unless it and this rank's share of the files
    have the recorded hashes."""
    manifest = _manifest(path)
    if manifest.digest != manifest.own_digest():
        raise _Damaged(f"{MANIFEST} is not what was written")
    for name, expected in sorted(manifest.files.items())[world.rank :: world.size]:
        _check_kind(path / name)
        if (path / name).stat().st_size != expected.bytes or _record(path / name) != expected:
            raise _Damaged(f"{name} is not what was written")
    return manifest


def _manifest(path: Path) -> Manifest:
    _check_kind(path / MANIFEST)
    return read_json(path / MANIFEST, Manifest)


def _check_kind(path: Path) -> None:
    """Raise _Damaged unless a path is a plain file. A link may lead to another folder, and reading
    a pipe or device may never end."""
    if not path.is_file():
        raise _Damaged(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    if path.is_symlink():
        raise _Damaged(f"{path.name} is a link, expected a file of its own")


def _reason(error: BaseException) -> str:
    """The text of an error. Of one that DCP raises, the error of the lowest rank that failed."""
    if not isinstance(error, CheckpointException):
        return one_line(str(error))
    rank, (first, _) = min(error.failures.items())
    if isinstance(first, InputError):
        return str(first)
    return one_line(f"rank {rank}: {words(first)}")


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress DCP's warnings, such as the one that there is a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
