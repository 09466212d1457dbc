"""The mixtures of experts of ``transformers`` 4.57 and 5, for tests without that package."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f


def public(model: str) -> Any:
    """Make a class look as if it came with a public model."""

    def move(cls: type) -> type:
        cls.__module__ = f"transformers.models.{model}.modeling_{model}"
        return cls

    return move


@public("mixtral")
class Expert(nn.Module):
    def __init__(self, width: int, hidden: int, names: tuple[str, str, str], bias: bool) -> None:
        super().__init__()
        self.names, self.act_fn = names, nn.SiLU()
        shapes = (width, hidden), (width, hidden), (hidden, width)
        for name, sizes in zip(names, shapes, strict=True):
            self.add_module(name, nn.Linear(*sizes, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.act_fn(gate(x)) * up(x))


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def experts(count: int, *sizes: int, names: Any = PROJECTIONS, bias: bool = False) -> nn.ModuleList:
    width, hidden = sizes
    return nn.ModuleList([Expert(width, hidden, names, bias) for _ in range(count)])


class _BySoftmax(nn.Module):
    """The loop of Mixtral, Qwen and OLMoE."""

    norm_topk_prob = True
    jitter_noise = 0.0
    experts: Any

    def __init__(self, width: int, count: int, top_k: int) -> None:
        super().__init__()
        self.num_experts, self.top_k = count, top_k
        self.gate = nn.Linear(width, count, bias=False)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = hidden_states.shape
        hidden_states = hidden_states.view(-1, width)
        router_logits = self.gate(hidden_states)
        routing_weights = f.softmax(router_logits, dim=1, dtype=torch.float)
        routing_weights, selected = torch.topk(routing_weights, self.top_k, dim=-1)
        if self.norm_topk_prob:
            routing_weights /= routing_weights.sum(dim=-1, keepdim=True)
        routing_weights = routing_weights.to(hidden_states.dtype)
        out = torch.zeros_like(hidden_states)
        expert_mask = f.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            layer: Any = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx].squeeze(0))
            current = hidden_states[None, top_x].reshape(-1, width)
            out.index_add_(0, top_x, layer(current) * routing_weights[top_x, idx, None])
        return self.with_shared(out, hidden_states).reshape(batch, length, width), router_logits

    def with_shared(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        return out


@public("mixtral")
class MixtralSparseMoeBlock(_BySoftmax):
    def __init__(self, width: int, hidden: int, count: int, top_k: int, bias: bool = False) -> None:
        super().__init__(width, count, top_k)
        self.experts = experts(count, width, hidden, names=("w1", "w3", "w2"), bias=bias)


@public("qwen2_moe")
class Qwen2MoeSparseMoeBlock(_BySoftmax):
    norm_topk_prob = False

    def __init__(self, width: int, hidden: int, count: int, top_k: int, bias: bool = False) -> None:
        super().__init__(width, count, top_k)
        self.experts = experts(count, width, hidden, bias=bias)
        self.shared_expert = Expert(width, hidden + 1, PROJECTIONS, bias)
        self.shared_expert_gate = nn.Linear(width, 1, bias=False)

    def with_shared(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        share = torch.sigmoid(self.shared_expert_gate(hidden_states))
        return out + share * self.shared_expert(hidden_states)


class Gate(nn.Module):
    """The choice of experts of DeepSeek-V3, without groups."""

    e_score_correction_bias: Tensor

    def __init__(self, width: int, count: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.randn(count, width))
        self.register_buffer("e_score_correction_bias", torch.linspace(-0.1, 0.1, count))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        scores = f.linear(hidden_states.flatten(0, -2), self.weight).sigmoid()
        with torch.no_grad():
            corrected = scores + self.e_score_correction_bias
            chosen = torch.topk(corrected, self.top_k, dim=-1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        weights /= weights.sum(dim=-1, keepdim=True) + 1e-20
        return chosen, weights * 2.5


@public("deepseek_v3")
class DeepseekV3MoE(nn.Module):
    def __init__(self, width: int, hidden: int, count: int, top_k: int, bias: bool = False) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=width)
        self.experts = experts(count, width, hidden, bias=bias)
        self.gate = Gate(width, count, top_k)
        self.shared_experts = Expert(width, 2 * hidden, PROJECTIONS, bias)

    def moe(self, hidden_states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden_states, dtype=weights.dtype)
        expert_mask = f.one_hot(indices, num_classes=len(self.experts)).permute(2, 0, 1)
        for number, expert in enumerate(self.experts):
            tokens, places = torch.where(expert_mask[number])
            if tokens.numel() > 0:
                made = expert(hidden_states[tokens]) * weights[tokens, places].unsqueeze(-1)
                out.index_add_(0, tokens, made)
        return out.type(hidden_states.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape = hidden_states.shape
        indices, weights = self.gate(hidden_states)
        rows = hidden_states.view(-1, shape[-1])
        return self.moe(rows, indices, weights).view(*shape) + self.shared_experts(hidden_states)


@public("gpt_oss")
class GptOssExperts(nn.Module):
    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.hidden_size, self.alpha, self.limit = width, 1.702, 0.5
        self.gate_up_proj = nn.Parameter(torch.randn(count, width, 2 * hidden))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(count, 2 * hidden))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, width))
        self.down_proj_bias = nn.Parameter(torch.randn(count, width))

    def forward(
        self, hidden_states: Tensor, router_indices: Any = None, routing_weights: Any = None
    ) -> Tensor:
        batch = hidden_states.shape[0]
        x = hidden_states.reshape(-1, self.hidden_size)
        out = torch.zeros_like(x)
        count = routing_weights.shape[1]
        expert_mask = f.one_hot(router_indices, num_classes=count + 1).permute(2, 1, 0)
        for hit in torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero():
            number = hit[0]
            _, tokens = torch.where(expert_mask[number])
            both = x[tokens] @ self.gate_up_proj[number] + self.gate_up_proj_bias[number]
            gate, up = both[..., ::2], both[..., 1::2]
            gate = gate.clamp(min=None, max=self.limit)
            up = up.clamp(min=-self.limit, max=self.limit)
            glu = gate * torch.sigmoid(gate * self.alpha)
            made = ((up + 1) * glu) @ self.down_proj[number] + self.down_proj_bias[number]
            out.index_add_(0, tokens, made * routing_weights[tokens, number, None])
        return out.view(batch, -1, self.hidden_size)


class GptOss(nn.Module):
    """The router of GPT-OSS, and the loss of the outputs of its experts."""

    def __init__(self, width: int, hidden: int, count: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router, self.experts = nn.Linear(width, count), GptOssExperts(width, hidden, count)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x.flatten(0, -2))
        top, chosen = torch.topk(logits, self.top_k, dim=-1)
        share = torch.zeros_like(logits).scatter_(1, chosen, top.softmax(1))
        return self.experts(x, router_indices=chosen, routing_weights=share)


def dispatched(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Like the decorator of the library, which may call another function than the loop."""

    @wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        return forward(self, *args, **kwargs)

    return run


