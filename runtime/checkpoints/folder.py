"""List, name and tidy the checkpoints in a folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"step-(\d{8,})")
WRITING, REPLACED = ".writing-", ".replaced-"
"""What names of checkpoints begin with that are not there yet, or no more."""


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def numbered(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, the newest first; among them one that had to make
    way, where the process died before another took its place."""
    paths: dict[int, Path] = {}
    # What made way comes first in order, so that what took its place counts.
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if matched := _NAME.fullmatch(path.name.removeprefix(REPLACED)):
            paths[int(matched[1])] = path
    return dict(sorted(paths.items(), reverse=True))


def try_to_write(folder: Path) -> None:
    """Make a folder if it is not there, and a file in it that goes at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0")


def tidy(folder: Path) -> None:
    """Remove what is half written. For who has the folder."""
    for left in folder.glob(f"{WRITING}*"):
        shutil.rmtree(left)
    for left in folder.glob(f"{REPLACED}*"):
        replacement = left.with_name(left.name.removeprefix(REPLACED))
        if replacement.exists():
            shutil.rmtree(left)
        else:
            left.rename(replacement)


def remove_others(folder: Path, kept: Path) -> None:
    """Make room: of the checkpoints of a folder one stays."""
    for path in numbered(folder).values():
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def sync(folder: Path) -> None:
    """Have the names in a folder written to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
