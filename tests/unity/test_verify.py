"""`unity verify`: a library is decided again, and a false rule in it is refuted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from substitutions.store import default_path
from unity.__main__ import main


def library(tmp_path: Path, **changed: object) -> Path:
    """A library of the committed one's first rule, with some of its fields changed."""
    head, first, *_ = default_path().read_text("utf-8").splitlines()
    rule = json.loads(first.rstrip(",")) | changed
    path = tmp_path / "rules.json"
    path.write_text(f"{head}{json.dumps(rule)}]}}", "utf-8")
    return path


def verify(monkeypatch: pytest.MonkeyPatch, path: Path, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["unity", "verify", str(path), "--jobs", "1", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_proved_rules_end_with_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(monkeypatch, library(tmp_path)) == 0
    assert "1 proved" in capsys.readouterr().out


def test_a_false_rule_is_refuted_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = {"left": "softmax(x, axis=0)", "right": "softmax(x, axis=1)"}
    path = library(tmp_path, inputs={"x": 2}, **sides)
    assert verify(monkeypatch, path, "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "refuted"
    assert "element" in record["counterexample"]


def test_an_unusable_file_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = library(tmp_path, left="matmul(x")
    assert verify(monkeypatch, path) == 2
    error = capsys.readouterr().err
    assert "rules[0]" in error
    assert len(error.strip().splitlines()) == 1
