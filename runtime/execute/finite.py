"""Detect losses, gradients and weights that are not finite.

Each is told once; no step waits for it, and no checkpoint gets it.

Each rank takes the largest magnitude of its gradients, one pass over them, which is no number or
infinite exactly where one of them is. Whether it is goes with the number that ranks add up in the
next step anyway, its loss, as the request to stop does. So a loss is known of at the end of its own
step and a gradient at the end of the next one. Checkpoints are asked for sooner: before one is
written, weights and states themselves are looked at. Updates that fp16 leaves out because the loss
was scaled too far are none of this: their gradients are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

import torch
from torch import Tensor

from runtime.world.collectives import World

Named = Callable[[str], str]
"""What the user calls a weight, by its register."""
Details = Callable[[], list[str]]
"""What else is not finite on this rank, such as its inputs."""
_SHOWN = 3


class FiniteWatch:
    """Of one rank; all ranks call ``after`` and ``finish`` together."""

    def __init__(self, world: World, named: Named, details: Details) -> None:
        self._world, self._named, self._details = world, named, details
        self._norms: tuple[list[str], Tensor] | None = None
        self._noted = 0
        self.now = ""
        """What is not finite now, if anything; all ranks have the same text."""
        self.steps = 0
        """Steps of which that was so."""

    def note(self, gradients: Mapping[str, Tensor], number: int) -> None:
        """Take the complete gradients of step ``number``, by register."""
        self._noted = number
        if not gradients:
            return
        infinity = float("inf")
        # What torch's own clipping uses: one kernel for many tensors.
        norms = torch._foreach_norm(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            list(gradients.values()), infinity
        )
        self._norms = list(gradients), torch.stack([norm.to(torch.float64) for norm in norms])
        self._world.alarm = self._norms[1].isfinite().logical_not().any().to(torch.float64)

    def after(self, number: int, loss: float) -> bool:
        """Take the end of step ``number`` in; whether it is the first after finite ones that was
        not finite, or whose step before had gradients that were not."""
        alarmed, self._world.alarmed = self._world.alarmed, False
        if isfinite(loss) and not alarmed:
            self.now = ""
            return False
        self.steps += 1
        if self.now:
            return False
        # At the end of a step, gradients of the one before are told of.
        what = f"gradients are not finite in step {max(number - 1, 1)}"
        if not isfinite(loss):
            what = f"loss is {loss} in step {number}"
        self.now = what + _listed(self._world.gather(self._causes()))
        return True

    def finish(self) -> bool:
        """Learn of the last gradients; whether they are the first that are not finite."""
        self._world.alarmed = False
        self._world.total(0.0)
        if self.now or not self._world.alarmed:
            return False
        self.steps += 1
        causes = _listed(self._world.gather(self._causes()))
        self.now = f"gradients are not finite in step {self._noted}{causes}"
        return True

    def _causes(self) -> list[str]:
        """What this rank has that is not finite: its data, which are the cause, or else its
        gradients."""
        if inputs := self._details():
            return [f"{what} of rank {self._world.rank}" for what in inputs]
        if self._norms is None:
            return []
        names, norms = self._norms
        bad = [name for name, ok in zip(names, norms.isfinite().tolist(), strict=True) if not ok]
        return [f"gradient of {self._named(name)}" for name in bad]


def all_finite(world: World, tensors: Iterable[Tensor]) -> bool:
    """Whether tensors are finite on all ranks, which call together."""
    bad = sum(0 if bool(tensor.isfinite().all()) else 1 for tensor in tensors)
    return sum(world.gather(bad)) == 0


def _listed(causes: Iterable[list[str]]) -> str:
    """Causes of all ranks, inputs first, each once."""
    all_of = [cause for own in causes for cause in own]
    inputs = [cause for cause in all_of if not cause.startswith("gradient")]
    shown = list(dict.fromkeys(inputs or all_of))
    if not shown:
        return ""
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f" ({', '.join(shown[:_SHOWN])}{more})"
