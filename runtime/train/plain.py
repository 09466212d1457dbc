"""Read and write plain state dicts: whole tensors by their names in the module."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.placement.region import as_slices
from pcg.plan.naming import NamingFile
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.pieces import fill as fill_shards
from runtime.checkpoints.shards import Shard
from runtime.execute.running_statistics import RunningStatistics
from runtime.program.program import Weight

PREFIX = "model."
"""The prefix of weights and running statistics among the tensors of a checkpoint."""


def state_dict(source: Checkpoint) -> dict[str, Tensor]:
    """The weights of a checkpoint on the CPU, under all their names in the module. A parameter with
    several names is a single tensor. Raises InputError if a tensor is missing or damaged."""
    tensors: dict[str, Tensor] = {}
    contents = source.contents()
    for name in source.manifest.parameters:
        saved = contents.get(PREFIX + name)
        if saved is None:
            raise InputError(str(source.path), f"has no tensor {PREFIX}{name}")
        tensors[name] = torch.empty(saved.shape, dtype=saved.torch_dtype)
    shards = (
        Shard(PREFIX + name, tuple(tensor.shape), (0,) * tensor.dim(), tensor, writes=False)
        for name, tensor in tensors.items()
    )
    fill_shards(shards, contents, source.path)
    names = source.manifest.parameters.items()
    return {alias: tensors[name] for name, others in names for alias in (name, *others)}


def write_state_dict(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict to a file, completely or not at all. Raises InputError if that fails."""
    temporary = path.with_name(f".unity-{secrets.token_hex(8)}.tmp")
    try:
        torch.save(dict(state), temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(str(path), one_line(f"cannot write: {error}")) from error


def fill(
    weights: Mapping[str, Tensor],
    pieces: Iterable[Weight],
    naming: NamingFile,
    path: str,
    running: RunningStatistics,
) -> None:
    """Fill this rank's blocks of weights (by register) and the running statistics from a file with
    a state dict. Only these parts of the file are read. Raises InputError for a file that is no
    state dict, or lacks a parameter, or has it in another shape."""
    state = read_state_dict(path)
    running.fill(state)
    for piece in pieces:
        parameter = naming.parameter(piece.leaf.name)
        if (name := parameter.missing_from(state)) is not None:
            raise InputError(path, f"has no parameter {name}")
        if (misfit := parameter.misfit(piece.leaf.shape, state)) is not None:
            name, actual, expected = misfit
            raise InputError(path, f"{name}: expected shape {expected}, got {actual}")
        value = parameter.weight(state)
        weights[piece.register].copy_(value[as_slices(piece.region)])


def read_state_dict(path: str) -> dict[str, Tensor]:
    """A plain state dict, memory-mapped from its file. Raises InputError for any other file."""
    if not Path(path).is_file():
        raise InputError(path, "no such file (expected a state dict)")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many kinds of errors for a file that is no state dict
        raise InputError(path, one_line(f"not a state dict: {error}")) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(path, "not a state dict, expected tensors by name")
    return cast(dict[str, Tensor], state)
