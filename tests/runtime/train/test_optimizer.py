"""Updates of pieces, against torch's optimizers on whole tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR

from pcg.errors import InputError
from runtime.job.recipe import Recipe
from runtime.train.optimizer import Updater
from runtime.world.collectives import World

RECIPES = [
    Recipe(rate=0.1),
    Recipe(rate=0.1, momentum=0.9, weight_decay=0.1),
    Recipe(rate=0.1, momentum=0.9, nesterov=True),
    Recipe(rate=0.1, momentum=0.8, dampening=0.3),
    Recipe(optimizer="adam", rate=0.1, beta1=0.7, beta2=0.9, epsilon=1e-3, weight_decay=0.1),
    Recipe(optimizer="adamw", rate=0.1, weight_decay=0.1),
]
STEPS = 5


def reference(recipe, weight):
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            [weight],
            lr=recipe.rate,
            momentum=recipe.momentum,
            dampening=recipe.dampening,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    return kind(
        [weight],
        lr=recipe.rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
    )


def gradients(count, shape=(6, 4)):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def start():
    return torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)


def halves(tensor):
    return {"top": tensor[:2].clone(), "rest": tensor[2:].clone()}


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_pieces_of_a_weight_are_updated_as_the_whole_weight(recipe):
    whole, pieces = start(), halves(start())
    optimizer, updater = reference(recipe, whole), Updater(pieces, recipe, World())
    for gradient in gradients(STEPS):
        whole.grad = gradient
        optimizer.step()
        updater.update(halves(gradient))
    assert torch.equal(torch.cat([pieces["top"], pieces["rest"]]), whole)
    assert updater.updates == STEPS


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_restored_states_go_on_to_the_last_bit(recipe):
    scheduled = replace(recipe, schedule="cosine", decay=STEPS, warmup=1)
    one, other = {"w": start()}, {"w": start()}
    first, second = Updater(one, scheduled, World()), Updater(other, scheduled, World())
    every = gradients(STEPS)
    for gradient in every[:2]:
        first.update({"w": gradient})
    other["w"].copy_(one["w"])
    second.restore(2)
    saved = {key: tensor for _, key, tensor in first.states()}
    assert tuple(saved) == recipe.states
    for _, key, tensor in second.states():
        tensor.copy_(saved[key])
    for gradient in every[2:]:
        first.update({"w": gradient})
        second.update({"w": gradient})
        assert first.rate == second.rate
    assert torch.equal(one["w"], other["w"])
    assert second.updates == STEPS


class Elsewhere:
    """Another rank, which adds its part to a sum."""

    def __init__(self, part):
        self.part = part

    def total(self, value):
        return value + self.part


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_the_norm_counts_every_piece_once(limit):
    """There are three pieces. Another rank alone holds one, and both ranks hold another, which
    counts there."""
    gradient = gradients(1, (9, 4))[0]
    whole = torch.zeros(9, 4, dtype=torch.float64)
    whole.grad = gradient.clone()
    clip_grad_norm_([whole], limit)
    parts = {"own": gradient[:3], "shared": gradient[3:6]}
    there = gradient[3:].square().sum().item()
    pieces = {name: torch.zeros_like(part) for name, part in parts.items()}
    recipe = Recipe(rate=1.0, clip=limit)
    Updater(pieces, recipe, Elsewhere(there), frozenset({"own"})).update(parts)
    assert torch.allclose(-pieces["own"], whole.grad[:3], rtol=1e-14)
    assert torch.allclose(-pieces["shared"], whole.grad[3:6], rtol=1e-14)


def test_accumulated_gradients_are_their_mean():
    every = gradients(4)
    some, all_at_once = {"w": start()}, {"w": start()}
    slow = Updater(some, Recipe(accumulate=2), World())
    fast = Updater(all_at_once, Recipe(), World())
    for first, second in zip(every[::2], every[1::2], strict=True):
        slow.update({"w": first + second})
        fast.update({"w": (first + second) / 2})
    assert torch.equal(some["w"], all_at_once["w"])


def test_a_norm_that_is_no_number_spoils_weights():
    weight = {"w": start()}
    gradient = torch.full((6, 4), float("nan"), dtype=torch.float64)
    Updater(weight, Recipe(clip=1.0), World()).update({"w": gradient})
    assert weight["w"].isnan().all()


SCHEDULES = {
    "linear": lambda o: LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=4),
    "cosine": lambda o: CosineAnnealingLR(o, T_max=4, eta_min=0.25),
    "step": lambda o: StepLR(o, step_size=2, gamma=0.5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_torch(name):
    optimizer = torch.optim.SGD([torch.zeros(())], lr=1.0)
    schedule = SCHEDULES[name](optimizer)
    decay = 2 if name == "step" else 4
    recipe = Recipe(rate=1.0, schedule=name, decay=decay, gamma=0.5, floor=0.25)
    for done in range(5):
        assert recipe.factor(done) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        schedule.step()


def test_after_a_schedule_the_rate_stays():
    for name in ("linear", "cosine"):
        recipe = Recipe(schedule=name, decay=4, floor=0.25, warmup=3)
        assert [recipe.factor(done) for done in range(4)] == [0.25, 0.5, 0.75, 1.0]
        assert recipe.factor(7) == recipe.factor(100) == pytest.approx(0.25)


def test_the_schedule_sets_the_rate():
    weight = {"w": torch.zeros(1, dtype=torch.float64)}
    updater = Updater(weight, Recipe(rate=1.0, schedule="step", decay=1, gamma=0.5), World())
    for expected in (1.0, 1.5, 1.75):
        updater.update({"w": -torch.ones(1, dtype=torch.float64)})
        assert weight["w"].item() == expected


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("rate", float("nan"), "--lr: expected 0 or more, got nan"),
        ("clip", 0.0, "--clip: expected a number above 0, got 0"),
        ("accumulate", 0, "--accumulate: expected 1 or more, got 0"),
        ("beta2", 1.0, "--beta2: expected less than 1, got 1.0"),
        ("nesterov", True, "--nesterov: expected --momentum and no --dampening with it"),
        ("decay", 0, "--decay-steps: expected 1 or more, got 0"),
        ("optimizer", "lion", "--optimizer: expected one of sgd, adam, adamw, got lion"),
    ],
)
def test_recipes_that_make_no_sense(field, value, problem):
    with pytest.raises(InputError) as caught:
        Recipe(**{field: value})
    assert str(caught.value) == problem


def test_a_rank_without_weights_takes_part():
    updater = Updater({}, Recipe(clip=1.0, optimizer="adam"), World())
    updater.update({})
    assert updater.updates == 1
    assert list(updater.states()) == []