@public("mixtral")
class MixtralExperts(nn.Module):
    """The stacked experts of Mixtral, with or without gates and biases."""

    has_post_expert_norm, is_concatenated = False, True

    def __init__(
        self, width: int, hidden: int, count: int, gated: bool, bias: bool, transposed: bool
    ) -> None:
        super().__init__()
        self.num_experts, self.act_fn = count, nn.SiLU()
        self.has_gate, self.has_bias, self.is_transposed = gated, bias, transposed
        up = "gate_up_proj" if gated else "up_proj"
        for name, given, made in ((up, width, hidden * (1 + gated)), ("down_proj", hidden, width)):
            shape = (given, made) if transposed else (made, given)
            self.register_parameter(name, nn.Parameter(torch.randn(count, *shape)))
            if bias:
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(count, made)))

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def product(self, name: str, x: Tensor, number: int) -> Tensor:
        matrix = getattr(self, name)[number]
        made = x @ (matrix if self.is_transposed else matrix.T)
        return made + getattr(self, f"{name}_bias")[number] if self.has_bias else made

    @dispatched
    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            tokens, places = torch.where(top_k_index == number)
            if self.has_gate:
                both = self.product("gate_up_proj", hidden_states[tokens], number)
                inner = self._apply_gate(both)
            else:
                inner = self.act_fn(self.product("up_proj", hidden_states[tokens], number))
            made = self.product("down_proj", inner, number)
            out = out.index_add(0, tokens, made * top_k_weights[tokens, places, None])
        return out


class Stacked(nn.Module):
    """A block of stacked experts."""

    def __init__(self, width: int, hidden: int, count: int, top_k: int, **kinds: bool) -> None:
        super().__init__()
        kinds = {"gated": True, "bias": False, "transposed": False} | kinds
        self.top_k, self.gate = top_k, nn.Linear(width, count, bias=False)
        self.experts = MixtralExperts(width, hidden, count, **kinds)

    def forward(self, hidden_states: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        weights, chosen = self.gate(rows).softmax(-1).topk(self.top_k)
        return self.experts(rows, chosen, weights).view(hidden_states.shape)


class WithLoss(nn.Module):
    """The loss of the outputs of a block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        made = self.block(x)
        parts = made if isinstance(made, tuple) else (made,)
        return torch.stack([part.square().sum() for part in parts]).sum()
