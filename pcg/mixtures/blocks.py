"""Mixture-of-experts blocks of public models, computed without their loops while being captured.

Problem: the blocks of ``transformers`` loop over the experts that tokens chose, or split their
input by the number of tokens of each expert. Torch can export neither. Method: during the capture,
known blocks get another ``forward`` that computes the same function. A block is known if its class
has a known name and its parts look as expected. The router stays that of the block. Each expert
computes every token, and counts 0 for tokens that did not choose it (``routed.routed``). Parameters
are stacked, so that the experts are a dimension. Exact up to the order of sums. Wherever a module
is compared with its graph, the result is compared with the block itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError
from pcg.lazy import torch
from pcg.mixtures.routed import mixed, routed
from pcg.mixtures.stacked import is_stacked, note_rows, stacked_experts

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@dataclass(frozen=True)
class Known:
    """A kind of block.

    ``matrices``: the names of the gate, up and down layers of its experts, if these are modules.
    ``has``: further attributes that a block has to have.
    """

    forward: Callable[..., Any]
    matrices: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    has: tuple[str, ...] = ()
    capacity_factor: float | None = None
    """If given, an expert takes only so many tokens of each row of the batch (``routed``)."""
    is_stacked: bool = False
    """Whether the block is experts with stacked matrices, of any model."""

    def of(self, block: Module) -> Callable[..., Any]:
        """Return a function that computes a block of this kind."""
        if self.is_stacked:
            return partial(self.forward, block, self.capacity_factor)
        return partial(self.forward, block, self) if self.matrices else partial(self.forward, block)

    @property
    def has_places(self) -> bool:
        """Whether the capacity of its experts can be limited."""
        return self.is_stacked or bool(self.matrices)


def equal_form(block: Module) -> Callable[..., Any] | None:
    """Return a function with the same value as a block's ``forward``, or None if the block is not
    known or has been changed."""
    known = known_kind(block)
    return None if known is None else known.of(block)


def known_kind(block: Module) -> Known | None:
    """Return the kind of a block, or None if it is not known or has been changed."""
    kind = type(block)
    if not _is_public(kind) or "forward" in vars(block):
        return None
    if is_stacked(block):
        return STACKED
    known = KNOWN.get(kind.__name__)
    if known is None:
        return None
    if not all(hasattr(block, name) for name in known.has):
        return None
    if known.matrices and not _are_alike(block.experts, known.matrices):
        return None
    return known


@contextmanager
def without_loops(module: Module) -> Generator[Mapping[str, int]]:
    """Let the known blocks of a module compute without a loop within this context. Yields their
    number by kind."""
    changed: list[Module] = []
    for part in list(module.modules()):
        if (form := equal_form(part)) is not None:
            part.forward = form
            changed.append(part)
    try:
        yield Counter(type(part).__name__ for part in changed)
    finally:
        for part in changed:
            vars(part).pop("forward", None)


def limit_capacity(model: Module, capacity_factor: float) -> int:
    """Limit the tokens that an expert of a public model takes, and return the number of its blocks.

    From now on, also where torch runs the model, an expert takes at most ``capacity_factor`` x
    tokens x top_k / experts tokens of each row of a batch. Parameters stay as they are. A choice
    without a place counts 0, as in ``unity.nn``. So the model computes another function than that
    of ``transformers``, with less arithmetic and memory. Raises InputError for an invalid number,
    and for a model without known blocks of experts.
    """
    if not 0.0 < capacity_factor < float("inf"):
        problem = f"capacity_factor is {capacity_factor}, expected a number above 0"
        raise InputError("limit_capacity", problem)
    known = [(part, kind) for part in model.modules() if (kind := known_kind(part)) is not None]
    limited = [(part, kind) for part, kind in known if kind.has_places]
    if not limited:
        problem = "has no blocks of experts that are known, expected a model of transformers"
        raise InputError(type(model).__name__, problem)
    for parent in list(model.modules()):
        if any(kind.is_stacked and part in parent.children() for part, kind in limited):
            parent.register_forward_pre_hook(note_rows, with_kwargs=True)
    for part, kind in limited:
        part.forward = replace(kind, capacity_factor=capacity_factor).of(part)
    return len(limited)


def told(blocks: tuple[str, int]) -> str:
    """Return a line about the blocks of a kind that were replaced."""
    kind, count = blocks
    how = "each expert takes all tokens, and counts 0 where it was not chosen"
    return f"{count} x {kind} without its loop: {how}"


def _are_alike(experts: Any, matrices: Sequence[str]) -> bool:
    """Whether experts are a list of unchanged public modules of one shape, with these linear
    layers."""
    if not isinstance(experts, torch.nn.ModuleList) or not len(experts):
        return False
    shapes: set[tuple[object, ...]] = set()
    for expert in experts:
        layers = [getattr(expert, name, None) for name in matrices]
        if len(dict(expert.named_parameters())) != sum(len(list(_tensors(x))) for x in layers):
            return False
        if any(type(layer) is not torch.nn.Linear for layer in layers):
            return False
        if not _is_public(type(expert)) or any(map(_is_changed, expert.modules())):
            return False
        kind = type(expert), type(getattr(expert, "act_fn", None))
        shapes.add((*kind, *((t.shape, t.dtype) for layer in layers for t in _tensors(layer))))
    return len(shapes) == 1


def _is_public(kind: type[Module]) -> bool:
    return kind.__module__.startswith("transformers.models.")


def _is_changed(part: Any) -> bool:
    """Whether a module computes something else than its class defines."""
    return "forward" in vars(part) or bool(part._forward_hooks or part._forward_pre_hooks)


def _tensors(layer: Any) -> list[Tensor]:
    return list(layer.parameters()) if isinstance(layer, torch.nn.Module) else []


def _gated(experts: Any, matrices: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """Return a function that applies all experts to rows [experts, rows, width]."""

    def linear(name: str, x: Tensor) -> Tensor:
        layers = [getattr(expert, name) for expert in experts]
        product = torch.bmm(x, torch.stack([own.weight for own in layers]).transpose(1, 2))
        if layers[0].bias is None:
            return product
        return product + torch.stack([own.bias for own in layers]).unsqueeze(1)

    def run(x: Tensor) -> Tensor:
        gate, up, down = matrices
        return linear(down, experts[0].act_fn(linear(gate, x)) * linear(up, x))

    return run


def _routed(block: Any, known: Known, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of the chosen experts' results for ``x``: [batch, tokens, width].

    ``chosen`` and ``weights`` are [batch x tokens, top_k]. The result has the format of ``x``.
    """
    run, factor = _gated(block.experts, known.matrices), known.capacity_factor
    made = routed(x, chosen, weights, len(block.experts), run, factor, group=x.shape[1])
    return made.to(x.dtype)


