"""Who asks a module as the Trainer of transformers does becomes a Trainer for plans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.runs.own_loop import batch_of, words

import unity
from unity.api.trainer import ByPlan


class Trainer:
    """As that of transformers is made."""

    def __init__(self, model: unity.ParallelModule, **args: object) -> None:
        self.args, self.model = SimpleNamespace(**args), model
        self.model_accepts_loss_kwargs = getattr(model, "accepts_loss_kwargs")  # noqa: B009

    def _save_optimizer_and_scheduler(self, folder: str) -> None:
        raise AssertionError("on one rank alone")


@pytest.fixture(scope="module")
def model() -> unity.ParallelModule:
    module = words()
    plan = unity.optimize(
        module, batch_of(0), devices=1, planner="data-parallel", compare=False, quiet=True
    )
    return unity.parallelize(module, plan)


def test_a_trainer_becomes_one_for_plans(model: unity.ParallelModule):
    trainer = Trainer(model, fsdp=[], deepspeed=None)
    assert isinstance(trainer, ByPlan)
    assert type(trainer).__name__ == "Trainer"
    assert type(trainer) is type(Trainer(model))
    assert not trainer.model_accepts_loss_kwargs


@pytest.mark.parametrize("name", ["gradient_checkpointing", "fsdp", "deepspeed", "torch_compile"])
def test_what_the_plan_decides_is_refused(model: unity.ParallelModule, name: str):
    with pytest.raises(unity.InputError, match=f"TrainingArguments {name}: expected none"):
        Trainer(model, **{name: True})


def test_others_may_ask(model: unity.ParallelModule):
    assert getattr(model, "accepts_loss_kwargs") is False  # noqa: B009
    assert type(model).__name__ == "Words"
    assert type(model).forward is not unity.ParallelModule.forward
    assert isinstance(model, torch.nn.Module)
