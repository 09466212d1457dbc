"""Update the blocks of weights on a rank with torch's optimizers.

All these optimizers are element-wise. So each rank updates the blocks that it stores, and keeps the
optimizer states of these blocks only. Copies of a block get equal gradients and stay equal. Only
clipping needs the gradients of all blocks together. The weights are the model's own parameters,
whatever rewrites a plan applied: weights that a rewrite derives from them are computed in every
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from runtime.job.recipe import Recipe


class Summing(Protocol):
    """Adds up numbers over all ranks."""

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
        """``weights``: the blocks to train, by register. ``counted``: the blocks that count on this
        rank for the norm of all gradients, so that one copy of each block counts; by default all.
        """
        self._weights = dict(weights)
        self._recipe, self._world = recipe, world
        self._counted = frozenset(weights) if counted is None else counted
        self._optimizer = _optimizer(recipe, list(self._weights.values()))
        self._schedule = _schedule(recipe, self._optimizer, 0)
        self.updates = 0
        """The number of updates so far."""

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Update all blocks. ``gradients``: the complete gradient of each block, by register; they
        are changed. All ranks call together."""
        if self._recipe.accumulate > 1:
            for gradient in gradients.values():
                gradient.div_(self._recipe.accumulate)
        factor = self._clip_factor(gradients)
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
        """The optimizer states that have the shape of their block: register, torch's name of the
        state, and the tensor."""
        for name, weight in self._weights.items():
            state: dict[str, Any] = self._optimizer.state[weight]
            for key in self._recipe.states:
                if isinstance(value := state.get(key), Tensor):
                    yield name, key, value

    def restore(self, updates: int) -> None:
        """Continue after a number of updates. The optimizer states are created as zeros. The caller
        fills them through ``states``."""
        self.updates = updates
        self._schedule = _schedule(self._recipe, self._optimizer, updates)
        if updates:
            for weight in self._weights.values():
                self._optimizer.state[weight] = self._fresh_states(weight, updates)

    def _fresh_states(self, weight: Tensor, updates: int) -> dict[str, Tensor]:
        states = {key: torch.zeros_like(weight) for key in self._recipe.states}
        if self._recipe.optimizer != "sgd":
            states["step"] = torch.tensor(float(updates))
        return states

    def _clip_factor(self, gradients: Mapping[str, Tensor]) -> float | None:
        """The factor by which gradients are multiplied so that their norm is at most
        ``recipe.clip``. None if it is already. As in ``torch.nn.utils.clip_grad_norm_``."""
        if self._recipe.clip is None:
            return None
        squares = [
            gradients[name].to(torch.float64).square().sum()
            for name in self._weights
            if name in self._counted
        ]
        norm = self._world.total(float(torch.stack(squares).sum()) if squares else 0.0) ** 0.5
        factor = self._recipe.clip / (norm + 1e-6)
        # Not "factor if factor < 1 else None": a NaN norm must not be hidden.
        return None if factor >= 1 else factor


def _optimizer(recipe: Recipe, weights: list[Tensor]) -> optim.Optimizer:
    # torch refuses an empty list, but a rank may store no weights.
    parameters = weights or [torch.zeros(())]
    betas = recipe.beta1, recipe.beta2
    match recipe.optimizer:
        case "sgd":
            return optim.SGD(
                parameters,
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
    decay = recipe.weight_decay
    return kind(parameters, lr=recipe.rate, betas=betas, eps=recipe.epsilon, weight_decay=decay)


def _schedule(recipe: Recipe, optimizer: optim.Optimizer, updates: int) -> LRScheduler:
    """The learning-rate schedule after a number of updates."""
    for group in optimizer.param_groups:
        group["initial_lr"] = recipe.rate
    return LambdaLR(optimizer, recipe.factor, last_epoch=updates - 1)
