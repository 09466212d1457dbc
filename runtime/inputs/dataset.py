"""Read the inputs of each step from a user's dataset.

The samples of a step depend only on the seed and the number of the step, never on the plan. So a
resumed run, on any number of processes, continues with the next samples. A rank reads only the
samples of its own rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from pcg.errors import InputError
from pcg.graph.graph import DRAWN, Leaf
from pcg.ops.user import run_file
from pcg.placement.region import Region, as_slices
from pcg.plan.naming import NamingFile
from runtime.inputs.seeded import InputSource, Synthetic
from runtime.inputs.tensor_checks import as_tensor, fitting


class Samples(Protocol):
    """An endless sequence of samples."""

    def at(self, position: int) -> Any:
        """The sample at a position of the sequence."""
        ...

    def place(self, position: int) -> str:
        """Where in the dataset the sample at a position is, in words."""
        ...


class MapSamples:
    """The samples of a map-style dataset, in an order that is drawn anew for every pass over it.
    The last samples of a pass that do not fill a batch are left out."""

    def __init__(self, dataset: Any, batch: int, seed: int, where: str) -> None:
        self._dataset, self._seed, self._where = dataset, seed, where
        self._usable = len(dataset) // batch * batch
        if not self._usable:
            raise InputError(where, f"{len(dataset)} samples, expected a batch of {batch} or more")
        self._pass, self._order = -1, torch.empty(0, dtype=torch.int64)

    def place(self, position: int) -> str:
        return f"index {self._index(position)} of the dataset"

    def at(self, position: int) -> Any:
        return self._dataset[self._index(position)]

    def _index(self, position: int) -> int:
        number, place = divmod(position, self._usable)
        if number != self._pass:
            digest = blake2b(f"{self._seed}/order/{number}".encode(), digest_size=7).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
            self._order = torch.randperm(len(self._dataset), generator=generator)
            self._pass = number
        return int(self._order[place])


class StreamSamples:
    """The samples of an iterable in its order. At its end it starts again. To go back it is
    iterated again from the start. The samples of the last ``kept`` positions are kept."""

    def __init__(self, dataset: Iterable[Any], kept: int, where: str) -> None:
        self._dataset, self._kept, self._where = dataset, kept, where
        self._iterator: Iterator[Any] = iter(dataset)
        self._next = 0
        self._recent: dict[int, Any] = {}

    def place(self, position: int) -> str:
        return "as the dataset gives them"

    def at(self, position: int) -> Any:
        if position < self._next and position not in self._recent:
            self._iterator, self._next = iter(self._dataset), 0
            self._recent.clear()
        while self._next <= position:
            self._recent[self._next] = self._following()
            self._recent.pop(self._next - self._kept, None)
            self._next += 1
        return self._recent[position]

    def _following(self) -> Any:
        for _ in range(2):
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = iter(self._dataset)
        raise InputError(self._where, "gives no samples")


class SharedSamples:
    """The samples of an iterable that can be divided, as datasets of Hugging Face can:
    ``shard(num_shards, index)`` returns a part of it.

    The rows of a batch are cut in as many groups as there are parts, and each group has the samples
    of one part. A rank iterates only over the parts of its own rows. The sample of a row does not
    depend on the number of ranks.
    """

    def __init__(self, dataset: Any, batch: int, where: str) -> None:
        self._dataset, self._batch, self._where = dataset, batch, where
        most = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None) or batch
        # The largest number of parts by which the number of rows can be divided.
        self._parts = max(n for n in range(1, batch + 1) if batch % n == 0 and n <= int(most))
        self._streams: dict[int, StreamSamples] = {}

    def at(self, position: int) -> Any:
        part, index = self._in_part(position)
        if part not in self._streams:
            shard = self._dataset.shard(num_shards=self._parts, index=part)
            self._streams[part] = StreamSamples(shard, self._batch // self._parts, self._where)
        return self._streams[part].at(index)

    def place(self, position: int) -> str:
        part, index = self._in_part(position)
        return f"sample {index} of part {part} of {self._parts}"

    def _in_part(self, position: int) -> tuple[int, int]:
        """The part of the sample at a position, and the sample's position in the part."""
        batch, row = divmod(position, self._batch)
        rows = self._batch // self._parts
        part, row_in_part = divmod(row, rows)
        return part, batch * rows + row_in_part


