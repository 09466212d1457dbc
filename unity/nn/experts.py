"""Experts as one dimension of their weights, and the layer that routes tokens to them."""

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
    """``experts`` layers of the same kind: up to ``hidden`` features, an activation, and down.

    ``gated``: the activation of a second layer up, ``gate``, multiplies what ``up`` gives, as in
    SwiGLU. ``activation``: silu, gelu or relu. Weights are [experts, in, out], biases
    [experts, 1, out]. Takes and returns [experts, rows, width]. Each weight is drawn as that of
    ``torch.nn.Linear`` is. Raises InputError for another activation.
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
        """Draw all weights and biases, uniform within one over the root of the features that come
        in."""
        for name in ("gate", "up", "down"):
            weight: Tensor | None = getattr(self, name)
            for drawn in (weight, getattr(self, f"{name}_bias")):
                if weight is not None and drawn is not None:
                    bound = weight.shape[1] ** -0.5
                    init.uniform_(drawn, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """What each expert makes of its rows: [experts, rows, width]."""
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
    """Sends each token to the experts that a router chooses, and adds up what they make of it.

    ``experts``: an ``Experts``, or any module from [experts, rows, width] to [experts, rows, out]
    that treats each expert and each row by itself. ``shared``: a module that takes all tokens, and
    whose result is added, as DeepSeek's shared experts.

    Without a ``capacity_factor`` no token is ever left out, and each expert computes each token:
    exact, but experts / top_k times the arithmetic. With one, tokens are routed within groups, and
    an expert takes at most ``capacity_factor`` x tokens x top_k / experts of a group, rounded up.
    First choices come before second ones, earlier tokens before later ones. A choice that finds no
    place counts nothing. ``group``: tokens of a group, side by side; by default a row of the batch.
    Data parallelism cuts between groups.

    ``forward`` takes [..., width], and returns the same shape and the ``Routing``, of which losses
    are made. Raises InputError for numbers that do not fit.
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
            problem = f"the router knows {router.experts} experts, and there are {count}"
            raise InputError("MixtureOfExperts", problem)
        if capacity_factor is not None and not 0.0 < capacity_factor < float("inf"):
            problem = f"capacity_factor is {capacity_factor}, expected a number above 0, or None"
            raise InputError("MixtureOfExperts", problem)
        if group is not None and group < 1:
            raise InputError("MixtureOfExperts", f"group is {group}, expected at least 1 token")
        self.router, self.experts, self.shared = router, experts, shared
        self.capacity_factor, self.group = capacity_factor, group

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """What the experts make of ``x``: [..., width], and how it was routed."""
        routing = self.router(x)
        routed = self._routed(x, routing)
        return (routed if self.shared is None else routed + self.shared(x)), routing

    def _routed(self, x: Tensor, routing: Routing) -> Tensor:
        factor = self.capacity_factor
        group = 1 if factor is None else self._group(x)
        experts, run = self.router.experts, self.experts
        return routed(x, routing.chosen, routing.weights, experts, run, factor, group)

    def _group(self, x: Tensor) -> int:
        """The tokens of a group."""
        tokens = x.numel() // x.shape[-1]
        group = self.group if self.group is not None else (x.shape[-2] if x.dim() > 1 else 1)
        if not group or tokens % group:
            raise InputError("MixtureOfExperts", f"{tokens} tokens are no groups of {group}")
        return group

    def extra_repr(self) -> str:
        return f"capacity_factor={self.capacity_factor}, group={self.group}"
