"""List, name and tidy the checkpoints in a folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"step-(\d{8,})")
WRITING, REPLACED = ".writing-", ".replaced-"
"""The prefixes of a checkpoint that is being written, and of one that is being replaced."""


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def numbered(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by step, the newest first. One that was being replaced counts if
    the process died before its replacement was there."""
    paths: dict[int, Path] = {}
    # A replaced checkpoint sorts first, so that its replacement overwrites its entry.
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if matched := _NAME.fullmatch(path.name.removeprefix(REPLACED)):
            paths[int(matched[1])] = path
    return dict(sorted(paths.items(), reverse=True))


def try_to_write(folder: Path) -> None:
    """Create a folder if it does not exist, and a temporary file in it. Raises OSError if that is
    impossible."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0")


def tidy(folder: Path) -> None:
    """Remove checkpoints that are half written or replaced, and restore those whose replacement is
    missing. Only for the owner of the folder."""
    for partial in folder.glob(f"{WRITING}*"):
        shutil.rmtree(partial)
    for replaced in folder.glob(f"{REPLACED}*"):
        replacement = replaced.with_name(replaced.name.removeprefix(REPLACED))
        if replacement.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(replacement)


def remove_others(folder: Path, kept: Path) -> None:
    """Remove all checkpoints of a folder but one, to make room."""
    for path in numbered(folder).values():
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def sync(folder: Path) -> None:
    """Write the names in a folder to the disk (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
