"""Experts with stacked matrices, as all mixtures of ``transformers`` have from version 5.0 on.

Problem: the experts sort tokens by expert, multiply runs of rows whose lengths depend on data,
and put the rows back. No graph has products of such lengths. Method: experts that follow the
library's interface (``use_experts_implementation``) state what they compute: matrices, biases,
the gate, and a norm at the end. During the capture another ``forward`` gives each token to each
expert, or to the places of experts (``pcg.mixtures.routed``). The router stays as it is. Exact,
up to the order of sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pcg.lazy import torch
from pcg.mixtures.routed import routed

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE = (
    *("num_experts", "has_gate", "has_bias", "has_post_expert_norm", "is_transposed"),
    *("is_concatenated", "_apply_gate", "down_proj"),
)
"""What experts of this interface have."""
ROW = "unity_tokens_of_a_row"
"""The attribute of limited experts that says how many tokens of a row of the batch come to them."""


def is_stacked(block: Any) -> bool:
    """Whether a module is experts of this interface, all of them on this process."""
    return (
        all(hasattr(block, name) for name in INTERFACE)
        and all(isinstance(part, torch.nn.Parameter) for part in _matrices(block))
        and all(part.dim() == 3 for part in _matrices(block))
        # Which the library's decorator sets: the class itself leaves the choice to it.
        and hasattr(type(block).forward, "__wrapped__")
        and not getattr(block, "_is_expert_parallel", False)
    )


def _matrices(block: Any) -> list[Any]:
    return [getattr(block, "gate_up_proj" if block.has_gate else "up_proj", None), block.down_proj]


def stacked_experts(
    block: Any, capacity_factor: float | None, hidden_states: Tensor, *given: Any, **named: Any
) -> Tensor:
    """What the chosen experts make of [..., width]. Given are, by these names or in this order, the
    indices of experts and their weights, [tokens, top_k] each."""
    first, second = _router_names(named)
    chosen = given[0] if given else named[first]
    weights = given[1] if len(given) > 1 else named[second]
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])

    def run(x: Tensor) -> Tensor:
        up = _linear(block, "gate_up_proj" if block.has_gate else "up_proj", x)
        inner = block._apply_gate(up) if block.has_gate else block.act_fn(up)
        out = _linear(block, "down_proj", inner)
        return block.post_expert_norm(out) if block.has_post_expert_norm else out

    group = getattr(block, ROW, len(rows))
    made = routed(rows, chosen, weights, block.num_experts, run, capacity_factor, group)
    return made.to(hidden_states.dtype).view(*hidden_states.shape[:-1], made.shape[-1])


def note_rows(parent: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Before a block runs: let the experts that are its parts know how many tokens a row of the
    batch has."""
    x = args[0] if args else next(iter(named.values()))
    for part in parent.children():
        if is_stacked(part):
            setattr(part, ROW, x.shape[-2])


def _router_names(named: dict[str, Any]) -> tuple[str, str]:
    """The names of what a router gives, in the two ways that the library has."""
    if "router_indices" in named or "routing_weights" in named:
        return "router_indices", "routing_weights"
    return "top_k_index", "top_k_weights"


def _linear(block: Any, name: str, x: Tensor) -> Tensor:
    """A product for each expert, of [experts, rows, width]."""
    matrices = getattr(block, name)
    product = torch.bmm(x, matrices if block.is_transposed else matrices.transpose(1, 2))
    return product + getattr(block, f"{name}_bias").unsqueeze(1) if block.has_bias else product
