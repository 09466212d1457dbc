"""Run the original module on one rank with whole weights, for all outputs but the loss.

A plan is for a module in training mode and one batch size, and its graph computes the loss. All
else, such as logits, or evaluation with dropout and batch norms, is computed by the module. Whole
weights are gathered for it, and kept until they change. A training step does not pay for this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import Module, Parameter
from torch.utils import _pytree as trees

from pcg.errors import InputError
from runtime.module.engine import RankEngine
from runtime.module.twin import twin, without_elements
from runtime.module.whole import whole_tensors
from runtime.train.initial import tensors_of

NARROW = (torch.bfloat16, torch.float16)
"""The formats of a module whose weights are kept in a wider one."""


class OriginalModule:
    """A copy of the original module without weights. They are gathered from the shards of all ranks
    when it runs. All ranks call its methods together."""

    def __init__(
        self, model: Module, engine: RankEngine, shards: Callable[[], Sequence[Tensor]]
    ) -> None:
        """``shards``: returns the current shards of this rank."""
        self._engine, self._shards = engine, shards
        self._whole: tuple[object, dict[str, Tensor]] | None = None
        device = engine.world.device

        def own(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Parameter) or tensor.is_meta:
                return without_elements(tensor)
            return tensor.detach().to(device, copy=True)

        self.module: Module | None = None
        """The module with parameters on the meta device. None if it cannot be copied."""
        self._problem = ""
        try:
            self.module = twin(model, own)
        except InputError as error:
            self._problem = error.problem

    @torch.no_grad()
    def run(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        kept: Mapping[str, Tensor],
        *,
        training: bool,
        refuses: bool,
    ) -> Any:
        """Run the module and return its output. ``kept``: its tensors that are not trained.
        ``refuses``: whether a backward pass from the output raises an error. Raises InputError if
        the module cannot be copied, or has no values."""
        if self.module is None:
            raise InputError(self._engine.plan.model_name, self._problem)
        self._engine.check_filled()
        state = self._state(kept)
        self.module.train(training)
        output = functional_call(self.module, state, tuple(args), dict(kwargs))
        if not refuses:
            return output
        with torch.enable_grad():
            return trees.tree_map(_without_gradient, output)

    def forget(self) -> None:
        """Drop the whole weights."""
        self._whole = None

    def version(self) -> list[int]:
        """Numbers that change when this rank's weights change, as far as torch counts changes."""
        return [self._engine.changes, *(shard._version for shard in self._shards())]

    def _state(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors by name. They are gathered again if they have changed on any rank."""
        # Versions alone are not enough, because they do not count changes through ``.data``.
        now = self.version(), [_content(shard) for shard in self._shards()]
        is_current = self._whole is not None and self._whole[0] == now
        if self._engine.world.total(float(not is_current)):
            self._whole = now, whole_tensors(self._engine)
        assert self._whole is not None, "all ranks have gathered"
        device, moved = self._engine.world.device, dict[int, Tensor]()
        state = {**kept, **self._whole[1]}
        assert self.module is not None, "the caller has checked"
        own = tensors_of(self.module)
        for name, tensor in state.items():
            if id(tensor) not in moved:
                # Weights of a module in a narrow format are kept in float32.
                is_narrow = name in own and own[name].dtype in NARROW
                moved[id(tensor)] = tensor.to(device, own[name].dtype if is_narrow else None)
        return {name: moved[id(tensor)] for name, tensor in state.items()}


def _content(tensor: Tensor) -> tuple[float, ...]:
    """Numbers that change with the elements of a tensor: a hash, the sum, and the norm. (torch's
    hash is an exclusive or, to which two equal elements contribute nothing.)"""
    if not tensor.numel():
        return ()
    values = tensor.detach()
    sums = values.sum(dtype=torch.float64), torch.linalg.vector_norm(values, dtype=torch.float64)
    return torch.hash_tensor(values).item(), *(number.item() for number in sums)


class _RefuseBackward(Function):
    """The identity. Its backward pass raises an error."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        problem = "the loss of the plan alone has gradients, in training mode"
        advice = "expected a loss of other outputs as loss= of unity.optimize, or detach()"
        raise InputError("backward", f"{problem}, {advice}")


def _without_gradient(value: Any) -> Any:
    """The value, marked such that a backward pass from it raises an error. Otherwise a loss
    computed from it would silently have no gradients."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    return _RefuseBackward.apply(value, torch.ones((), requires_grad=True))
