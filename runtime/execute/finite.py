"""Detect losses, gradients and weights that are not finite.

Problem. Report the first value that is not finite, once, and write it to no checkpoint, without
making any step wait.

Method. Each rank computes the largest magnitude of each gradient. It is NaN or infinite exactly if
an element is. Whether any is not finite is sent with the sum of the next step's loss, as the
request to stop is. So a loss that is not finite is known at the end of its own step, and a gradient
at the end of the next one. Before a checkpoint is written, the weights and optimizer states
themselves are tested (``all_finite``). Updates that fp16 skips because the loss scale was too large
do not count, because their gradients are not used.

Complexity. One pass over the gradients per step. Exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

import torch
from torch import Tensor

from runtime.world.collectives import World

WeightName = Callable[[str], str]
"""From the register of a weight to its name for the user."""
BadInputs = Callable[[], list[str]]
"""The inputs of this rank that are not finite."""
_SHOWN = 3
"""The largest number of causes in a message."""


class FiniteWatch:
    """The watch of one rank. All ranks call ``after`` and ``finish`` together."""

    def __init__(self, world: World, weight_name: WeightName, bad_inputs: BadInputs) -> None:
        self._world, self._weight_name, self._bad_inputs = world, weight_name, bad_inputs
        self._norms: tuple[list[str], Tensor] | None = None
        self._noted = 0
        self.now = ""
        """Says what is not finite now; empty if all is finite. All ranks have the same text."""
        self.steps = 0
        """The number of steps with a loss or gradients that were not finite."""

    def note(self, gradients: Mapping[str, Tensor], number: int) -> None:
        """Note the complete gradients of step ``number``, by register."""
        self._noted = number
        if not gradients:
            return
        infinity = float("inf")
        # As in torch's own gradient clipping: one kernel for many tensors.
        norms = torch._foreach_norm(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            list(gradients.values()), infinity
        )
        self._norms = list(gradients), torch.stack([norm.to(torch.float64) for norm in norms])
        self._world.alarm = self._norms[1].isfinite().logical_not().any().to(torch.float64)

    def after(self, number: int, loss: float) -> bool:
        """Note the end of step ``number`` and its loss. Return True if the loss, or a gradient of
        the step before, is not finite, and all was finite until then."""
        alarmed, self._world.alarmed = self._world.alarmed, False
        if isfinite(loss) and not alarmed:
            self.now = ""
            return False
        self.steps += 1
        if self.now:
            return False
        # An alarm at the end of a step is about the gradients of the step before.
        problem = f"gradients are not finite in step {max(number - 1, 1)}"
        if not isfinite(loss):
            problem = f"loss is {loss} in step {number}"
        self.now = problem + _listed(self._world.gather(self._causes()))
        return True

    def finish(self) -> bool:
        """Check the gradients of the last step. Return True if they are the first values that are
        not finite."""
        self._world.alarmed = False
        self._world.total(0.0)
        if self.now or not self._world.alarmed:
            return False
        self.steps += 1
        causes = _listed(self._world.gather(self._causes()))
        self.now = f"gradients are not finite in step {self._noted}{causes}"
        return True

    def _causes(self) -> list[str]:
        """The values of this rank that are not finite: its inputs, which then are the cause, or
        else its gradients."""
        if inputs := self._bad_inputs():
            return [f"{name} of rank {self._world.rank}" for name in inputs]
        if self._norms is None:
            return []
        names, norms = self._norms
        bad = [name for name, ok in zip(names, norms.isfinite().tolist(), strict=True) if not ok]
        return [f"gradient of {self._weight_name(name)}" for name in bad]


def all_finite(world: World, tensors: Iterable[Tensor]) -> bool:
    """Whether the tensors of all ranks are finite. All ranks call together."""
    bad = sum(0 if bool(tensor.isfinite().all()) else 1 for tensor in tensors)
    return sum(world.gather(bad)) == 0


def _listed(causes: Iterable[list[str]]) -> str:
    """The causes of all ranks as text, each once: only inputs, if there are any."""
    all_causes = [cause for of_rank in causes for cause in of_rank]
    inputs = [cause for cause in all_causes if not cause.startswith("gradient")]
    shown = list(dict.fromkeys(inputs or all_causes))
    if not shown:
        return ""
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f" ({', '.join(shown[:_SHOWN])}{more})"
