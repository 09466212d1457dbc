"""The time to generate the rule library: `make bench`.

Foreign rules are explained from the files named in the environment variable RULE_FILES, separated
by colons.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from support.paths import ROOT

from substitutions.rules.store import default_path

TASO = (
    *("conv2d", "max_pool2d", "avg_pool2d", "relu", "concat", "split", "matmul", "add", "multiply"),
    *("scale", "enlarge", "transpose"),
)
"""The operators of TASO's generator (Jia et al., SOSP 2019, table 1); constants come with them."""
LINEAR = ("matmul", "add", "scale", "concat", "split", "transpose", "sum_axis")

pytestmark = pytest.mark.benchmark


def generated(out: Path, *options: str) -> dict[str, Any]:
    """The report of a run, with its total seconds."""
    command = [sys.executable, "-m", "unity.generate", "--out", str(out), "--json", *options]
    start = perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "wall": perf_counter() - start}


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def shown(title: str, report: dict[str, Any]) -> None:
    phases = ", ".join(f"{name} {used:.1f}" for name, used in report["seconds"].items())
    print(
        f"\n{title}: {report['graphs']:,} graphs, {report['values']:,} values,"
        f" {report['candidates']:,} candidates, {report['rules']} rules in {report['wall']:.0f} s"
        f" ({phases}), {report['megabytes']:,} MB"
    )


def test_the_whole_library(tmp_path):
    report = generated(tmp_path)
    shown("3 operators a side, all operators (bound: 120 s, 1.5 GB)", report)
    assert (tmp_path / "rules.json").read_bytes() == default_path().read_bytes()
    assert report["megabytes"] < 1536


def test_operators_of_taso(tmp_path):
    report = generated(tmp_path, "--algebra", *only(*TASO))
    shown("3 operators a side, TASO's operators (bound: 30 s, 1 GB; TASO 119 s, 7.1 GB)", report)
    assert report["megabytes"] < 1024


def test_four_operators_of_linear_algebra(tmp_path):
    report = generated(tmp_path, "--max-ops", "4", *only(*LINEAR))
    shown("4 operators a side, linear algebra (stretch: 900 s)", report)
    assert report["rules"] > 100


@pytest.mark.parametrize("file", [f for f in os.environ.get("RULE_FILES", "").split(":") if f])
def test_foreign_rules_follow(file):
    command = [sys.executable, "-m", "unity.generate", "--explain", file]
    start = perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"\n{file}: {done.stdout.splitlines()[-1]} ({perf_counter() - start:.0f} s)")
    assert done.returncode == 0, done.stderr
