"""The module itself, run on one rank with whole weights: what it returns beside the loss.

A plan is of a module in training mode, for one size of batch, and its graph ends in the loss. All
else, such as logits, or evaluation with dropout and batch norms, comes from the module. Weights are
gathered for it, and stay until they change; nothing of this costs a step of training.
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


class Itself:
    """A module whose weights are shards elsewhere. All ranks use it together."""

    def __init__(
        self, model: Module, engine: RankEngine, shards: Callable[[], Sequence[Tensor]]
    ) -> None:
        """``shards``: those of this rank, as they are now."""
        self._engine, self._shards = engine, shards
        self._whole: tuple[object, dict[str, Tensor]] | None = None
        device = engine.world.device

        def own(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Parameter) or tensor.is_meta:
                return without_elements(tensor)
            return tensor.detach().to(device, copy=True)

        self.module: Module | None = None
        """Without the elements of its parameters."""
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
        """What the module returns. ``kept``: its tensors that are not trained; ``refuses``: whether
        to refuse to go back from it. Raises InputError for a module that cannot be run so."""
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
        """Let go of whole weights."""
        self._whole = None

    def version(self) -> list[int]:
        """What changes with this rank's weights, as far as torch counts changes."""
        return [self._engine.changes, *(shard._version for shard in self._shards())]

    def _state(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors by name, gathered again if they have changed on some rank."""
        # Not their versions alone: what is changed as ``.data`` has none.
        now = self.version(), [_content(shard) for shard in self._shards()]
        is_known = self._whole is not None and self._whole[0] == now
        if self._engine.world.total(float(not is_known)):
            self._whole = now, whole_tensors(self._engine)
        assert self._whole is not None, "all ranks know"
        device, moved = self._engine.world.device, dict[int, Tensor]()
        state = {**kept, **self._whole[1]}
        for tensor in state.values():
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
        return {name: moved[id(tensor)] for name, tensor in state.items()}


def _content(tensor: Tensor) -> tuple[float, ...]:
    """Numbers that change with the elements. (The hash is that of an exclusive or, which alone
    would be the same for any even number of equal elements.)"""
    if not tensor.numel():
        return ()
    own = tensor.detach()
    sums = own.sum(dtype=torch.float64), torch.linalg.vector_norm(own, dtype=torch.float64)
    return torch.hash_tensor(own).item(), *(one.item() for one in sums)


class _Apart(Function):
    """A value from which nobody goes back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, one: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        problem = "the loss of the plan alone has gradients, in training mode"
        advice = "expected a loss of other outputs as loss= of unity.optimize, or detach()"
        raise InputError("backward", f"{problem}, {advice}")


def _without_gradient(value: Any) -> Any:
    """The same, but a loss that is made of it is refused, not taken for one without gradients."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    return _Apart.apply(value, torch.ones((), requires_grad=True))
