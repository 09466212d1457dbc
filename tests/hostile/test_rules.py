"""Rules by an adversary: none is proved wrongly, none hangs, and none ends in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.graphs.operators import known_within
from support.paths import ROOT
from support.rules.hostile_rules import (
    FILES,
    OPERATORS,
    OWN_OPERATORS,
    OWN_RULES,
    Expected,
    Rule,
    rules,
)

from pcg.ops import OPERATORS as KNOWN
from unity.support.cli import run_app
from unity.verify import app as verify

HANG = 10
"""Seconds of processor time after which a rule counts as hanging."""
CONTROLS = [chr(i) for i in range(32) if chr(i) != "\n"] + ["\x7f", "\x9b", "\u202e", "\u2066"]


def unity(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of Unity, run as a user does."""
    command = [sys.executable, "-m", *map(str, arguments)]
    # Python's own cache of a user's file would look like a file that Unity leaves behind.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def written(folder: Path, content: object) -> Path:
    path = folder / "rules.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def refusal(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which ``verify`` refuses its input."""
    with pytest.raises(SystemExit) as ended:
        run_app(verify, "verify", [*map(str, arguments), "--jobs", "1"])
    printed = capsys.readouterr()
    assert ended.value.code == 2, printed.out
    assert printed.err.startswith("unity: error: ")
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 2000
    assert not any(c in printed.err + printed.out for c in CONTROLS)
    return printed.err


def verdicts(folder: Path, given: list[dict[str, Any]], *more: object) -> list[dict[str, Any]]:
    """The verdicts of ``verify`` about rules. Checks that it leaves nothing behind."""
    path = written(folder, {"schema_version": 1, "rules": given})
    before = {*folder.iterdir()}
    ended = unity("unity.verify", path, "--json", "--jobs", 2, *more, folder=folder)
    assert ended.returncode in (0, 1), ended.stderr
    assert ended.stderr.count("\n") == ended.returncode, ended.stderr
    assert {*folder.iterdir()} == before
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [record["rule"] for record in told] == [rule["name"] for rule in given]
    return told


def unexpected(given: dict[str, tuple[Rule, Expected]], record: dict[str, Any]) -> bool:
    """Whether a verdict is none of the correct ones of its rule."""
    return record["verdict"] not in given[record["rule"]][1]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 6))]
)
def test_hostile_rules(first: int, tmp_path: Path):
    corpus = rules()[first::6]
    given = dict(zip((rule["name"] for rule, _ in corpus), corpus, strict=True))
    told = verdicts(tmp_path, [rule for rule, _ in corpus], "--seconds", 1)
    # A shared processor does less in a second, so unknown verdicts are asked for again.
    slow = [r["rule"] for r in told if r["verdict"] == "unknown" and unexpected(given, r)]
    if slow:
        told += verdicts(tmp_path, [given[name][0] for name in slow], "--seconds", HANG)
        told = list({record["rule"]: record for record in told}.values())
    wrong = [
        f"{record['verdict']}: {rule['left'][:80]} == {rule['right'][:80]} {rule['requires']}"
        for record in told
        if unexpected(given, record)
        for rule in (given[record["rule"]][0],)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", FILES)
def test_hostile_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content, said = FILES[name]
    assert said in refusal(written(tmp_path, content), capsys=capsys)


@pytest.fixture
def _restored():
    with known_within():
        yield


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("name", OPERATORS)
def test_hostile_operators(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    declared, said = OPERATORS[name]
    file = tmp_path / "ops.py"
    file.write_text(f"from pcg.types.operator import Operator\n\nown = {declared}\n")
    path = written(tmp_path, {"schema_version": 1, "rules": []})
    assert said in refusal(path, "--operators", file, capsys=capsys)
    assert "relu" in KNOWN


def test_rules_of_own_operators(tmp_path: Path):
    file = tmp_path / "ops.py"
    file.write_text(OWN_OPERATORS)
    given = [
        {"name": f"own {i}", "inputs": {"x": 1}, "left": left, "right": right}
        for i, (left, right, _) in enumerate(OWN_RULES)
    ]
    actual = verdicts(tmp_path, given, "--operators", file)
    wrong = [
        f"{record['verdict']}: {left} == {right}: {record['reason']}"
        for (left, right, expected), record in zip(OWN_RULES, actual, strict=True)
        if record["verdict"] not in expected
    ]
    assert not wrong, "\n".join(wrong)
