"""Checkpoints of runs on one device: their content, and how runs go on from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.runs.checkpoints import MODEL, RECIPES, names, plan_of, train

from pcg.errors import InputError
from runtime.checkpoints import checkpoint
from runtime.checkpoints.checkpoint import Manifest, ScaleRecord, newest_manifest
from runtime.execute.executor import Executor
from runtime.execute.precision import LossScale
from runtime.inputs.seeded import Synthetic
from runtime.job.job import AgreedError, Checkpoints, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.plain import state_dict, write_state_dict
from runtime.train.training import TrainingRun
from runtime.train.worker import run_plan
from runtime.world.collectives import World
from runtime.world.faults import Stopped


@pytest.fixture(scope="module")
def plan():
    return plan_of(MODEL)


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_one_run_to_the_last_bit(plan, tmp_path, name):
    recipe = RECIPES[name]
    whole = train(plan, tmp_path / "a", 6, recipe)
    first = train(plan, tmp_path / "b", 3, recipe)
    second = train(plan, tmp_path / "b", 6, recipe, resume=True)
    assert [s.number for s in second.steps] == [4, 5, 6]
    losses = [step.loss for step in whole.steps]
    assert [step.loss for step in (*first.steps, *second.steps)] == losses
    expected, actual = (state_dict(newest_manifest(tmp_path / n)) for n in "ab")
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


def test_only_the_last_checkpoints_are_kept(plan, tmp_path):
    train(plan, tmp_path, 9, every=2, keep=2)
    assert names(tmp_path) == ["step-00000008", "step-00000009"]


def test_weights_have_the_names_and_shapes_of_the_module(plan, tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(6, 5, bias=False)
            self.tied = torch.nn.Linear(6, 5, bias=False)
            self.tied.weight = self.first.weight
            self.second = torch.nn.Parameter(torch.zeros(5, 4))

        def forward(self, x):
            return (self.first(x).relu() @ self.second).square().mean()

    train(plan, tmp_path / "c", 3)
    path = tmp_path / "weights.pt"
    write_state_dict(state_dict(newest_manifest(tmp_path / "c")), path)
    net = Net().double()
    assert str(net.load_state_dict(torch.load(path))) == "<All keys matched successfully>"
    # A run that begins with these weights and without updates has the loss that the module
    # computes.
    still = Recipe(rate=0.0)
    given = TrainingOptions(1, still, "fp64", seed=5, initial=str(path))
    seen = []
    run_plan(Lowering(plan), given, World(), seen.append)
    (x,) = [node.leaf for node in plan.model.leaves if node.leaf.name == "x"]
    batch = Synthetic(5).piece(x, ((0, 8), (0, 6)), 0)
    assert seen[0].loss == pytest.approx(net(batch).item(), rel=1e-12)


def test_a_folder_that_cannot_be_written_is_refused_at_once(plan, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder, problem in (
        (file, "file exists"),
        (file / "below", "not a directory"),
        (Path("/proc/self"), "no such file or directory"),
    ):
        seen = []
        kept = Checkpoints(str(folder))
        options = TrainingOptions(3, RECIPES["sgd"], "fp64", checkpoints=kept)
        with pytest.raises(AgreedError) as caught:
            run_plan(Lowering(plan), options, World(), seen.append)
        assert str(caught.value) == f"{folder}: cannot write checkpoints: {problem}"
        assert seen == []


def test_more_batches_a_step_begin_where_the_run_before_ended(plan, tmp_path, monkeypatch):
    taken = []
    piece = Synthetic.piece
    monkeypatch.setattr(
        Synthetic, "piece", lambda *given: (taken.append(given[-1]), piece(*given))[1]
    )
    for steps, batches, expected in ((2, 2, [0, 1, 2, 3]), (3, 3, [4, 5, 6]), (5, 1, [7, 8])):
        taken.clear()
        recipe = replace(RECIPES["sgd"], accumulate=batches)
        train(plan, tmp_path, steps, recipe, resume=True)
        assert taken == expected


def too_large(plan, folder, steps, seen=None):
    """A run in float16 whose scale of the loss makes all gradients infinite."""
    lowering, world = Lowering(plan), World()
    kept = Checkpoints(str(folder), every=1, resume=True)
    options = TrainingOptions(steps, RECIPES["sgd"], "fp16", checkpoints=kept)
    executor = Executor(lowering.program(0), world, "fp16")
    executor.loss_scale = LossScale(2.0**127)
    training = TrainingRun(lowering, options, world, executor)
    return world, lambda: training.run([].append if seen is None else seen.append)


def test_skipped_update_is_no_step(plan, tmp_path, monkeypatch):
    saved = []
    save = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda *given: (saved.append(given[3]), save(*given))[1]
    )
    seen = []
    _, run = too_large(plan, tmp_path, 3, seen)
    steps = run()
    assert list(steps) == seen
    assert [step.number for step in steps] == [1, 2, 3]
    assert steps[0].left_out > 100
    assert steps[1].left_out == steps[2].left_out == 0
    assert [manifest.updates for manifest in saved] == [1, 2, 3]


def test_stop_during_skipped_updates_keeps_the_existing_checkpoint(plan, tmp_path, monkeypatch):
    """The existing checkpoint is not written again."""
    train(plan, tmp_path, 2, RECIPES["sgd"])
    monkeypatch.setattr(checkpoint, "save", None)
    world, run = too_large(plan, tmp_path, 3)
    world.asked_to_stop = True
    path = tmp_path / "step-00000002"
    with pytest.raises(Stopped, match=f"after step 2, checkpoint {path}"):
        run()


def test_folder_with_checkpoints_is_refused_without_resume(plan, folder):
    with pytest.raises(InputError, match="has checkpoints already, expected --resume"):
        train(plan, folder, 6)


@pytest.fixture
def torchrun(monkeypatch):
    """Start a store as torchrun does for a run, with the id that torchrun gives all runs by
    default."""
    make: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    stores: list[Any] = []

    def begin():
        stores.append(make("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(stores[-1].port))
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    return begin


@pytest.mark.parametrize("count", ["0", "1"])
def test_only_a_run_restarted_by_torchrun_goes_on_without_resume(
    plan, tmp_path, torchrun, monkeypatch, count
):
    """The count may be any: each node's torchrun counts for itself."""
    torchrun()
    train(plan, tmp_path, 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert [s.number for s in train(plan, tmp_path, 4).steps] == [3, 4]
    torchrun()
    before = names(tmp_path)
    for _ in range(2):
        with pytest.raises(AgreedError, match="has checkpoints already, expected --resume"):
            train(plan, tmp_path, 6)
    assert names(tmp_path) == before
    assert [s.number for s in train(plan, tmp_path, 5, resume=True).steps] == [5]
    assert [s.number for s in train(plan, tmp_path, 6).steps] == [6]


@pytest.mark.parametrize(
    ("text", "steps", "recipe", "problem"),
    [
        (MODEL.replace("relu", "gelu"), 6, "adam", "is of small with another graph"),
        (MODEL, 4, "adam", "is of step 5, expected --steps 5 or more"),
        (MODEL, 6, "sgd", "has the states of adam with momentum 0.0, expected the same"),
    ],
)
def test_checkpoints_of_another_run_are_refused(folder, text, steps, recipe, problem):
    with pytest.raises(InputError, match=problem):
        train(plan_of(text), folder, steps, RECIPES[recipe], resume=True)


def test_resuming_prints_the_options_that_changed(plan, folder, capsys):
    recipe = replace(RECIPES["adam"], rate=0.2)
    train(plan, folder, 6, recipe, resume=True, seed=1)
    assert "going on with --lr 0.2 instead of 0.1, --seed 1 instead of 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"first.weight": torch.zeros(5, 6)}, "has no parameter second"),
        (
            {"first.weight": torch.zeros(6, 5), "second": torch.zeros(5, 4)},
            "first.weight: expected shape [5, 6], got [6, 5]",
        ),
        ([1], "not a state dict, expected tensors by name"),
    ],
)
def test_initial_weights_that_do_not_fit(plan, tmp_path, content, problem):
    path = tmp_path / "weights.pt"
    torch.save(content, path)
    options = TrainingOptions(1, initial=str(path))
    with pytest.raises(InputError) as caught:
        run_plan(Lowering(plan), options, World(), lambda step: None)
    assert str(caught.value) == f"{path}: {problem}"


def test_a_folder_without_checkpoints(tmp_path):
    with pytest.raises(InputError, match="has no checkpoint"):
        newest_manifest(tmp_path)


def test_scale_of_the_loss_is_resumed(plan, tmp_path):
    kept = Checkpoints(str(tmp_path), resume=True)

    def run(steps: int) -> list[float]:
        given = TrainingOptions(steps, Recipe(rate=0.0), "fp16", checkpoints=kept)
        report = run_plan(Lowering(plan), given, World(), lambda step: None)
        assert report is not None
        return [step.loss for step in report.steps]

    assert len(run(2)) == 2
    path = newest_manifest(tmp_path).path / "checkpoint.json"
    first = Manifest.model_validate_json(path.read_text())
    assert first.loss_scale == ScaleRecord(value=2.0**15, good_steps=2)
    other = first.model_copy(update={"loss_scale": ScaleRecord(value=64.0, good_steps=1999)})
    signed = other.model_copy(update={"digest": other.own_digest()})
    path.write_text(signed.model_dump_json())
    assert len(run(3)) == 1
    # The 2000th good step in a row doubles it.
    assert newest_manifest(tmp_path).manifest.loss_scale == ScaleRecord(
        value=128.0, good_steps=2000
    )
