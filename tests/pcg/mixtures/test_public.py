"""All known blocks of ``transformers`` itself, with and without their loops."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pcg.mixtures.blocks import KNOWN, without_loops

pytest.importorskip("transformers")
pytestmark = pytest.mark.soak

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}
WHERE = {
    "MixtralSparseMoeBlock": ("mixtral", "MixtralConfig"),
    "MiniMaxSparseMoeBlock": ("minimax", "MiniMaxConfig"),
    "Qwen2MoeSparseMoeBlock": ("qwen2_moe", "Qwen2MoeConfig"),
    "Qwen3NextSparseMoeBlock": ("qwen3_next", "Qwen3NextConfig"),
    "Qwen3MoeSparseMoeBlock": ("qwen3_moe", "Qwen3MoeConfig"),
    "Qwen3OmniMoeThinkerTextSparseMoeBlock": ("qwen3_omni_moe", "Qwen3OmniMoeTextConfig"),
    "OlmoeSparseMoeBlock": ("olmoe", "OlmoeConfig"),
    "FlexOlmoSparseMoeBlock": ("flex_olmo", "FlexOlmoConfig"),
    "DeepseekV2MoE": ("deepseek_v2", "DeepseekV2Config"),
    "DeepseekV3MoE": ("deepseek_v3", "DeepseekV3Config"),
    "Glm4MoeMoE": ("glm4_moe", "Glm4MoeConfig"),
    "Glm4vMoeTextMoE": ("glm4v_moe", "Glm4vMoeTextConfig"),
    "Dots1MoE": ("dots1", "Dots1Config"),
}
"""The model of each kind, and its configuration. (gpt-oss is tried as a whole model.)"""


def gradients(function: Any, block: nn.Module, x: Tensor) -> list[Tensor]:
    made = function(x)
    parts: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
    loss = torch.stack([part.square().sum() for part in parts]).sum()
    of = [x, *block.parameters()]
    tensors = torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True)
    return [*parts, *tensors]


def test_all_known_blocks_are_tried():
    assert {*WHERE, "GptOssExperts"} == KNOWN.keys()


@pytest.mark.parametrize("kind", WHERE)
@pytest.mark.parametrize("normalizes", [True, False])
def test_known_block_of_transformers_equals_its_loop(kind: str, normalizes: bool):
    model, named = WHERE[kind]
    folder = f"transformers.models.{model}"
    config = getattr(import_module(f"{folder}.configuration_{model}"), named)
    torch.manual_seed(0)
    made = config(**SIZES, norm_topk_prob=normalizes)
    models = import_module(f"{folder}.modeling_{model}")
    # Version 5 spells some names differently.
    (name,) = [name for name in dir(models) if name.lower() == kind.lower()]
    block: nn.Module = getattr(models, name)(made)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 5, 16, requires_grad=True)
    expected = gradients(block, block, x)
    with without_loops(block) as changed:
        actual = gradients(block, block, x)
    assert sum(changed.values()) == 1
    for own, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())
