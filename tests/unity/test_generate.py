"""`unity generate`: a part of the library, and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from support.graphs.operators import known_within
from support.paths import ROOT
from typer.testing import CliRunner

from pcg.types.operator import Operator
from substitutions.generate.library import GenerationResult, generate
from substitutions.rules.store import default_path, load_library
from unity.__main__ import main
from unity.generate import app
from unity.support.cli import INTERRUPTED

runner = CliRunner()

OWN = 'squared = Operator("squared", "out[i...] = x[i...] * x[i...]")'


@pytest.fixture(scope="module")
def made() -> dict[object, GenerationResult]:
    """The generated libraries, by their options."""
    return {}


@pytest.fixture
def _generated_once(made: dict[object, GenerationResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate the library of each set of options once, for all tests of its report."""

    def once(chosen: list[Operator], *, jobs: int, progress: Any, **given: Any) -> GenerationResult:
        asked = *(operator.name for operator in chosen), *map(str, sorted(given.items()))
        if asked not in made:
            made[asked] = generate(chosen, jobs=jobs, progress=progress, **given)
        return made[asked]

    monkeypatch.setattr("unity.commands.generate.generate", once)


@pytest.mark.usefixtures("_generated_once")
def test_generated_part_equals_that_part_of_the_library(tmp_path: Path) -> None:
    arguments = ["--only", "relu", "--only", "scale", "--out", str(tmp_path), "--jobs", "1"]
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    made = load_library(tmp_path / "rules.json").rules
    assert report["rules"] == report["verdicts"]["proved"] == len(made)
    committed = {rule.name: rule.text for rule in load_library().rules}
    assert all(committed[rule.name] == rule.text for rule in made)


@pytest.mark.usefixtures("_generated_once")
def test_the_report_is_a_table(tmp_path: Path) -> None:
    some = ("--only", "relu", "--only", "scale", "--jobs", "1")
    result = runner.invoke(app, [*some, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "candidate rules" in result.output
    assert "proved rules in" in result.output


def test_algebra_alone_has_no_cuts(tmp_path: Path) -> None:
    options = ["--only", "matmul", "--only", "add", "--max-ops", "2", "--jobs", "1", "--algebra"]
    result = runner.invoke(app, [*options, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    rules = load_library(tmp_path / "rules.json").rules
    assert {rule.family for rule in rules} == {"algebra"}


def comes_to_have_workers(process: int, seconds: float) -> bool:
    """Wait until a process has started others."""
    children = Path(f"/proc/{process}/task/{process}/children")
    end = monotonic() + seconds
    while monotonic() < end:
        if children.read_text():
            return True
        sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc, which is Linux's")
@pytest.mark.parametrize("seconds", [pytest.param(0.0, marks=pytest.mark.soak), 1.0])
def test_interrupted_generate_leaves_the_old_library_whole(tmp_path: Path, seconds: float) -> None:
    """An interrupt as by Ctrl-C: to the whole group, while workers are started and while they
    work."""
    old = default_path().read_bytes()
    (tmp_path / "rules.json").write_bytes(old)
    command = [sys.executable, "-m", "unity.generate", "--out", str(tmp_path), "--jobs", "2"]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert comes_to_have_workers(process.pid, 60.0)
        sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert b"Traceback" not in error
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert (tmp_path / "rules.json").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["rules.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "relu"), "expected --out FOLDER"),
        (("--algebra",), "expected --out FOLDER"),
        (("--operators", "OWN"), "--operators: makes another library than the installed one"),
        (("--operators", "OWN", "--explain", "rules.json:r"), "--operators: makes another library"),
        (("--only", "nosuch", "--out", "."), "no such operator"),
        (("--out", "/dev/null/rules"), "/dev/null/rules: cannot be made a folder"),
    ],
)
@known_within()
def test_wrong_input_is_one_line_and_changes_nothing(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = default_path().read_bytes()
    own = tmp_path / "my_ops.py"
    own.write_text(f"from {Operator.__module__} import Operator\n{OWN}\n")
    given = [str(own) if argument == "OWN" else argument for argument in arguments]
    monkeypatch.setattr("sys.argv", ["unity", "generate", *given])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert default_path().read_bytes() == before
