"""The end of commands: one line and a status. Only faults of ours have a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
from support.paths import ROOT

from pcg.errors import InputError, NegativeAnswer, OperatorError
from unity import __main__ as console
from unity.support.cli import app_of, run_app, run_command, say, say_json
from unity.support.console import PlainConsole


def status_of(call: Callable[[], object]) -> object:
    """Return the status with which the call ends the process."""
    with pytest.raises(SystemExit) as caught:
        call()
    return caught.value.code or 0


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("a.json", "line 1:\nbad"), 2, "unity: error: a.json: line 1: bad\n"),
        (OperatorError("relu", "x", None, "bad"), 2, "unity: error: relu: operand x: bad\n"),
        (NegativeAnswer("1 rule refuted"), 1, "unity: error: 1 rule refuted\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_error_has_its_status_and_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
):
    assert status_of(lambda: run_command(lambda: fail(error))) == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_returned_status(returned: int | None, status: int):
    assert status_of(lambda: run_command(lambda: returned)) == status


def test_our_own_faults_pass_through():
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: fail(ZeroDivisionError()))


@dataclass(frozen=True)
class Load:
    """Load PATH."""

    path: str
    nodes: int = 1


def run(options: Load) -> None:
    if options.path == "interrupted":
        raise KeyboardInterrupt
    if options.path == "wrong":
        raise InputError(options.path, "is wrong")
    say(f"{options.path} {options.nodes}")
    if options.path == "json":
        say_json(options.nodes)


app = app_of(Load, __name__)


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["x", "--nodes", "2"], 0, "x 2\n", ""),
        (["--help"], 0, "Usage: unity load", ""),
        (["wrong"], 2, "", "unity: error: wrong: is wrong\n"),
        (["interrupted"], 130, "", ""),
        ([], 2, "", "unity: error: load: missing argument"),
        (["x", "--nodes", "two"], 2, "", "unity: error: load: invalid value for '--nodes': "),
        (["x", "--knots", "2"], 2, "", "unity: error: load: no such option: --knots"),
        (["x", "y"], 2, "", "unity: error: load: got unexpected extra argument"),
        (["x", "--quiet"], 0, "", ""),
        (["json", "-q", "--nodes", "2"], 0, "2\n", ""),
        (["wrong", "-q"], 2, "", "unity: error: wrong: is wrong\n"),
    ],
)
def test_typer_commands(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, out: str, err: str
):
    assert status_of(lambda: run_app(app, "load", arguments)) == status
    printed = capsys.readouterr()
    assert out in printed.out
    assert err in printed.err
    assert "Traceback" not in printed.err
    assert bool(printed.out) == bool(out)
    assert len(printed.err.splitlines()) <= 1


def test_quiet_is_of_one_command(capsys: pytest.CaptureFixture[str]):
    for arguments, printed in ((["x", "-q"], ""), (["x"], "x 1\n")):
        assert status_of(lambda given=arguments: run_app(app, "load", given)) == 0
        PlainConsole().print(printed, end="")
        assert capsys.readouterr().out == 2 * printed


def test_console_hands_over(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("unity.run")
    module.app = app  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "unity.run", module)
    assert status_of(lambda: console.main(["run", "x"])) == 0
    assert capsys.readouterr().out == "x 1\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_console_help(capsys: pytest.CaptureFixture[str], arguments: list[str]):
    assert status_of(lambda: console.main(arguments)) == 0
    out = capsys.readouterr().out
    assert all(f"  {command} " in out for command in console.COMMANDS)


def test_console_version(capsys: pytest.CaptureFixture[str]):
    assert status_of(lambda: console.main(["--version"])) == 0
    assert capsys.readouterr().out.startswith("unity ")


def test_console_unknown_command(capsys: pytest.CaptureFixture[str]):
    assert status_of(lambda: console.main(["optimise"])) == 2
    assert capsys.readouterr().err == (
        "unity: error: optimise: no such command "
        "(expected one of optimize, compare, generate, verify, recheck, audit, simulate, "
        "explain, diff, report, profile, run, export)\n"
    )


def test_reader_that_leaves_is_no_fault():
    read, write = os.pipe()
    os.close(read)
    code = "from unity.support.cli import run_command; run_command(lambda: print('x' * 100_000))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("closed", [1, 2])
def test_output_that_is_closed_is_no_fault(closed: int):
    code = "from unity.support.cli import run_command, say; run_command(lambda: say('done'))"
    shell = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} {closed}>&-"
    done = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if closed == 1 else "done\n")