def _by_softmax(block: Any, known: Known, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """The forward of Mixtral, Qwen and OLMoE: the top k of a softmax, which some normalize."""
    x = hidden_states
    jitter = getattr(block, "jitter_noise", 0.0)
    if block.training and jitter > 0:
        x = x * torch.empty_like(x).uniform_(1.0 - jitter, 1.0 + jitter)
    rows = x.view(-1, x.shape[-1])
    logits = block.gate(rows)
    scores = torch.nn.functional.softmax(logits, dim=1, dtype=torch.float)
    weights, chosen = torch.topk(scores, block.top_k, dim=-1)
    if getattr(block, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    out = _routed(block, known, x, chosen, weights.to(x.dtype))
    if hasattr(block, "shared_expert"):
        out = out + torch.sigmoid(block.shared_expert_gate(x)) * block.shared_expert(x)
    return out, logits


def _by_gate(block: Any, known: Known, hidden_states: Tensor) -> Tensor:
    """The forward of DeepSeek: its own router, and shared experts that take all tokens."""
    x = hidden_states
    chosen, weights = block.gate(x)
    return _routed(block, known, x, chosen, weights) + block.shared_experts(x)


def _clamped(
    block: Any, hidden_states: Tensor, router_indices: Any = None, routing_weights: Any = None
) -> Tensor:
    """The experts of gpt-oss, whose weights are 0 for experts that a token did not choose."""
    del router_indices
    x = hidden_states.reshape(-1, block.hidden_size)

    def run(given: Tensor) -> Tensor:
        both = torch.bmm(given, block.gate_up_proj) + block.gate_up_proj_bias.unsqueeze(1)
        pairs = both.unflatten(-1, (-1, 2))
        gate = pairs[..., 0].clamp(max=block.limit)
        up = pairs[..., 1].clamp(min=-block.limit, max=block.limit)
        inner = (up + 1) * gate * torch.sigmoid(gate * block.alpha)
        return torch.bmm(inner, block.down_proj) + block.down_proj_bias.unsqueeze(1)

    return mixed(x, routing_weights, run).to(x.dtype).view(len(hidden_states), -1, x.shape[-1])


_MIXTRAL = ("w1", "w3", "w2")
_NORMALIZED = Known(_by_softmax, has=("gate", "top_k", "norm_topk_prob"))
_SHARED = Known(
    _by_softmax,
    has=("gate", "top_k", "norm_topk_prob", "shared_expert", "shared_expert_gate"),
)
_DEEPSEEK = Known(_by_gate, has=("gate", "shared_experts"))

STACKED = Known(stacked_experts, (), is_stacked=True)

KNOWN: Mapping[str, Known] = {
    "MixtralSparseMoeBlock": Known(_by_softmax, _MIXTRAL, ("gate", "top_k", "jitter_noise")),
    "MiniMaxSparseMoeBlock": Known(_by_softmax, _MIXTRAL, ("gate", "top_k", "jitter_noise")),
    "Qwen2MoeSparseMoeBlock": _SHARED,
    "Qwen3NextSparseMoeBlock": _SHARED,
    "Qwen3MoeSparseMoeBlock": _NORMALIZED,
    "Qwen3OmniMoeThinkerTextSparseMoeBlock": _NORMALIZED,
    "OlmoeSparseMoeBlock": _NORMALIZED,
    "FlexOlmoSparseMoeBlock": _NORMALIZED,
    "DeepseekV2MoE": _DEEPSEEK,
    "DeepseekV3MoE": _DEEPSEEK,
    "Glm4MoeMoE": _DEEPSEEK,
    "Glm4vMoeTextMoE": _DEEPSEEK,
    "Dots1MoE": _DEEPSEEK,
    "GptOssExperts": Known(
        _clamped, (), ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias", "limit")
    ),
}
"""Kinds of blocks by class name, for ``transformers`` 4.57. From 5.0 on all experts are stacked."""
