"""Damaged checkpoints, folders that cannot be written, and disks that are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.runs.checkpoints import MODEL, names, plan_of, train

from pcg.errors import InputError
from runtime.checkpoints.checkpoint import CheckpointError, newest_manifest


@pytest.fixture(scope="module")
def plan():
    return plan_of(MODEL)


def flip(path):
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [flip, cut_short, Path.unlink])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "contents.json", "checkpoint.json"])
def test_checkpoint_before_a_damaged_one_is_resumed(plan, folder, capsys, damage, name):
    damage(folder / "step-00000005" / name)
    report = train(plan, folder, 6, resume=True)
    assert [step.number for step in report.steps] == [5, 6]
    first, second = capsys.readouterr().err.splitlines()
    assert "step-00000005: damaged" in first
    assert first.endswith("taking the one before")
    assert second.endswith("step-00000004: going on with step 5")
    assert names(folder) == ["step-00000002", "step-00000004", "step-00000006"]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_damaged_checkpoints_do_not_count_as_kept(plan, tmp_path, every):
    train(plan, tmp_path, 10, every=2, keep=9)
    for step in (8, 10):
        flip(tmp_path / f"step-{step:08}" / "__0_0.distcp")
    train(plan, tmp_path, 6 + every, every=every, keep=1, resume=True)
    assert names(tmp_path) == [f"step-{6 + every:08}"]
    assert newest_manifest(tmp_path).manifest.updates == 6 + every
    assert [s.number for s in train(plan, tmp_path, 11, keep=2, resume=True).steps][-1] == 11
    # A checkpoint that was damaged counts as whole after it has been written again.
    assert names(tmp_path) == ["step-00000010", "step-00000011"]


def test_damaged_checkpoints_stay_until_another_is_written(plan, folder):
    flip(folder / "step-00000005" / ".metadata")
    before = names(folder)
    train(plan, folder, 4, resume=True)
    assert names(folder) == before


@pytest.mark.parametrize("is_left", [False, True])
def test_checkpoint_of_an_unfinished_replacement_is_resumed(plan, folder, is_left):
    """The process died between the two renames."""
    (folder / "step-00000005").rename(folder / ".replaced-step-00000005")
    if is_left:
        (folder / ".writing-step-00000005").mkdir()
    assert newest_manifest(folder).manifest.updates == 5
    assert [s.number for s in train(plan, folder, 6, keep=9, resume=True).steps] == [6]
    expected = ["step-00000002", "step-00000004", "step-00000005", "step-00000006"]
    assert names(folder) == expected
    assert newest_manifest(folder).manifest.updates == 6


def test_run_is_refused_if_all_checkpoints_are_damaged(plan, folder):
    for path in folder.iterdir():
        (path / "__0_0.distcp").unlink()
    with pytest.raises(InputError, match=r"no checkpoint is whole; .*step-00000002: damaged"):
        train(plan, folder, 6, resume=True)


def test_a_checkpoint_cut_off_while_written_does_not_count(plan, folder, capsys):
    (folder / "step-00000005").rename(folder / ".writing-step-00000005")
    report = train(plan, folder, 5, resume=True)
    assert [step.number for step in report.steps] == [5]
    assert names(folder) == ["step-00000002", "step-00000004", "step-00000005"]
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_a_full_disk_costs_the_checkpoint_alone(plan, tmp_path, monkeypatch, capsys, fails):
    train(plan, tmp_path, 2)
    calls = []

    def full(*_):
        calls.append(1)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full) if fails == "fsync" else patched.setattr(
            Path, "rename", full
        )
        with pytest.raises(CheckpointError, match="No space left on device"):
            train(plan, tmp_path, 5, resume=True)
    assert len(calls) >= 2
    warned = capsys.readouterr().err
    assert "unity: warning: no checkpoint: " in warned
    assert "step-00000004: " in warned
    assert names(tmp_path) == ["step-00000002"]
    assert [s.number for s in train(plan, tmp_path, 3, resume=True).steps] == [3]
