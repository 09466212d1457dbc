"""The Trainer of transformers by a plan: killed and resumed, it equals itself on one process."""

from __future__ import annotations

import json
import sys
from difflib import ndiff
from importlib import import_module
from pathlib import Path

import pytest
import torch
from support.pages import ROOT, blocks
from support.runs.torchrun import WAIT, killed, output_of, torchrun
from support.runs.trainers import Trainers, by_length

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.distributed

PAGE = ROOT / "docs" / "python-api.md"
EXACT = '''

def exact(logits, labels, num_items_in_batch=None, **others):
    """In float64; that of transformers is in float32."""
    following = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].flatten()
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), following, reduction=reduction
    )
    return loss if num_items_in_batch is None else loss / num_items_in_batch


of_page = make_model


def make_model():
    model = of_page().double()
    model.loss_function = exact
    return model
'''
WAITS = f"""
import os
import sys
from transformers import TrainerCallback


class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == 4 and not Path("killed").exists():
            {WAIT}


trainer.add_callback(Waits())
trainer.train("""
TRAINED = ("loss", "grad_norm", "learning_rate", "eval_loss", "step")


def logged(folder: Path) -> list[dict[str, float]]:
    """The figures that a Trainer noted of each step, with its evaluations."""
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    return [{n: v for n, v in entry.items() if n in TRAINED} for entry in state["log_history"]]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return import_module("safetensors.torch").load_file(folder / "model.safetensors")


def test_killed_and_resumed_trainer_trains_as_on_one_process(tmp_path: Path):
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
    before, after = (tmp_path / "train_texts.py", tmp_path / "train_texts_by_plan.py")
    ours, theirs = (path.read_text().split("\n") for path in (after, before))
    assert len([line for line in ndiff(theirs, ours) if line[0] == "+"]) == 3
    with (tmp_path / "my_texts.py").open("a") as file:
        file.write(EXACT)
    output_of([sys.executable, before.name], tmp_path)
    (tmp_path / "texts").rename(tmp_path / "expected")
    output_of([sys.executable, "plan_texts.py"], tmp_path)
    after.write_text(after.read_text().replace("\ntrainer.train(", WAITS))
    killed(torchrun(after.name), tmp_path)
    assert (tmp_path / "texts" / "checkpoint-3").is_dir()
    (tmp_path / "killed").touch()
    output_of(torchrun(after.name), tmp_path)
    expected, actual = (logged(tmp_path / name) for name in ("expected", "texts"))
    assert [entry.keys() for entry in actual] == [entry.keys() for entry in expected]
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    for part in ("", "checkpoint-3"):
        state = weights(tmp_path / "texts" / part)
        torch.testing.assert_close(
            state, weights(tmp_path / "expected" / part), rtol=1e-9, atol=1e-9
        )
    models = import_module("transformers")
    again = models.GPT2LMHeadModel.from_pretrained(tmp_path / "texts", dtype=torch.float64)
    state = weights(tmp_path / "texts")
    assert {name: again.state_dict()[name].tolist() for name in state} == {
        name: tensor.tolist() for name, tensor in state.items()
    }


@pytest.mark.soak
def test_killed_and_resumed_trainer_on_four_processes_trains_as_ddp(tmp_path: Path):
    """With texts of several lengths, and an evaluation whose size does not divide."""
    arguments = {**by_length(), "per_device_eval_batch_size": 3}
    trainers = Trainers(tmp_path, 4)
    trainers.prepare("zero")
    trainers.train("expected", "", arguments, 43)
    trainers.kill("found", "plan.json", 4, arguments, 43)
    assert (tmp_path / "found" / "checkpoint-3").is_dir()
    trainers.train("found", "plan.json", arguments, 43)
    assert trainers.difference("found", "expected") < 1e-9
