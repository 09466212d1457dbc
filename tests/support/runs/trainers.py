"""Scripts that train small models with the Trainer of transformers, by a plan and without one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from support.runs.torchrun import WAIT, killed, output_of, torchrun
from torch import Tensor


def by_length() -> dict[str, Any]:
    """The arguments that put samples of similar length into one batch. Version 5 of transformers
    names them otherwise."""
    arguments = import_module("transformers").TrainingArguments
    if "group_by_length" in arguments.__dataclass_fields__:
        return {"group_by_length": True}
    return {"train_sampling_strategy": "group_by_length"}


MODEL = '''
"""Texts of several lengths, padded, and a model in float64."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

LONGEST = 6


class Texts(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not 0 <= number < self.count:
            raise IndexError(number)
        length = 2 + number % (LONGEST - 1)
        ids = torch.randint(40, (length,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": ids, "labels": ids}


def padded(samples):
    rows = {"input_ids": [], "labels": [], "attention_mask": []}
    for sample in samples:
        ids = sample["input_ids"]
        left = LONGEST - len(ids)
        rows["input_ids"].append(torch.nn.functional.pad(ids, (0, left)))
        rows["labels"].append(torch.nn.functional.pad(ids, (0, left), value=-100))
        rows["attention_mask"].append((torch.arange(LONGEST) < len(ids)).long())
    return {name: torch.stack(row) for name, row in rows.items()}


def exact(logits, labels, num_items_in_batch=None, **others):
    """In float64; that of transformers is in float32."""
    following = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].flatten()
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def make_model():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    model = GPT2LMHeadModel(config).double()
    model.loss_function = exact
    return model
'''
PLAN = """
import sys

import torch
import unity
from my_texts import Texts, make_model, padded

inputs = padded([Texts(48)[number] for number in range(2)])
inputs["num_items_in_batch"] = torch.tensor(1.0)
plan = unity.optimize(
    make_model(), inputs, devices=int(sys.argv[1]), planner=sys.argv[2], quiet=True
)
plan.save("plan.json")
"""
TRAIN = f"""
import json
import os
import sys
from pathlib import Path

from my_texts import Texts, make_model, padded
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

folder, plan, stop, evaluated = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == stop:
            {WAIT}


args = TrainingArguments(
    folder,
    per_device_train_batch_size=2,
    **{{
        **dict(max_steps=6, learning_rate=0.01, warmup_steps=2, max_grad_norm=0.5),
        **dict(save_steps=3, eval_strategy="steps", eval_steps=3, logging_steps=1),
        **dict(report_to="none", use_cpu=True, disable_tqdm=True),
        **json.loads(Path("arguments.json").read_text()),
    }},
)
model = make_model()
if plan:
    import unity

    model = unity.parallelize(model, plan)
trainer = Trainer(
    model, args, train_dataset=Texts(48), eval_dataset=Texts(evaluated), data_collator=padded
)
trainer.add_callback(Waits())
Path(folder).mkdir(exist_ok=True)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
trainer.save_model()
trainer.save_state()
"""
NOTED = ("loss", "grad_norm", "eval_loss")


@dataclass(frozen=True)
class Trainers:
    """A folder with a model and two scripts, which plan and train it. ``processes``: the number of
    processes of torchrun."""

    folder: Path
    processes: int = 4

    def prepare(self, planner: str) -> None:
        """Write the scripts, and make the plan."""
        for name, text in (("my_texts", MODEL), ("plan_texts", PLAN), ("train_texts", TRAIN)):
            (self.folder / f"{name}.py").write_text(text.lstrip("\n"), "utf-8")
        output_of([sys.executable, "plan_texts.py", str(self.processes), planner], self.folder)

    def train(self, into: str, plan: str, arguments: dict[str, Any], evaluated: int = 48) -> None:
        """Train until the end, from the last checkpoint if there is one. Without a plan, train by
        DistributedDataParallel."""
        output_of(self._command(into, plan, -1, arguments, evaluated), self.folder)

    def kill(
        self, into: str, plan: str, at: int, arguments: dict[str, Any], evaluated: int = 48
    ) -> None:
        """Train until a step, and kill all processes there."""
        killed(self._command(into, plan, at, arguments, evaluated), self.folder, self.processes)

    def difference(self, one: str, other: str) -> float:
        """The largest difference between the figures that two Trainers noted of each step, and
        between the weights that they saved, relative to the largest number of each kind."""
        ours, theirs = (self._noted(name) for name in (one, other))
        worst = max(_relative(ours[n], theirs[n]) for n in NOTED)
        weights, expected = (self._weights(name) for name in (one, other))
        assert weights.keys() == expected.keys()
        size = max(float(w.abs().max()) for w in expected.values())
        far = (float((weights[n] - expected[n]).abs().max()) for n in expected)
        return max(worst, *(value / size for value in far))

    def _command(
        self, into: str, plan: str, at: int, arguments: dict[str, Any], evaluated: int
    ) -> list[str]:
        (self.folder / "arguments.json").write_text(json.dumps(arguments), "utf-8")
        command = torchrun("train_texts.py", self.processes)
        return [*command, into, plan, str(at), str(evaluated)]

    def _noted(self, name: str) -> dict[str, list[float]]:
        """The figures of all steps, by kind."""
        state = json.loads((self.folder / name / "trainer_state.json").read_text("utf-8"))
        entries: list[dict[str, float]] = state["log_history"]
        return {n: [entry[n] for entry in entries if n in entry] for n in NOTED}

    def _weights(self, name: str) -> dict[str, Tensor]:
        return import_module("safetensors.torch").load_file(
            self.folder / name / "model.safetensors"
        )


def _relative(ours: list[float], theirs: list[float]) -> float:
    assert len(ours) == len(theirs)
    assert ours
    size = max(map(abs, theirs))
    return max(_apart(a, b) for a, b in zip(ours, theirs, strict=True)) / size


def _apart(one: float, other: float) -> float:
    """The difference of two numbers; 0 if both were rounded to neighbours in float32. Version 5 of
    transformers rounds the losses that it notes."""
    single = np.float32(one)
    are_rounded = single == one and np.float32(other) == other
    apart = abs(one - other)
    return 0.0 if are_rounded and apart <= np.spacing(abs(single)) else apart
