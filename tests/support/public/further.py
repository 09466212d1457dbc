"""Further public models of ``transformers`` at tiny size, with their own losses, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from support.public.language import (
    BART,
    BATCH,
    SHARED,
    SIZES,
    T5,
    WORDS,
    Made,
    Maker,
    causal,
    ids,
    made,
)
from support.public.vision import CLASSES, ENCODER, classifier

t: Any = import_module("transformers")
GPT: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
HEADS: Mapping[str, Any] = {**SHARED, "head_dim": 8}
PADDED: Mapping[str, Any] = {**SHARED, "pad_token_id": 0}
PADDED_TWICE: Mapping[str, Any] = {
    **SIZES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
GROUPED: Mapping[str, Any] = {
    f"{name}_groups": 2 for name in ("q", "k", "v", "post_attention", "intermediate", "output")
}
LED: Mapping[str, Any] = {
    **{name: size for name, size in BART.items() if name != "max_position_embeddings"},
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    "attention_window": 4,
}
NO_HEADS: Mapping[str, Any] = {
    name: size for name, size in SIZES.items() if name != "num_attention_heads"
}
FEW: Mapping[str, Any] = {"vocab_size": WORDS, "hidden_size": 32}
LAYERS: Mapping[str, Any] = {**FEW, "num_hidden_layers": 2}
MAMBA: Mapping[str, Any] = {
    "mamba_d_state": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_chunk_size": 4,
}
BEGINS: Mapping[str, Any] = {"pad_token_id": 0, "decoder_start_token_id": 0}
POSITIONS: Mapping[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
SOUND: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (8, 8, 8),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    # Leaving out layers at random is a choice that no graph can follow.
    "layerdrop": 0.0,
}
SEGMENTS: Mapping[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [4, 2],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
    "image_size": 32,
}


def text(family: str, task: str = "ForCausalLM", /, **sizes: Any) -> Maker:
    """A model of a family that predicts words."""
    return causal(getattr(t, f"{family}Config"), getattr(t, family + task), **sizes)


def masked(family: str, /, **sizes: Any) -> Maker:
    return text(family, "ForMaskedLM", **sizes)


def translated(family: str, /, **sizes: Any) -> Maker:
    return text(family, "ForConditionalGeneration", **sizes)


def shown(family: str, /, **sizes: Any) -> Maker:
    model = getattr(t, f"{family}ForImageClassification")
    return classifier(getattr(t, f"{family}Config"), model, **sizes)


def sound_classifier(family: str) -> Maker:
    """A model that classifies sounds."""

    def make(attention: str) -> Made:
        config = getattr(t, f"{family}Config")(**SOUND, num_labels=CLASSES)
        return made(
            getattr(t, f"{family}ForSequenceClassification"),
            config,
            attention,
            input_values=torch.randn(2, 640),
            labels=torch.randint(0, CLASSES, (2,)),
        )

    return make


def text_classifier(attention: str) -> Made:
    """A model that classifies texts."""
    config = t.BertConfig(**SIZES, num_labels=3)
    labels = torch.randint(0, 3, (BATCH,))
    return made(t.BertForSequenceClassification, config, attention, input_ids=ids(), labels=labels)


def segmented(attention: str) -> Made:
    """A model that classifies each place of an image."""
    return made(
        t.SegformerForSemanticSegmentation,
        t.SegformerConfig(**SEGMENTS, num_labels=CLASSES),
        attention,
        pixel_values=torch.randn(2, 3, 32, 32),
        labels=torch.randint(0, CLASSES, (2, 32, 32)),
    )


class Paired(t.SiglipModel):
    """A model of pairs that is asked for its loss."""

    def forward(self, pixel_values: Any, input_ids: Any) -> Any:
        return super().forward(pixel_values=pixel_values, input_ids=input_ids, return_loss=True)


def siglip(attention: str) -> Made:
    sizes: dict[str, Any] = {name: ENCODER[name] for name in ENCODER if not name.endswith("size")}
    sizes = {**sizes, "hidden_size": 32, "intermediate_size": 64}
    config = t.SiglipConfig(
        text_config={**sizes, "vocab_size": WORDS, "max_position_embeddings": 16},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
    )
    config.text_config._attn_implementation = attention
    config.vision_config._attn_implementation = attention
    images = torch.randn(BATCH, 3, 32, 32)
    return made(Paired, config, attention, pixel_values=images, input_ids=ids())


FURTHER: Mapping[str, Maker] = {
    "fnet": masked("FNet", **NO_HEADS),
    "distilbert": masked(
        "DistilBert",
        vocab_size=WORDS,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
    ),
    "albert": masked("Albert", **SIZES, embedding_size=16),
    "electra": masked("Electra", **SIZES, embedding_size=16),
    "deberta": masked("Deberta", **SIZES, **POSITIONS),
    "deberta-v2": masked("DebertaV2", **SIZES, **POSITIONS, position_buckets=8, share_att_key=True),
    "longformer": masked("Longformer", **SIZES, attention_window=4),
    "bigbird": masked("BigBird", **SIZES, attention_type="original_full"),
    "xlnet": text(
        "XLNet", "LMHeadModel", vocab_size=WORDS, d_model=32, n_layer=2, n_head=4, d_inner=64
    ),
    "gpt-neox": text("GPTNeoX", **SIZES),
    "gpt-neo": text(
        "GPTNeo",
        **{**FEW, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64},
        attention_types=[[["global", "local"], 1]],
        window_size=8,
    ),
    "gptj": text("GPTJ", **GPT, rotary_dim=4),
    "opt": text("OPT", **LAYERS, ffn_dim=64, num_attention_heads=4, word_embed_proj_dim=32),
    "bloom": text("Bloom", **FEW, n_layer=2, n_head=4),
    "falcon": text("Falcon", **LAYERS, num_attention_heads=4),
    "phi": text("Phi", **SIZES),
    "phi3": text("Phi3", **PADDED),
    "gemma": text("Gemma", **HEADS),
    "gemma3": causal(
        t.Gemma3TextConfig,
        t.Gemma3ForCausalLM,
        **HEADS,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "stablelm": text("StableLm", **SHARED),
    "cohere": text("Cohere", **PADDED),
    "olmo2": text("Olmo2", **PADDED),
    "granite": text("Granite", **SHARED),
    "mamba2": text(
        "Mamba2", **LAYERS, state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=4
    ),
    "falcon-mamba": text("FalconMamba", **LAYERS, state_size=4),
    "bamba": text("Bamba", **PADDED, **MAMBA, mamba_n_groups=1, attn_layer_indices=[1]),
    "rwkv": text(
        "Rwkv", **LAYERS, attention_hidden_size=32, intermediate_size=64, context_length=64
    ),
    "olmo": text("Olmo", **PADDED),
    "starcoder2": text("Starcoder2", **SHARED),
    "codegen": text("CodeGen", **GPT, rotary_dim=4),
    "gpt-bigcode": text("GPTBigCode", **GPT),
    "mpt": text("Mpt", vocab_size=WORDS, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "nemotron": text("Nemotron", **SHARED),
    "smollm3": text("SmolLM3", **PADDED),
    "lfm2": text("Lfm2", **PADDED, layer_types=["conv", "full_attention"]),
    "xlm-roberta": masked("XLMRoberta", **SIZES),
    "modernbert": masked("ModernBert", **PADDED_TWICE),
    "mpnet": masked("MPNet", **SIZES),
    "squeezebert": masked("SqueezeBert", **SIZES, embedding_size=32, **GROUPED),
    "led": translated("LED", **LED),
    "bigbird-pegasus": translated("BigBirdPegasus", **BART, attention_type="original_full"),
    "m2m-100": translated("M2M100", **BART, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    "pegasus": translated("Pegasus", **BART, **BEGINS),
    "mbart": translated("MBart", **BART),
    "marian": text("Marian", "MTModel", **BART, **BEGINS, decoder_vocab_size=WORDS),
    "mt5": translated("MT5", **T5),
    "bert for classes": text_classifier,
    "wav2vec2": sound_classifier("Wav2Vec2"),
    "hubert": sound_classifier("Hubert"),
    "deit": shown("DeiT", **ENCODER),
    "beit": shown("Beit", **ENCODER),
    "dinov2": shown("Dinov2", **{n: s for n, s in ENCODER.items() if n != "intermediate_size"}),
    "swin-v2": shown(
        "Swinv2",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        window_size=4,
        depths=[1, 2],
        num_heads=[2, 4],
    ),
    "poolformer": shown("PoolFormer", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    "vit-msn": shown("ViTMSN", **ENCODER),
    "dinov2 with registers": shown(
        "Dinov2WithRegisters", **{n: s for n, s in ENCODER.items() if n != "intermediate_size"}
    ),
    "wavlm": sound_classifier("WavLM"),
    "segformer": segmented,
    "siglip": siglip,
}
