"""Experts as a dimension of their weights, and the layer that routes tokens to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module, Parameter, init
from torch.nn import functional as f

from pcg.errors import InputError
from pcg.mixtures.routed import routed
from unity.nn.routing import Router, Routing

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": f.silu,
    "gelu": f.gelu,
    "relu": f.relu,
}


class Experts(Module):
    """``experts`` feed-forward layers: up to ``hidden`` features, an activation, and down.

    ``gated``: the result of ``up`` is multiplied by the activation of a second layer, ``gate``, as
    in SwiGLU. ``activation``: silu, gelu or relu. Weights are [experts, in, out], biases
    [experts, 1, out]. Input and output are [experts, rows, width]. Initial weights are drawn as in
    ``torch.nn.Linear``. Raises InputError for another activation.
    """

    gate: Parameter | None

    def __init__(
        self,
        experts: int,
        width: int,
        hidden: int,
        *,
        gated: bool = True,
        activation: str = "silu",
        bias: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise InputError("Experts", f"activation is {activation!r}, expected one of {known}")
        self.experts, self.activation = experts, activation
        shapes = {"up": (width, hidden), "down": (hidden, width)}
        if gated:
            shapes["gate"] = width, hidden
        for name in ("gate", "up", "down"):
            shape = shapes.get(name)
            weight = None if shape is None else Parameter(torch.empty(experts, *shape))
            added = Parameter(torch.empty(experts, 1, shape[1])) if shape and bias else None
            self.register_parameter(name, weight)
            self.register_parameter(f"{name}_bias", added)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights and biases, uniform within +- 1 / sqrt(input features)."""
        for name in ("gate", "up", "down"):
            weight: Tensor | None = getattr(self, name)
            for drawn in (weight, getattr(self, f"{name}_bias")):
                if weight is not None and drawn is not None:
                    bound = weight.shape[1] ** -0.5
                    init.uniform_(drawn, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of each expert for its rows: [experts, rows, width]."""
        up, activate = self._linear("up", x), ACTIVATIONS[self.activation]
        inner = activate(up) if self.gate is None else activate(self._linear("gate", x)) * up
        return self._linear("down", inner)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        product = torch.bmm(x, getattr(self, name))
        bias: Tensor | None = getattr(self, f"{name}_bias")
        return product if bias is None else product + bias

    def extra_repr(self) -> str:
        return f"experts={self.experts}, activation={self.activation!r}"


class MixtureOfExperts(Module):
    """Sends each token to the experts that a router chooses, and adds up their weighted results.

    ``experts``: an ``Experts``, or any module from [experts, rows, width] to [experts, rows, out]
    that treats each expert and each row by itself. ``shared``: a module that takes all tokens, and
    whose result is added, as DeepSeek's shared experts.

    Without a ``capacity_factor``, no token is dropped. Each expert computes each token, which is
    exact, but takes experts / top_k times the arithmetic.

    With a ``capacity_factor``, tokens are routed within groups. An expert takes at most
    ``capacity_factor`` x tokens x top_k / experts tokens of a group, rounded up. First choices come
    before second choices, and earlier tokens before later ones. A choice that finds no place counts
    nothing. ``group``: the number of neighbouring tokens of a group. Default: a row of the batch.
    Data parallelism cuts between groups.

    ``forward`` takes [..., width]. It returns the same shape, and the ``Routing`` for the losses.
    Raises InputError for numbers that do not fit.
    """

    def __init__(
        self,
        router: Router,
        experts: Module,
        *,
        shared: Module | None = None,
        capacity_factor: float | None = None,
        group: int | None = None,
    ) -> None:
        super().__init__()
        count = getattr(experts, "experts", router.experts)
        if count != router.experts:
            problem = f"the router has {router.experts} experts, but experts has {count}"
            raise InputError("MixtureOfExperts", problem)
        if capacity_factor is not None and not 0.0 < capacity_factor < float("inf"):
            problem = f"capacity_factor is {capacity_factor}, expected a number above 0, or None"
            raise InputError("MixtureOfExperts", problem)
        if group is not None and group < 1:
            raise InputError("MixtureOfExperts", f"group is {group}, expected at least 1 token")
        self.router, self.experts, self.shared = router, experts, shared
        self.capacity_factor, self.group = capacity_factor, group

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """Return the result of the experts for ``x``, [..., width], and the routing."""
        routing = self.router(x)
        routed = self._routed(x, routing)
        return (routed if self.shared is None else routed + self.shared(x)), routing

    def _routed(self, x: Tensor, routing: Routing) -> Tensor:
        factor = self.capacity_factor
        group = 1 if factor is None else self._group(x)
        experts, run = self.router.experts, self.experts
        return routed(x, routing.chosen, routing.weights, experts, run, factor, group)

    def _group(self, x: Tensor) -> int:
        """The number of tokens of a group."""
        tokens = x.numel() // x.shape[-1]
        group = self.group if self.group is not None else (x.shape[-2] if x.dim() > 1 else 1)
        if not group or tokens % group:
            raise InputError(
                "MixtureOfExperts", f"{tokens} tokens, expected a multiple of the group of {group}"
            )
        return group

    def extra_repr(self) -> str:
        return f"capacity_factor={self.capacity_factor}, group={self.group}"
