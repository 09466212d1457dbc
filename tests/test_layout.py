"""The repository's top level, its layers, and the data files that packages bring along."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TOP_LEVEL = {
    "pcg",
    "substitutions",
    "verifier",
    "search",
    "runtime",
    "unity",
    "generated_rules",
    "tests",
    "docs",
    "pyproject.toml",
    "constraints.txt",
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
}


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout"
)
def test_top_level():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = {path for path in listed.split("\0") if path and (ROOT / path).exists()}
    assert {name for path in paths if (name := path.split("/")[0])[0] != "."} == TOP_LEVEL
    assert ".ci/run" in paths


def test_layers():
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_data_only():
    assert not list((ROOT / "generated_rules").rglob("*.py"))
    assert files("generated_rules").joinpath("rules.json").is_file()


def test_machines_are_found_as_resources():
    assert files("pcg").joinpath("machines", "summit.toml").is_file()
