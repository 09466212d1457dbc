"""Writes the file of `--losses`: a line of JSON for each step, each step once.

A run that goes on from a checkpoint repeats steps that were written after the checkpoint. A killed
run may leave a part of a line. So before the first step the file is cut back to the step of the
checkpoint: lines of later steps are removed from its end. These are lines of this run or, with
--resume, of any run. All lines before them stay, those of other runs too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import Any

from pcg.errors import InputError
from runtime.job.job import Beginning, FinishedStep


class LossFile:
    """An open losses file, or nothing to write to."""

    def __init__(self, path: str | None, file: TextIOWrapper | None) -> None:
        self._path, self._file, self._run = path, file, ""

    def begin(self, beginning: Beginning) -> None:
        """Cut the file back to the first step of a run."""
        self._run = beginning.run
        if self._path is None or self._file is None or not Path(self._path).is_file():
            return
        with _writing(self._path):
            os.truncate(self._path, kept_bytes(Path(self._path).read_bytes(), beginning))

    def write(self, step: FinishedStep) -> None:
        """Add a step. A loss that is not finite becomes null, as JSON has no number for it."""
        if self._path is None or self._file is None:
            return
        content: dict[str, Any] = asdict(step)
        if not isfinite(step.loss):
            content["loss"] = None
        if self._run:
            content["run"] = self._run
        with _writing(self._path):
            self._file.write(json.dumps(content) + "\n")
            self._file.flush()


def kept_bytes(content: bytes, beginning: Beginning) -> int:
    """Return the number of bytes of a file that stay."""
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    while lines and _is_repeated(lines[-1], beginning):
        lines.pop()
    return sum(map(len, lines))


def _is_repeated(line: bytes, beginning: Beginning) -> bool:
    try:
        entry = json.loads(line)
        number, run = int(entry["number"]), entry.get("run")
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return number >= beginning.first and (beginning.goes_on or run == beginning.run)


@contextmanager
def losses_file(path: str | None) -> Generator[LossFile]:
    """Yield the losses file at a path, if one is given."""
    if path is None:
        yield LossFile(None, None)
        return
    with _writing(path):
        file = Path(path).open("a")  # noqa: SIM115  # closed below, with the errors of this file
    try:
        yield LossFile(path, file)
    finally:
        with _writing(path):
            file.close()


@contextmanager
def _writing(path: str) -> Generator[None]:
    """Turn an OSError into an InputError that the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(path, f"cannot write: {error.strerror}") from error
