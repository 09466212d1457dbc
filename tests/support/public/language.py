"""Public models of language at tiny size, with their own losses, by name; of ``transformers``.

Each function takes the way to compute attention, ``sdpa`` or ``eager``, and returns a module and
its arguments by name. Dropout is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

t: Any = import_module("transformers")
Made = tuple[nn.Module, dict[str, Tensor]]
Maker = Callable[[str], Made]
WORDS, BATCH, LENGTH = 96, 4, 12

SIZES: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHARED = {**SIZES, "num_key_value_heads": 2}
"""Heads share keys and values."""


def ids() -> Tensor:
    return torch.randint(4, WORDS, (BATCH, LENGTH))


def made(model: Any, config: Any, attention: str, **given: Tensor) -> Made:
    if attention != "sdpa" or model._supports_sdpa:
        config._attn_implementation = attention
    config.use_cache = False
    return model(config).train(), given


def causal(config: Any, model: Any, **sizes: Any) -> Maker:
    """A model that predicts the next word of its input."""
    return lambda attention: made(
        model, config(**sizes), attention, input_ids=(words := ids()), labels=words
    )


MIXTURE = {**SHARED, "num_local_experts": 4}
DEEPSEEK = {
    **SIZES,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
EXPERTS = {
    **SHARED,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "output_router_logits": True,
}
"""Models with the loss that balances experts."""
GROUPS = {**DEEPSEEK, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
"""Experts in groups. A router first chooses some groups."""
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}

LANGUAGE: Mapping[str, Maker] = {
    "gpt2": causal(
        t.GPT2Config,
        t.GPT2LMHeadModel,
        vocab_size=WORDS,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
    ),
    "llama": causal(t.LlamaConfig, t.LlamaForCausalLM, **SHARED),
    "mistral": causal(t.MistralConfig, t.MistralForCausalLM, **SHARED, sliding_window=8),
    "qwen2": causal(t.Qwen2Config, t.Qwen2ForCausalLM, **SHARED),
    "qwen3": causal(t.Qwen3Config, t.Qwen3ForCausalLM, **SHARED, head_dim=8),
    "gemma2": causal(t.Gemma2Config, t.Gemma2ForCausalLM, **SHARED, head_dim=8),
    "mixtral": causal(t.MixtralConfig, t.MixtralForCausalLM, **MIXTURE),
    "deepseek-v2": causal(t.DeepseekV2Config, t.DeepseekV2ForCausalLM, **DEEPSEEK),
    "deepseek-v2 in groups": causal(
        t.DeepseekV2Config,
        t.DeepseekV2ForCausalLM,
        **GROUPS,
        topk_method="group_limited_greedy",
    ),
    "deepseek-v3": causal(
        t.DeepseekV3Config, t.DeepseekV3ForCausalLM, **GROUPS, num_key_value_heads=4
    ),
    "mixtral with noise": causal(
        t.MixtralConfig,
        t.MixtralForCausalLM,
        **MIXTURE,
        output_router_logits=True,
        router_jitter_noise=0.1,
    ),
    "qwen2-moe": causal(
        t.Qwen2MoeConfig, t.Qwen2MoeForCausalLM, **EXPERTS, shared_expert_intermediate_size=24
    ),
    "qwen3-moe": causal(t.Qwen3MoeConfig, t.Qwen3MoeForCausalLM, **EXPERTS, head_dim=8),
    "olmoe": causal(t.OlmoeConfig, t.OlmoeForCausalLM, **EXPERTS),
    "gpt-oss": causal(t.GptOssConfig, t.GptOssForCausalLM, **MIXTURE, head_dim=8),
    "glm4-moe": causal(
        t.Glm4MoeConfig, t.Glm4MoeForCausalLM, **EXPERTS, head_dim=8, n_routed_experts=4
    ),
    "bert": causal(t.BertConfig, t.BertForMaskedLM, **SIZES),
    "roberta": causal(t.RobertaConfig, t.RobertaForMaskedLM, **SIZES),
    "t5": causal(t.T5Config, t.T5ForConditionalGeneration, **T5),
    "bart": causal(t.BartConfig, t.BartForConditionalGeneration, **BART),
    "mamba": causal(
        t.MambaConfig,
        t.MambaForCausalLM,
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
    ),
}


def padded(name: str) -> Maker:
    """A model of texts of several lengths, padded on the left as for generation. The padding comes
    before all that its mask lets it attend to, so it has no key. Its words count in the loss all
    the same."""

    def make(attention: str) -> Made:
        module, given = LANGUAGE[name](attention)
        lengths = torch.linspace(LENGTH, 1, BATCH)[:, None]
        mask = torch.arange(LENGTH, 0, -1) <= lengths
        return module, {**given, "attention_mask": mask.long()}

    return make


PADDED: Mapping[str, Maker] = {name: padded(name) for name in ("gpt2", "llama")}


def ignoring(name: str) -> Maker:
    """A model with labels that do not count: those of some words, different ones in each text."""

    def make(attention: str) -> Made:
        module, given = LANGUAGE[name](attention)
        counted = torch.arange(LENGTH) > torch.arange(1, BATCH + 1)[:, None]
        return module, {**given, "labels": given["labels"].where(counted, -100)}

    return make


IGNORING: Mapping[str, Maker] = {name: ignoring(name) for name in ("gpt2", "llama", "bert")}
