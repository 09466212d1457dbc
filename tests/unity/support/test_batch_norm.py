"""`--batch-norm`: the function that planners are given, stated by plans and used by runs and
audits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cases import a_third, check_each

from pcg.errors import InputError
from pcg.plan.plan import load_plan
from substitutions.rules.store import load_library
from unity import audit, compare, run
from unity.optimize import app as optimize
from unity.support.batch_norm import norm_groups
from unity.support.cli import run_app

APPS = {"optimize": optimize, "compare": compare.app, "audit": audit.app, "run": run.app}

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))).mean()


def make():
    return Net(), (torch.zeros(4, 6),)
"""


@pytest.fixture(scope="module", autouse=True)
def _one_library():
    """Read the library once: reading takes a second or two for each command."""
    with pytest.MonkeyPatch.context() as patch:
        library = load_library()
        for name in ("commands.planning", "commands.compare"):
            patch.setattr(f"unity.{name}.load_library", lambda path=None: library)
        yield


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return f"{path}:make"


def done(command, *arguments):
    """The exit status of a command in this process."""
    with pytest.raises(SystemExit) as caught:
        run_app(APPS[command], command, [str(argument) for argument in arguments])
    return caught.value.code or 0


def planned(model, path, *options):
    given = ("--machine", "local", "--devices", 2, "-o", path, *options)
    assert done("optimize", model, *given) == 0
    return load_plan(path)


@pytest.mark.parametrize(
    ("options", "groups"),
    a_third(
        [
            ((), 1),
            (("--batch-norm", "local"), 2),
            (("--planner", "zero", "--batch-norm", "4"), 4),
            (("--planner", "data-parallel"), 2),
            (("--planner", "zero"), 2),
            (("--planner", "data-parallel", "--batch-norm", "whole"), 1),
        ]
    ),
)
def test_plan_states_the_groups_of_its_batch_norms(model, options, groups, tmp_path, capsys):
    plan = planned(model, tmp_path / "plan.json", *options)
    assert plan.norm_groups == groups
    said = f"each of {groups} groups of {8 // groups} samples"
    assert (said in capsys.readouterr().out) == (groups > 1)
    text = json.loads((tmp_path / "plan.json").read_text())
    assert (text["norm_groups"], "norm_groups" in text["hashes"]) == (
        (groups, True) if groups > 1 else (None, False)
    )


def test_runs_and_audits_capture_the_model_with_the_same_groups(model, tmp_path, capsys):
    path = tmp_path / "plan.json"
    planned(model, path, "--planner", "data-parallel", "--batch-norm", "2", "--devices", 1)
    assert done("run", path, "--steps", 2, "--check", "--model", model) == 0
    assert "each of 2 groups of 2 samples" in capsys.readouterr().out
    audited = ("audit", path, "--model", model, "--no-proofs", "--jobs", 1)
    assert done(*audited) == 0
    assert "batch norms in 2 groups" in capsys.readouterr().out


def test_a_plan_that_says_another_number_is_found_out(model, tmp_path, capsys):
    path = tmp_path / "plan.json"
    planned(model, path, "--planner", "data-parallel")
    text = json.loads(path.read_text())
    capsys.readouterr()

    def check(said: Any) -> None:
        path.write_text(json.dumps(text | {"norm_groups": said}))
        wanted = {None: 1, 2: 0}.get(said, 2)
        status = done("audit", path, "--model", model, "--no-proofs", "--jobs", 1)
        assert status == wanted
        assert len(capsys.readouterr().err.splitlines()) == (wanted > 0)

    check_each([None, 2, 3, 1, 0, -4, "4", 1e300, 1 << 70], check)


@pytest.mark.parametrize(("options", "groups"), a_third([((), 2), (("--batch-norm", "whole"), 1)]))
def test_planners_are_compared_on_the_same_function(model, tmp_path, options, groups):
    few = ("--machine", "local", "--gpus", 2, "--planners", "data-parallel,zero")
    assert done("compare", model, *few, "-o", tmp_path / "out", *options) == 0
    content = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [entry["norm_groups"] for entry in content["entries"]] == [groups, groups]


@pytest.mark.parametrize("given", ["", "both", "0", "-2", "2.0", "1e3", "٣", "9" * 5000, " 2"])
def test_other_values_of_batch_norm_are_refused(given):
    with pytest.raises(InputError, match="--batch-norm: expected whole, local or a number"):
        norm_groups(given, "joint", 8)


def test_groups_that_the_batch_does_not_have_are_refused(model, tmp_path, capsys):
    given = ("--devices", 4, "--batch", 6, "--planner", "data-parallel", "-o", tmp_path / "p.json")
    assert done("optimize", model, "--machine", "local", *given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "6 samples cannot take them in 4 equal groups" in line
