"""Variants of Llama, by name: its masks, inputs, positions, and ways to train it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.public.language import BATCH, LENGTH, SHARED
from support.public.transformers5.recipe import Recipe, words
from torch import Tensor, nn

RANK, SCALE = 4, 2.0
LLAMA = "LlamaForCausalLM"


class Adapted(nn.Module):
    """A linear layer that stays as it is, with a low-rank update that is trained (Hu et al., LoRA,
    2021)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x)) * SCALE


def adapt(module: Any) -> None:
    """Train low-rank updates of queries and values alone."""
    module.requires_grad_(requires_grad=False)
    for layer in module.model.layers:
        attention = layer.self_attn
        attention.q_proj, attention.v_proj = map(Adapted, (attention.q_proj, attention.v_proj))


def recompute(module: Any) -> None:
    """Compute each layer again in the backward pass."""
    module.gradient_checkpointing_enable()


def masked() -> dict[str, Tensor]:
    """Words with a mask for each pair of them."""
    return {**words(), "attention_mask": torch.ones(BATCH, 1, LENGTH, LENGTH).tril().bool()}


def embedded() -> dict[str, Tensor]:
    """Embeddings in the place of words."""
    return {
        "inputs_embeds": torch.randn(BATCH, LENGTH, SHARED["hidden_size"]),
        "labels": words()["labels"],
    }


def scaled(kind: str) -> Mapping[str, Any]:
    """The sizes with rotary positions of some kind, for texts of twice the length."""
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 10000.0}
    return {**SHARED, "rope_parameters": rope}


LLAMAS: Mapping[str, Recipe] = {
    "llama with 4-d masks": Recipe(LLAMA, masked, SHARED),
    "llama by embeddings": Recipe(LLAMA, embedded, SHARED),
    "llama with dynamic rope": Recipe(LLAMA, words, scaled("dynamic")),
    "llama with yarn": Recipe(LLAMA, words, scaled("yarn")),
    "llama with checkpoints": Recipe(LLAMA, words, SHARED, recompute),
    "llama with low-rank adapters": Recipe(LLAMA, words, SHARED, adapt),
}
