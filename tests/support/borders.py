"""The checks for every hostile input: the command refuses it soon, with one line and an exit
status, and writes nothing."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import typer
from support.runs.commands import Finished

from unity.support.cli import run_app

LONGEST = 10.0
"""Seconds of processor time after which a command counts as hanging."""


def command(app: typer.Typer, name: str, *arguments: object) -> Finished:
    """Run a command in this process. Any exception but SystemExit is a traceback, and is raised."""
    out, err = io.StringIO(), io.StringIO()
    status: object = None
    begin = time.process_time()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            run_app(app, name, [str(argument) for argument in arguments])
    except SystemExit as ended:
        status = ended.code
    assert isinstance(status, int)
    assert time.process_time() - begin < LONGEST
    return Finished(status, out.getvalue(), err.getvalue())


def refused(app: typer.Typer, name: str, *arguments: object, status: int = 2) -> str:
    """Run a command that has to refuse its input, and return its one error line."""
    result = command(app, name, *arguments)
    assert result.status == status, result.out + result.err
    line = result.err.removesuffix("\n")
    assert line.startswith("unity: error: ")
    assert line.isprintable(), line
    assert status != 2 or result.out == ""
    return line.removeprefix("unity: error: ")


def files(folder: Path) -> dict[str, bytes | None]:
    """The content of each file in a folder, to check that nothing was written."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
