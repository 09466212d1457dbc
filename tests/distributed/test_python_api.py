"""The training script of the documentation under torchrun: by a plan, killed, and resumed."""

from __future__ import annotations

import sys
from difflib import ndiff
from os import pathsep
from pathlib import Path

import pytest
import torch
from support.pages import ROOT, blocks
from support.runs import averages
from support.runs.own_loop import BATCH, STEPS
from support.runs.programs import answer_of
from support.runs.torchrun import WAIT, environment, killed, output_of, torchrun

import unity

pytestmark = pytest.mark.distributed

PAGE = ROOT / "docs" / "python-api.md"
RESUMED = f"""
import os
import sys
import torch
import unity
from my_words import batch_of, make_model

model = unity.parallelize(make_model(), "plan.json")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first = model.load_checkpoint("checkpoints", optimizer)
print("first", first, flush=True)
for step in range(first, 6):
    model(**batch_of(step)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.save_checkpoint("checkpoints", optimizer, step=step + 1)
    if step == 2 and not first:
        {WAIT}
torch.save(model.state_dict(), "resumed.pt")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, and its plan."""
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
    from my_words import make_model  # pyright: ignore[reportMissingImports]

    example = torch.zeros(4, 6, dtype=torch.long)
    made = unity.optimize(make_model(), (example, example), devices=2, planner="zero", quiet=True)
    made.save(tmp_path / "plan.json")
    sys.modules.pop("my_words")
    return tmp_path


@pytest.mark.soak
def test_two_lines_train_by_a_plan_what_torch_trains(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before, after = ((folder / name).read_text() for name in ("train.py", "train_by_plan.py"))
    changed = [line for line in ndiff(before.split("\n"), after.split("\n")) if line[0] == "+"]
    assert len(changed) == 2
    monkeypatch.chdir(folder)
    exec(compile(before, "train.py", "exec"), {})
    (folder / "weights.pt").rename(folder / "expected.pt")
    output_of(torchrun("train_by_plan.py"), folder)
    expected = torch.load(folder / "expected.pt", weights_only=True)
    actual = torch.load(folder / "weights.pt", weights_only=True)
    assert list(actual) == list(expected)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.soak
def test_killed_and_resumed(folder: Path):
    (folder / "resumed.py").write_text(RESUMED, "utf-8")
    killed(torchrun("resumed.py"), folder)
    assert "first 3" in output_of(torchrun("resumed.py"), folder)
    resumed = torch.load(folder / "resumed.pt", weights_only=True)
    from my_words import batch_of, make_model  # pyright: ignore[reportMissingImports]

    module = make_model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    for step in range(6):
        module(**batch_of(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.modules.pop("my_words")
    torch.testing.assert_close(resumed, dict(module.state_dict()), rtol=1e-9, atol=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("planner", ["joint", "zero"])
def test_buffers_that_steps_change_are_those_of_torch(planner: str, tmp_path: Path):
    module, batch = averages.averages(), averages.batch_of(0)
    plan = unity.optimize(
        module, batch, devices=4, batch=BATCH, planner=planner, precision="fp64", quiet=True
    )
    plan.save(path := tmp_path / "plan.json")
    command = [*torchrun(averages.__file__, 4), str(path)]
    paths = [environment()["PYTHONPATH"], str(ROOT / "tests")]
    there = environment() | {"PYTHONPATH": pathsep.join(paths)}
    assert answer_of(command, 120, there) == {"steps": STEPS}