class UserData:
    """The inputs from a user's dataset.

    A sample has a tensor for each input, without the batch dimension: by the input's name, or in
    the order of the model's arguments. Inputs that are no part of samples, such as buffers of the
    model, are read from the attribute ``constants`` of the dataset, by name.
    """

    def __init__(
        self,
        dataset: Any,
        leaves: Iterable[Leaf],
        naming: NamingFile,
        seed: int,
        where: str,
        *,
        alone: bool = True,
    ) -> None:
        """``alone``: whether the dataset is the only source of inputs that are no part of samples.
        Raises InputError if the dataset or its constants do not fit."""
        self._where = where
        constants: Mapping[str, Any] = getattr(dataset, "constants", {})
        self._constants = {
            name: as_tensor(value, f"{where}: constants: {name}")
            for name, value in constants.items()
        }
        self._order = [name for name in naming.inputs if name is not None]
        self._drawn = Synthetic(seed)
        not_drawn = [leaf for leaf in leaves if not leaf.name.startswith(DRAWN)]
        batched = [leaf for leaf in not_drawn if leaf.name not in self._constants]
        if not alone:
            batched = [leaf for leaf in batched if leaf.name not in naming.buffers]
        for leaf in batched:
            if (buffer := naming.buffers.get(leaf.name)) is not None:
                problem = f"is buffer {buffer} of the model, expected in `constants` of the data"
                raise InputError(f"{where}: input {leaf.name}", problem)
        self._batch = _batch_size(batched, where)
        self._samples = _samples(dataset, self._batch, seed, where)
        self._step, self._read = -1, dict[int, Any]()

    @property
    def seed(self) -> int:
        return self._drawn.seed

    @property
    def counts(self) -> bool:
        return True

    @property
    def constants(self) -> Collection[str]:
        return self._constants.keys()

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource.piece``. Raises InputError for a sample or
        constant that does not fit the model."""
        if leaf.name.startswith(DRAWN):
            return self._drawn.piece(leaf, region, step)
        if leaf.name in self._constants:
            where = f"{self._where}: constants: input {leaf.name}"
            whole = fitting(leaf, self._constants[leaf.name], leaf.shape, where)
            return whole[as_slices(region)]
        if step != self._step:
            self._step, self._read = step, {}
        (begin, end), *others = region
        rows = [self._row(leaf, row)[as_slices(tuple(others))] for row in range(begin, end)]
        return torch.stack(rows)

    def _row(self, leaf: Leaf, row: int) -> Tensor:
        position = self._step * self._batch + row
        if row not in self._read:
            try:
                self._read[row] = self._samples.at(position)
            except (InputError, MemoryError):
                raise
            except Exception as error:
                problem = f"sample {position} raised {type(error).__name__}: {error}"
                raise InputError(self._where, problem) from error
        field, name = self._field(leaf, self._read[row]), f"input {leaf.name}"
        try:
            return fitting(leaf, as_tensor(field, name), leaf.shape[1:], name)
        except InputError as error:
            place = f"sample {position}, {self._samples.place(position)}"
            raise InputError(f"{self._where}: {place}", str(error)) from error

    def _field(self, leaf: Leaf, sample: Any) -> Any:
        names = self._order
        field: Any = None
        if isinstance(sample, Mapping):
            field = sample.get(leaf.name)
        elif leaf.name in names:
            parts = sample if isinstance(sample, (tuple, list)) else (sample,)
            place = names.index(leaf.name)
            field = parts[place] if len(parts) == len(names) else None
        if field is None:
            expected = f"expected a tensor for each of {', '.join(names) or leaf.name}"
            raise InputError(self._where, f"no input {leaf.name} in a sample, {expected}")
        return field


def make_source(
    name: str | None, leaves: Iterable[Leaf], naming: NamingFile, seed: int, *, alone: bool = True
) -> InputSource:
    """The source of the inputs ``leaves``. ``name``: the function that returns a dataset, as
    module:function or FILE.py:function; without it inputs are synthetic. ``alone``: as in
    ``UserData``. Raises InputError if there is no such function, or it fails."""
    if name is None:
        return Synthetic(seed)
    path, colon, function = name.rpartition(":")
    where = f"--data {name}"
    if not colon or not path or not function:
        raise InputError(where, "expected module:function")
    make = getattr(_module(path, where), function, None)
    if not callable(make):
        raise InputError(where, f"{path} has no function {function}")
    try:
        dataset = make()
    except Exception as error:
        problem = f"{function} raised {type(error).__name__}: {error}"
        raise InputError(where, problem) from error
    return UserData(dataset, leaves, naming, seed, where, alone=alone)


def _module(path: str, where: str) -> ModuleType:
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise InputError(where, f"{path}: no such file")
        return run_file(Path(path), "user_data")
    # As with `python -m`, modules of the working directory can be imported.
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109  # sys.path holds text
        sys.path.insert(0, here)
    try:
        return import_module(path)
    except Exception as error:
        raise InputError(where, f"import of {path}: {type(error).__name__}: {error}") from error


def _batch_size(leaves: Iterable[Leaf], where: str) -> int:
    """The batch size of inputs. Raises InputError if they differ, or there are no inputs."""
    sizes = {leaf.name: leaf.shape[0] if leaf.rank else 0 for leaf in leaves}
    if len(set(sizes.values())) != 1:
        text = ", ".join(f"{name} {size}" for name, size in sizes.items()) or "none"
        raise InputError(where, f"expected inputs with one batch size, the model has {text}")
    return next(iter(sizes.values()))


def _samples(dataset: Any, batch: int, seed: int, where: str) -> Samples:
    """The samples of a dataset, by its kind. Raises InputError if it is no dataset."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return MapSamples(dataset, batch, seed, where)
    if isinstance(dataset, Iterable) and callable(getattr(dataset, "shard", None)):
        return SharedSamples(dataset, batch, where)
    if isinstance(dataset, Iterable):
        return StreamSamples(dataset, batch, where)
    problem = f"returned {type(dataset).__name__}, expected a dataset or an iterable"
    raise InputError(where, problem)
