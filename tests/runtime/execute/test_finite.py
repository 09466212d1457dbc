"""Losses and gradients that are not finite: reported once, and kept out of checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.runs.checkpoints import MODEL, NAMING, names, plan_of, train

from pcg.plan.naming import NamingFile
from runtime.execute.finite import FiniteWatch
from runtime.job.job import NotFinite, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train import worker
from runtime.train.worker import run_plan
from runtime.world.collectives import World

SGD = Recipe(rate=0.1)


class Poisoned:
    """Data with one batch that is not finite."""

    counts = True
    constants = frozenset()

    def __init__(self, step, value):
        self.step, self.value = step, value

    def piece(self, leaf, region, step):
        shape = [stop - start for start, stop in region]
        value = self.value if step == self.step else 0.5 + 0.01 * step
        return torch.full(shape, value, dtype=torch.float64)


@pytest.fixture(scope="module")
def plan():
    return plan_of(MODEL)


@pytest.fixture
def poisoned(monkeypatch):
    def become(step, value):
        monkeypatch.setattr(worker, "make_source", lambda *given, **named: Poisoned(step, value))

    return become


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_checkpoint_is_written_while_the_loss_is_not_finite(
    plan, tmp_path, capsys, poisoned, value
):
    poisoned(4, value)
    report = train(plan, tmp_path, 9, SGD, every=2, keep=1)
    assert names(tmp_path) == ["step-00000004"]
    assert len(report.steps) == 9
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "not finite" in x or "loss" in x]
    assert line.startswith("unity: warning: loss is ")
    assert " in step 5 (input x of rank 0); until that has changed no checkpoint" in line
    assert report.not_finite.startswith("loss is ")
    poisoned(-1, 0.0)
    assert train(plan, tmp_path, 9, SGD, resume=True).not_finite == ""


def test_a_run_that_is_to_stop_names_the_last_good_checkpoint(plan, tmp_path, poisoned):
    poisoned(4, float("nan"))
    with pytest.raises(NotFinite) as caught:
        train(plan, tmp_path, 9, SGD, every=2, stops_not_finite=True)
    line = f"loss is nan in step 5 (input x of rank 0); last good checkpoint {tmp_path}"
    assert line in str(caught.value)
    assert caught.value.exit_status == 3
    assert names(tmp_path) == ["step-00000002", "step-00000004"]


ROOT = """
x = input[8, 6]
w = weight[6, 4]
y = matmul(x, w)
return mean_loss(sqrt(multiply(y, y))), y
"""


def test_gradients_alone(tmp_path, capsys, poisoned):
    """The square root of 0 is finite, its gradient is not. The run reports it without another step,
    too."""
    plan = replace(plan_of(ROOT), naming=NamingFile(parameters={"w": NAMING.parameters["w2"]}))
    poisoned(2, 0.0)
    report = train(plan, tmp_path, 3, SGD, every=1, keep=9)
    assert report.not_finite == "gradients are not finite in step 3 (gradient of second)"
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert capsys.readouterr().err.count("not finite") == 1


def test_weights_alone(plan, tmp_path, monkeypatch):
    """An update too large for the format makes weights infinite. The gradients are finite."""
    monkeypatch.setattr(worker, "make_source", lambda *given, **named: Poisoned(0, 1e3))
    report = train(plan, tmp_path, 1, Recipe(rate=1e306))
    assert report.not_finite == "weights or states are not finite after step 1"
    assert names(tmp_path) == []


def test_loss_that_is_finite_again_resets_the_watch():
    watch = FiniteWatch(World(), str, list)
    assert [
        watch.after(n, loss) for n, loss in enumerate((1.0, float("inf"), float("nan"), 2.0))
    ] == [False, True, False, False]
    assert (watch.now, watch.steps) == ("", 2)
    assert watch.after(5, float("nan"))


def test_steps_that_fp16_skips_are_not_reported_as_not_finite(plan, monkeypatch, capsys):
    monkeypatch.setattr("runtime.execute.executor.LossScale.value", 2.0**120, raising=False)
    options = TrainingOptions(2, SGD, "fp16")
    report = run_plan(Lowering(plan), options, World(), lambda step: None)
    assert report is not None
    assert report.not_finite == ""
    assert "finite" not in capsys.readouterr().err
