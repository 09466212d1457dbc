"""`unity optimize` of a file whose graph computes the same as its module, or does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.train.eager import NEAR
from substitutions.rules.store import load_library
from unity.optimize import app
from unity.support.cli import run_app

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.read = torch.zeros(1).is_meta

    def forward(self, x):
        x = self.linear(x)
        return ({WHAT}).square().mean()

def make():
    return Net(), (torch.zeros(4, 6),)
"""
LYING = "torch.relu(x) if self.read else torch.tanh(x)"
"""Captured without numbers, this is another function than the one that torch runs."""


@pytest.fixture(scope="module", autouse=True)
def _one_library():
    """Read the library once: reading takes a second or two for each command."""
    with pytest.MonkeyPatch.context() as patch:
        library = load_library()
        patch.setattr("unity.commands.planning.load_library", lambda path=None: library)
        yield


def optimize(folder: Path, what: str, *options: str) -> tuple[int, Path]:
    path, out = folder / "net.py", folder / "plan.json"
    path.write_text(MODEL.replace("{WHAT}", what))
    given = ("--devices", "2", "--planner", "data-parallel", "-o", str(out))
    with pytest.raises(SystemExit) as caught:
        run_app(app, "optimize", [f"{path}:make", *given, *options])
    assert isinstance(caught.value.code or 0, int)
    return int(caught.value.code or 0), out


def test_a_graph_that_is_not_the_module_is_refused_in_a_line(tmp_path: Path, capsys):
    status, out = optimize(tmp_path, LYING)
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert "output 0 differs by " in shown.err
    assert "--no-self-check" in shown.err
    assert not out.exists()


def test_module_is_planned_without_the_comparison(tmp_path: Path, capsys):
    status, out = optimize(tmp_path, LYING, "--no-self-check", "--json")
    assert status == 0
    assert json.loads(capsys.readouterr().out)["agreement"] is None
    assert out.exists()


def test_json_holds_the_result_of_the_comparison(tmp_path: Path, capsys):
    assert optimize(tmp_path, "torch.relu(x)", "--json")[0] == 0
    agreement = json.loads(capsys.readouterr().out)["agreement"]
    assert agreement["gradients"] == 2
    assert 0 <= agreement["error"] <= NEAR
    assert not agreement["reason"]
    assert optimize(tmp_path, "(x - 100).sqrt()", "--json")[0] == 0
    agreement = json.loads(capsys.readouterr().out)["agreement"]
    assert (agreement["gradients"], agreement["error"]) == (0, None)
    assert agreement["reason"] == "its loss of random inputs is not finite"
