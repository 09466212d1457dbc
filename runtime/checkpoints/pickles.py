"""List the names that a pickle refers to, without unpickling it.

A pickle is a program. This module reads it as a list of instructions and executes none of them. It
collects the names of classes and functions from their operands, and refuses any instruction that
could name something in another way.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from pathlib import Path

from pcg.errors import InputError

LIMIT = 64 * 1024 * 1024
"""The largest table of contents, in bytes."""
_TEXT = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_PUT = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GET = frozenset({"GET", "BINGET", "LONG_BINGET"})
_REFUSED = frozenset({"INST", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"})
"""Instructions that name a class or function in other ways."""

_METADATA = "torch.distributed.checkpoint.metadata"
_NAMES = frozenset(
    {
        *(
            f"{_METADATA}.{name}"
            for name in (
                "Metadata",
                "MetadataIndex",
                "TensorStorageMetadata",
                "TensorProperties",
                "ChunkStorageMetadata",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.Size",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
        *(f"torch.{name}" for name in ("float64", "float32", "bfloat16", "float16", "int64")),
    }
)
"""The only names in a table of contents that this package writes."""


def check_names(path: Path) -> None:
    """Raise InputError if a pickled table of contents names anything else. Another tool that loads
    the table would run it."""
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise InputError(str(path), f"larger than {LIMIT >> 20} MiB (expected a table)")
        names = list(names_in(content))
        for name in names:
            if name not in _NAMES:
                raise InputError(str(path), f"names {name}, which is no part of a table")
        if f"{_METADATA}.Metadata" not in names:
            raise InputError(str(path), "is no table of contents")
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(str(path), f"is no table of contents: {error}") from None


def names_in(content: bytes) -> Iterator[str]:
    """Every ``module.name`` that a pickle loads, with repetitions.

    Raises ValueError if the content is no pickle, or if a name is not written out before its use.
    """
    memo: dict[int, str | None] = {}
    texts: list[str | None] = [None, None]
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name in _REFUSED:
            raise ValueError(f"has the instruction {name}")
        if name in _PUT or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else int(str(argument))] = texts[-1]
            continue
        if name == "GLOBAL":
            yield str(argument).replace(" ", ".", 1)
        elif name == "STACK_GLOBAL":
            module, attribute = texts[-2:]
            if module is None or attribute is None:
                raise ValueError("has a name that is not written out")
            yield f"{module}.{attribute}"
        texts = [texts[-1], _text(name, argument, memo)]


def _text(operation: str, argument: object, memo: dict[int, str | None]) -> str | None:
    """The text that an instruction pushes on the stack. None if it pushes something else."""
    if operation in _TEXT:
        return str(argument)
    return memo.get(int(str(argument))) if operation in _GET else None
