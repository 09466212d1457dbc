"""The Trainer of transformers by a plan: killed, resumed, and equal to itself on one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from difflib import ndiff
from importlib import import_module
from pathlib import Path
from time import monotonic

import pytest
import torch
from support.pages import ROOT, blocks

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
WAITS = """
import os
import sys
from transformers import TrainerCallback


class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == 4 and not get_last_checkpoint("texts").endswith("-6"):
            if state.log_history[0]["step"] == 1 and not Path("killed").exists():
                print("waits to be killed:", os.getpid(), flush=True)
                sys.stdin.read()
                os._exit(1)


trainer.add_callback(Waits())
trainer.train("""
TRAINED = ("loss", "grad_norm", "learning_rate", "eval_loss", "step")


def environment() -> dict[str, str]:
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(script: str) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, "--nproc-per-node", "2", script]


def ran(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[:4000]


def killed(command: list[str], folder: Path) -> None:
    """Run until all ranks say that they wait to be killed."""
    run = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE,
        stdin=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert run.stdout is not None
    ranks: list[int] = []
    ends = monotonic() + 300
    while len(ranks) < 2:
        line = run.stdout.readline()
        assert line
        assert monotonic() < ends
        if "killed" in line:
            ranks.append(int(line.split()[-1]))
    # Each by itself: torchrun gives them sessions of their own.
    for process in (*ranks, run.pid):
        os.kill(process, signal.SIGKILL)
    run.wait()
    run.stdout.close()


def logged(folder: Path) -> list[dict[str, float]]:
    """What a Trainer noted of each step that it took, evaluations among them."""
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    return [{n: v for n, v in entry.items() if n in TRAINED} for entry in state["log_history"]]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return import_module("safetensors.torch").load_file(folder / "model.safetensors")


def test_killed_and_resumed_it_trains_as_on_one_process(tmp_path: Path):
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
    before, after = (tmp_path / "train_texts.py", tmp_path / "train_texts_by_plan.py")
    lines = [path.read_text().split("\n") for path in (before, after)]
    assert len([line for line in ndiff(*lines) if line[0] == "+"]) == 3
    with (tmp_path / "my_texts.py").open("a") as file:
        file.write(EXACT)
    ran([sys.executable, before.name], tmp_path)
    (tmp_path / "texts").rename(tmp_path / "expected")
    ran([sys.executable, "plan_texts.py"], tmp_path)
    after.write_text(after.read_text().replace("\ntrainer.train(", WAITS))
    killed(torchrun(after.name), tmp_path)
    assert (tmp_path / "texts" / "checkpoint-3").is_dir()
    (tmp_path / "killed").touch()
    ran(torchrun(after.name), tmp_path)
    expected, found = (logged(tmp_path / name) for name in ("expected", "texts"))
    assert [entry.keys() for entry in found] == [entry.keys() for entry in expected]
    for ours, theirs in zip(found, expected, strict=True):
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
