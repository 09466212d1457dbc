"""Asked as the Trainer of transformers asks, a module makes it a Trainer for plans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.runs.own_loop import batch_of, words
from torch import nn

import unity
from unity.api.trainer import REFUSED, ByPlan


class Trainer:
    """A Trainer, made as in transformers."""

    def __init__(self, model: unity.ParallelModule, **args: object) -> None:
        given: dict[str, object] = {"optim": "adamw_torch", "weight_decay": 0.0, **args}
        self.args, self.model = SimpleNamespace(**given), model
        self.compute_loss_func = given.get("compute_loss_func")
        self.train_dataset = range(42)
        self.accelerator = SimpleNamespace(num_processes=4, scaler=given.get("scaler"))
        self.model_accepts_loss_kwargs = getattr(model, "accepts_loss_kwargs")  # noqa: B009

    def _save_optimizer_and_scheduler(self, folder: str) -> None:
        raise AssertionError("on one rank alone")

    def get_train_dataloader(self) -> str:
        return "loader"

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Whether a parameter decays depends on the class of its module."""
        parts = dict(model.named_modules())
        return [
            name
            for name, _ in model.named_parameters(remove_duplicate=False)
            if not isinstance(parts[name.rpartition(".")[0]], nn.LayerNorm)
        ]


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


def test_an_accelerate_that_wraps_modules_is_refused(
    model: unity.ParallelModule, monkeypatch: pytest.MonkeyPatch
):
    for release, fits in (("1.13.2", False), ("0.34.0", False), ("1.14.0", True), ("2.0", True)):
        monkeypatch.setattr("unity.api.trainer.version", {"accelerate": release}.__getitem__)
        if fits:
            assert isinstance(Trainer(model), ByPlan)
            continue
        with pytest.raises(unity.InputError, match=f"accelerate: {release} wraps modules"):
            Trainer(model)


@pytest.mark.parametrize("name", REFUSED)
def test_trainer_options_that_the_plan_decides_are_refused(model: unity.ParallelModule, name: str):
    with pytest.raises(unity.InputError, match=f"TrainingArguments {name}: expected none"):
        Trainer(model, **{name: True})


def test_another_loss_is_refused(model: unity.ParallelModule):
    with pytest.raises(unity.InputError, match=r"compute_loss_func: expected none: .*loss= of"):
        Trainer(model, compute_loss_func=print)


@pytest.mark.parametrize("scaler", [None, object()])
def test_a_plan_in_fp16_needs_a_scaled_loss(scaler: object):
    module, inputs = Normed(), (torch.randn(2, 4),)
    plan = unity.optimize(
        *(module, inputs), devices=1, precision="fp16", planner="data-parallel", compare=False,
        quiet=True,
    )  # fmt: skip
    model = unity.parallelize(module, plan)
    if scaler is not None:
        assert isinstance(Trainer(model, scaler=scaler), ByPlan)
        return
    with pytest.raises(unity.InputError, match="TrainingArguments fp16: the plan computes in fp16"):
        Trainer(model)


@pytest.mark.parametrize(
    "name", ["adafactor", "galore_adamw", "adamw_8bit", SimpleNamespace(value="lomo")]
)
def test_an_optimizer_of_more_than_elements_is_refused(model: unity.ParallelModule, name: object):
    with pytest.raises(unity.InputError, match=r"TrainingArguments optim: .* shard"):
        Trainer(model, optim=name)


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        ({"max_steps": -1}, False),
        ({"max_steps": 6}, False),
        ({"max_steps": 5}, True),
        ({"max_steps": 3, "gradient_accumulation_steps": 2}, False),
        ({"max_steps": -1, "dataloader_drop_last": True}, True),
        ({"max_steps": -1, "train_batch_size": 7, "processes": 3}, True),
    ],
)
def test_a_short_last_batch_is_refused(
    model: unity.ParallelModule, args: dict[str, int], fits: bool
):
    given = {"train_batch_size": 2, "gradient_accumulation_steps": 1, **args}
    trainer = Trainer(model, **{"dataloader_drop_last": False, **given})
    trainer.accelerator.num_processes = args.get("processes", 4)
    if fits:
        assert trainer.get_train_dataloader() == "loader"
        return
    with pytest.raises(unity.InputError, match="has 2, not 8, expected dataloader_drop_last=True"):
        trainer.get_train_dataloader()


class Normed(nn.Module):
    """A norm whose name does not show that it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.head = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.ln(x)).square().mean()


def test_weights_of_norms_do_not_decay():
    module, inputs = Normed(), (torch.randn(2, 4),)
    plan = unity.optimize(
        module, inputs, devices=1, planner="data-parallel", compare=False, quiet=True
    )
    trainer = Trainer(unity.parallelize(module, plan), weight_decay=0.1)
    assert trainer.get_decay_parameter_names(trainer.model) == ["head.weight", "head.bias"]


def test_other_libraries_read_attributes_of_the_module(model: unity.ParallelModule):
    assert getattr(model, "accepts_loss_kwargs") is False  # noqa: B009
    assert type(model).__name__ == "Words"
    assert type(model).forward is not unity.ParallelModule.forward
    assert isinstance(model, torch.nn.Module)
