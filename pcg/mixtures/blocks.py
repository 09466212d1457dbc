"""Public models' mixtures of experts, computed without their loops, as long as they are captured.

Problem: the blocks of ``transformers`` loop over the experts that were hit, or cut their input by
how many tokens each has. Torch can export neither. Method: for blocks that are known by name and
look as expected, ``forward`` is another one of the same function meanwhile: the router's lines are
those of the block, and each expert computes each token, weighed by 0 where it was not chosen
(``routed.routed``). Parameters are read side by side, so that the experts are a dimension.
Exact, up to the order of sums. What a block computes is compared with the block itself wherever a
module is compared with its graph.
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
    """A kind of block. ``matrices``: what its experts call their linear layers, to the gate, up
    and down, if they are modules; ``has``: what else it needs."""

    forward: Callable[..., Any]
    matrices: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    has: tuple[str, ...] = ()
    capacity_factor: float | None = None
    """Where it is given, experts have only so many places for the tokens of a row of the batch."""
    is_stacked: bool = False
    """Whether the block is experts whose matrices are stacked, of any model."""

    def of(self, block: Module) -> Callable[..., Any]:
        """What a block of this kind computes."""
        if self.is_stacked:
            return partial(self.forward, block, self.capacity_factor)
        return partial(self.forward, block, self) if self.matrices else partial(self.forward, block)

    @property
    def has_places(self) -> bool:
        """Whether the capacity of its experts can be limited."""
        return self.is_stacked or bool(self.matrices)


def equal_form(block: Module) -> Callable[..., Any] | None:
    """A function of the same value as a block's ``forward``; None for a block that is not known, or
    that someone has changed."""
    known = known_kind(block)
    return None if known is None else known.of(block)


def known_kind(block: Module) -> Known | None:
    """What is known of a block; nothing of one that someone has changed."""
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
    """As long as it is entered, known blocks of a module compute what they do without a loop. How
    many these are, by kind."""
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
    """Let the experts of a public model's blocks take at most ``capacity_factor`` x tokens x top_k
    / experts tokens of each row of a batch, from now on, also where torch runs it. How many blocks
    these are. Parameters stay as they are. What finds no place counts nothing, as ``unity.nn``
    says; so the model is no longer that of ``transformers``, and it takes that much less arithmetic
    and memory. Raises InputError for a number that is none, and a model without such blocks."""
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
    """What happened to blocks of a kind, in a line."""
    kind, count = blocks
    how = "each expert takes all tokens, and counts 0 where it was not chosen"
    return f"{count} x {kind} without its loop: {how}"


def _are_alike(experts: Any, matrices: Sequence[str]) -> bool:
    """Whether experts are a list of public modules with these linear layers, and of one shape, of
    which nobody has changed what they compute."""
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
    """Whether a module computes something else than its class says."""
    return "forward" in vars(part) or bool(part._forward_hooks or part._forward_pre_hooks)


def _tensors(layer: Any) -> list[Tensor]:
    return list(layer.parameters()) if isinstance(layer, torch.nn.Module) else []


def _gated(experts: Any, matrices: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """What all experts make of [experts, rows, width]."""

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
    """What the chosen experts make of [batch, tokens, width], in the format of these. ``chosen``
    and ``weights``: [batch x tokens, top_k]."""
    run, factor = _gated(block.experts, known.matrices), known.capacity_factor
    made = routed(x, chosen, weights, len(block.experts), run, factor, group=x.shape[1])
    return made.to(x.dtype)


def _by_softmax(block: Any, known: Known, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Mixtral's, Qwen's and OLMoE's: the best of a softmax in float32, which some normalise."""
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
    """DeepSeek's: a router of its own, and experts that take all tokens."""
    x = hidden_states
    chosen, weights = block.gate(x)
    return _routed(block, known, x, chosen, weights) + block.shared_experts(x)


def _clamped(
    block: Any, hidden_states: Tensor, router_indices: Any = None, routing_weights: Any = None
) -> Tensor:
    """The experts of gpt-oss, which has weights for all experts, 0 where one was not chosen."""
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
"""By the name of the class, of ``transformers`` 4.57. From 5.0 on all experts are stacked."""
