"""Public models of images and sounds at tiny size, with their own losses; of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from support.public.language import BATCH, WORDS, Made, Maker, ids, made

t: Any = import_module("transformers")
CLASSES = 10


def classifier(config: Any, model: Any, **sizes: Any) -> Maker:
    """A model that classifies images."""

    def make(attention: str) -> Made:
        return made(
            model,
            config(**sizes, num_labels=CLASSES),
            attention,
            pixel_values=torch.randn(BATCH, 3, 32, 32),
            labels=torch.randint(0, CLASSES, (BATCH,)),
        )

    return make


class Paired(t.CLIPModel):
    """A model of pairs that is asked for its loss."""

    def forward(self, pixel_values: Any, input_ids: Any) -> Any:
        return super().forward(pixel_values=pixel_values, input_ids=input_ids, return_loss=True)


def clip(attention: str) -> Made:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text = t.CLIPTextConfig(
        **sizes, vocab_size=WORDS, max_position_embeddings=16, eos_token_id=WORDS - 1
    )
    vision = t.CLIPVisionConfig(**sizes, image_size=32, patch_size=8)
    config = t.CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16
    )
    config.text_config._attn_implementation = attention
    config.vision_config._attn_implementation = attention
    images = torch.randn(BATCH, 3, 32, 32)
    return made(Paired, config, attention, pixel_values=images, input_ids=ids())


def whisper(attention: str) -> Made:
    config = t.WhisperConfig(
        vocab_size=WORDS,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return made(
        t.WhisperForConditionalGeneration,
        config,
        attention,
        input_features=torch.randn(BATCH, 8, 32),
        labels=ids(),
    )


ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "bottleneck",
}

VISION: Mapping[str, Maker] = {
    "vit": classifier(t.ViTConfig, t.ViTForImageClassification, **ENCODER),
    "swin": classifier(
        t.SwinConfig,
        t.SwinForImageClassification,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": classifier(
        t.ConvNextConfig,
        t.ConvNextForImageClassification,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        num_stages=2,
        drop_path_rate=0.2,
    ),
    "resnet": classifier(t.ResNetConfig, t.ResNetForImageClassification, **RESNET),
    "mobilenet-v2": classifier(
        t.MobileNetV2Config, t.MobileNetV2ForImageClassification, depth_multiplier=0.25
    ),
    "clip": clip,
    "whisper": whisper,
}
