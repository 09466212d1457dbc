"""The installed package has all files that commands read, and nothing else of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.paths import ROOT

TOPS = ("pcg", "substitutions", "verifier", "search", "runtime", "unity", "generated_rules")
COMMANDS = (
    ("optimize", "my_model.py:make_model", "--machine", "local", "--devices", "2"),
    ("simulate", "plan.json"),
    ("audit", "plan.json", "--model", "my_model.py:make_model", "--no-proofs"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installation of a wheel, built from a copy of the sources."""
    sources, site = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    for top in TOPS:
        shutil.copytree(ROOT / top, sources / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    build = (
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "made",
        ".",
    )
    subprocess.run([sys.executable, *build], cwd=sources, check=True, capture_output=True)
    (wheel,) = (sources / "made").iterdir()
    ZipFile(wheel).extractall(site)
    return site


@pytest.mark.soak
def test_a_wheel_has_what_commands_need_and_types(site: Path, tmp_path: Path) -> None:
    for top in TOPS[:-1]:
        assert (site / top / "py.typed").is_file()
    assert not (site / "tests").exists()
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def unity(*arguments: str) -> str:
        command = [sys.executable, "-m", "unity", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        assert done.stderr == ""
        return done.stdout

    (tmp_path / "my_model.py").write_text(unity("optimize", "--example"), "utf-8")
    for arguments in COMMANDS:
        assert unity(*arguments)
    where = [sys.executable, "-c", "import unity; print(unity.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(str(site))
