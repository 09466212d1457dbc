"""The program printed for a counterexample runs, alone, and shows the difference."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.cases import check_each
from support.graphs.operators import known_within
from support.paths import ROOT
from support.rules.refuted import first, lines, refute, shrunk

from pcg.graph.graph import Node, Value, tensor
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.ops.user import load_operators
from verifier.counterexample import Counterexample
from verifier.shrink import shrink
from verifier.snippet import snippet

LINES = lines()
DECLARED = """
from pcg.types.operator import Operator

cube = Operator("cube", "out[i...] = x[i...] * x[i...] * x[i...]")
ramp = Operator("ramp", "out[i < size] = i", sizes=("size",))
"""


@pytest.fixture
def _restored() -> Iterator[None]:
    with known_within():
        yield


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a reader would, in a process and a folder of its own."""
    path = folder / "shown.py"
    path.write_text(program, "utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def imported(program: str) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def test_program_runs_and_prints_both_sides(capsys):
    def check(line: str) -> None:
        for counterexample in (first(line)[1], shrunk(line)):
            program = snippet(counterexample)
            assert imported(program) == {
                "numpy",
                "pcg.readings.evaluate",
                "pcg.readings.ring",
                "pcg.plan.text",
            }
            exec(program, {})
            printed = capsys.readouterr().out
            assert "left: type [" in printed
            assert "right: type [" in printed

    check_each(LINES[::3], check)


@pytest.mark.parametrize("line", [LINES[0], LINES[40], LINES[-1]])
def test_program_runs_on_its_own(line, tmp_path):
    ended = run(snippet(shrunk(line)), tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "left: type [" in ended.stdout


def test_program_asserts_the_difference(capsys):
    """With one side in place of the other, the assertion fails."""
    for line in (LINES[0], LINES[-1]):
        program = snippet(shrunk(line))
        broken = program.replace("right = parse_graph", "right = left\nunused = parse_graph")
        assert broken != program
        with pytest.raises(AssertionError):
            exec(broken, {})


def test_true_pair_has_no_program():
    _, counterexample = first(LINES[-1])
    with pytest.raises(ValueError, match="do not differ"):
        snippet(replace(counterexample, right=counterexample.left))


@pytest.mark.usefixtures("_restored")
def test_operators_of_a_user(tmp_path):
    path = tmp_path / "my_ops.py"
    path.write_text(DECLARED, "utf-8")
    cube, ramp = load_operators(path)
    x, size = tensor("x", 1), Poly.of("n")
    right = Value(Node(OPERATORS["relu"](), (x,)))
    program = snippet(shrink(*refute((Value(Node(cube(), (x,))),), (right,))))
    assert "operators['cube'] = Operator(" in program
    counted = Value(Node(ramp(size=size)))
    other = Value(Node(OPERATORS["relu"](), (Value(Node(cube(), (counted,))),)))
    without_inputs: Counterexample = shrink(*refute((counted,), (other,)))
    assert without_inputs.symbols == (("n", 3),)
    path.unlink()
    for text in (program, snippet(without_inputs)):
        ended = run(text, tmp_path)
        assert ended.returncode == 0, ended.stderr
