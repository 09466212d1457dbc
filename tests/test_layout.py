"""The repository's top level, its layers, and the data files that packages bring along."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from functools import cache
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


def test_import_contracts_hold():
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions() -> tuple[tuple[Path, Definition], ...]:
    """All classes and functions of the packages, inner ones included, each with its file."""
    return tuple(
        (path, node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, Definition)
    )


def test_a_public_class_has_a_name_of_its_own():
    """A name means one thing. ``Options`` are those of a command, in each of their modules."""
    modules: dict[str, list[str]] = {}
    for path, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            modules.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(modules) > 300
    commands = [path for path in modules.pop("Options") if Path(path).parent != Path("unity")]
    assert not commands
    assert not {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_rules_are_data_only():
    assert not list((ROOT / "generated_rules").rglob("*.py"))
    assert files("generated_rules").joinpath("rules.json").is_file()


def test_machines_are_found_as_resources():
    assert files("pcg").joinpath("machines", "summit.toml").is_file()


PACKAGES = ("pcg", "verifier", "substitutions", "search", "runtime", "unity")
MAX_LINES, MAX_FILES, MAX_FUNCTION_LINES = 400, 20, 40


def folders() -> dict[str, str]:
    """The packages, outer ones first, each with the first sentence that it says of itself."""
    sentences: dict[str, str] = {}
    for top in PACKAGES:
        for path in sorted((ROOT / top).rglob("__init__.py")):
            said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            sentences[path.parent.relative_to(ROOT).as_posix()] = " ".join(
                said.split("\n\n")[0].split()
            )
    return sentences


def test_each_folder_is_listed_with_its_sentence():
    listed = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    missing = [f"| `{name}/` | {said} |" for name, said in folders().items()]
    assert not [row for row in missing if row not in listed]


def test_files_and_folders_are_small():
    sources = [p for top in (*PACKAGES, "tests", "docs") for p in (ROOT / top).rglob("*.py")]
    long = {
        str(p): n for p in sources if (n := len(p.read_text("utf-8").split("\n")) - 1) > MAX_LINES
    }
    assert not long
    full = {p.parent for p in sources if len(list(p.parent.glob("*.py"))) > MAX_FILES}
    assert not full


def test_functions_are_short():
    """But for the one whose parameters are all the options of a command."""
    long = {
        node.name
        for _, node in definitions()
        if not isinstance(node, ast.ClassDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    }
    assert long == {"optimize"}
