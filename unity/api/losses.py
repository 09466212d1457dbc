"""Find the loss of a module's call: in its output, or by a function of output and batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.loss import _Loss as LossModule  # pyright: ignore[reportPrivateUsage]

from pcg.errors import InputError
from runtime.module.calls import TARGET, ModuleCall

Loss = str | Callable[..., Tensor] | None
"""How to compute a loss. None: ``forward`` returns the loss, or an output that has one. A name of
``torch.nn.functional`` or an instance of a loss of ``torch.nn``: a function of (output, target).
Any other callable: a function of (output, batch)."""
NAMES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
)
"""Losses of ``torch.nn.functional`` of an output and a target."""


@dataclass(frozen=True)
class LossSource:
    """The way to find the loss of a call."""

    given: Loss

    def __post_init__(self) -> None:
        if isinstance(self.given, str) and self.given not in NAMES:
            known = ", ".join(NAMES)
            problem = f"unknown, expected a function of (output, batch) or one of {known}"
            raise InputError(f"loss {self.given}", problem)
        if self.given is not None and not isinstance(self.given, str) and not callable(self.given):
            kind = type(self.given).__name__
            raise InputError(
                "loss", f"expected a name or a function of (output, batch), got {kind}"
            )

    @property
    def has_target(self) -> bool:
        """Whether a part of the inputs is for the loss alone."""
        return self.given is not None

    def check(self, call: ModuleCall) -> None:
        """Raise InputError for a call without a target, or with several, where one is needed."""
        if self._is_of_target and len(call.targets) != 1:
            targets = ", ".join(call.targets) or "nothing"
            expected = (
                "expected the target last in a tuple, or by a name that forward does not take"
            )
            raise InputError("loss", f"{expected}, got {targets}")

    def of(self, output: Any, arguments: Mapping[str, Any], targets: Mapping[str, Any]) -> Tensor:
        """Return the loss. Raises InputError if there is none."""
        if self.given is None:
            return returned_loss(output)
        if self._is_of_target:
            (target,) = targets.values()
            return self._function(_tensor_of(output), target)
        positional = TARGET in targets
        batch: Any = {**arguments, **targets}
        return self._function(output, tuple(batch.values()) if positional else batch)

    @property
    def _is_of_target(self) -> bool:
        return isinstance(self.given, (str, LossModule))

    @property
    def _function(self) -> Callable[..., Tensor]:
        if isinstance(self.given, str):
            return getattr(torch.nn.functional, self.given)
        assert self.given is not None, "asked for where a loss is given"
        return self.given


def returned_loss(output: Any) -> Tensor:
    """Return the loss in a module's output. Raises InputError if there is none."""
    loss = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif not isinstance(output, Tensor) and hasattr(output, "loss"):
        loss = output.loss
    elif isinstance(output, Sequence) and output:
        loss = output[0]
    if not isinstance(loss, Tensor):
        problem = f"forward returns {type(output).__name__} without a loss"
        raise InputError("loss", f"{problem}, expected inputs with labels, or loss=")
    if loss.numel() != 1:
        problem = f"forward returns a tensor of shape {list(loss.shape)}, which is no loss"
        raise InputError("loss", f"{problem}, expected one number, or loss=")
    return loss


def _tensor_of(output: Any) -> Tensor:
    """Return the tensor of an output from which a loss by name is computed."""
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        kind = type(output).__name__
        problem = f"forward returns {kind}, which is neither a tensor nor has logits"
        raise InputError("loss", f"{problem}, expected loss= as a function of (output, batch)")
    return logits


def with_loss(module: Module, call: ModuleCall, losses: LossSource) -> Module:
    """Return a module that takes the tensors of a call, under their names, and returns the loss.

    It shares the submodules and parameters of ``module``, so that their names are the same.
    """

    def forward(self: Any, *tensors: Tensor) -> Tensor:
        bound, targets = call.with_tensors(tensors)
        output = module(*bound.args, **bound.kwargs)
        return losses.of(output, bound.arguments, targets)

    def run(self: Any, *tensors: Tensor) -> Tensor:
        # The module runs its own hooks.
        return forward(self, *tensors)

    # torch.export takes the names of inputs from it.
    setattr(forward, "__signature__", _signature(call.tensors))  # noqa: B010 for pyright
    kind = type(type(module).__name__, (Module,), {"forward": forward, "__call__": run})
    seen = kind.__new__(kind)
    object.__setattr__(seen, "__dict__", module.__dict__)
    return seen


def _signature(names: Mapping[str, Tensor]) -> Signature:
    ordered = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *names)]
    return Signature(ordered)
