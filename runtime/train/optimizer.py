"""Update the pieces of weights on a rank with torch's optimizers.

All optimizers here treat elements one by one, so that each rank updates the pieces that it holds
and keeps the optimizer's states for these alone; copies of a piece get equal gradients and stay
equal. Only clipping looks at all pieces together. Weights are the model's own parameters whatever
rules a plan applied: what a rewrite makes of them is computed from them in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from runtime.job.recipe import Recipe


class Summing(Protocol):
    """What adds numbers up over all ranks."""

    def total(self, value: float) -> float: ...


class Updater:
    """Updates tensors in place from the sums of their gradients over ``recipe.accumulate``
    batches."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        recipe: Recipe,
        world: Summing,
        counted: frozenset[str] | None = None,
    ) -> None:
        """``weights``: the pieces to train, by register. ``counted``: those that count for the norm
        of all gradients here, so that of each piece's copies one does; by default all."""
        self._weights = dict(weights)
        self._recipe, self._world = recipe, world
        self._counted = frozenset(weights) if counted is None else counted
        self._optimizer = _optimizer(recipe, list(self._weights.values()))
        self._schedule = _schedule(recipe, self._optimizer, 0)
        self.updates = 0
        """How often weights have been updated."""

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Take the complete gradient of every piece, which is used up; all ranks have to call
        together."""
        if self._recipe.accumulate > 1:
            for gradient in gradients.values():
                gradient.div_(self._recipe.accumulate)
        factor = self._shortening(gradients)
        for name, weight in self._weights.items():
            gradient = gradients[name]
            weight.grad = gradient if factor is None else gradient.mul_(factor)
        self._optimizer.step()
        for weight in self._weights.values():
            weight.grad = None
        self._schedule.step()
        self.updates += 1

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return float(self._schedule.get_last_lr()[0])

    def states(self) -> Iterator[tuple[str, str, Tensor]]:
        """Every state of a piece's shape: register, torch's name of it, and the tensor."""
        for name, weight in self._weights.items():
            held: dict[str, Any] = self._optimizer.state[weight]
            for key in self._recipe.states:
                if isinstance(value := held.get(key), Tensor):
                    yield name, key, value

    def restore(self, updates: int) -> None:
        """Go on after so many updates. States are made, and left to be filled by whoever has them
        (``states``)."""
        self.updates = updates
        self._schedule = _schedule(self._recipe, self._optimizer, updates)
        if updates:
            for weight in self._weights.values():
                self._optimizer.state[weight] = self._fresh_states(weight, updates)

    def _fresh_states(self, weight: Tensor, updates: int) -> dict[str, Tensor]:
        made = {key: torch.zeros_like(weight) for key in self._recipe.states}
        if self._recipe.optimizer != "sgd":
            made["step"] = torch.tensor(float(updates))
        return made

    def _shortening(self, gradients: Mapping[str, Tensor]) -> float | None:
        """What to multiply gradients with so that their norm is no more than ``recipe.clip``; None
        if they are short enough. As in ``torch.nn.utils.clip_grad_norm_``."""
        if self._recipe.clip is None:
            return None
        squares = [
            gradients[name].to(torch.float64).square().sum()
            for name in self._weights
            if name in self._counted
        ]
        norm = self._world.total(float(torch.stack(squares).sum()) if squares else 0.0) ** 0.5
        factor = self._recipe.clip / (norm + 1e-6)
        # Not "factor < 1 else None": a norm that is no number has to spoil the weights visibly.
        return None if factor >= 1 else factor


def _optimizer(recipe: Recipe, weights: list[Tensor]) -> optim.Optimizer:
    # torch refuses an empty list, and a rank may hold no weights.
    given = weights or [torch.zeros(())]
    betas = recipe.beta1, recipe.beta2
    match recipe.optimizer:
        case "sgd":
            return optim.SGD(
                given,
                lr=recipe.rate,
                momentum=recipe.momentum,
                dampening=recipe.dampening,
                weight_decay=recipe.weight_decay,
                nesterov=recipe.nesterov,
            )
        case "adam":
            kind = optim.Adam
        case "adamw":
            kind = optim.AdamW
    return kind(
        given, lr=recipe.rate, betas=betas, eps=recipe.epsilon, weight_decay=recipe.weight_decay
    )


def _schedule(recipe: Recipe, optimizer: optim.Optimizer, updates: int) -> LRScheduler:
    """The schedule as it is after so many updates."""
    for group in optimizer.param_groups:
        group["initial_lr"] = recipe.rate
    return LambdaLR(optimizer, recipe.factor, last_epoch=updates - 1)
