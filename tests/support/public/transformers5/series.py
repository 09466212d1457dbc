"""Models of sounds and of series of numbers, by name. Each has its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.public.language import BART, BATCH, WORDS, ids
from support.public.transformers5.recipe import FEW, Recipe
from support.public.vision import ENCODER
from torch import Tensor

MELS, SAMPLES, STEPS, NEXT = 8, 4000, 32, 8
"""The pitches and samples of a sound, and the steps of a series that are given and to predict."""
ATTENTION: Mapping[str, Any] = {
    name: size for name, size in ENCODER.items() if name not in ("image_size", "patch_size")
}


def spectrograms() -> dict[str, Tensor]:
    """Sounds by pitches, each of a class."""
    return {"input_values": torch.randn(FEW, 64, 16), "labels": torch.randint(0, 2, (FEW,))}


def spoken() -> dict[str, Tensor]:
    """Speech by pitches, with its words."""
    return {"input_features": torch.randn(BATCH, STEPS, MELS), "labels": ids()}


def recorded() -> dict[str, Tensor]:
    """Speech by samples, with its words."""
    return {"input_values": torch.randn(FEW, SAMPLES), "labels": ids()[:FEW]}


def measured() -> dict[str, Tensor]:
    """Series of two numbers, and the steps that follow."""
    return {
        "past_values": torch.randn(BATCH, STEPS, 2),
        "future_values": torch.randn(BATCH, NEXT, 2),
    }


SERIES: Mapping[str, Recipe] = {
    "audio spectrogram transformer": Recipe(
        "ASTForAudioClassification",
        spectrograms,
        {**ATTENTION, "max_length": 64, "num_mel_bins": 16},
    ),
    "patchtst": Recipe(
        "PatchTSTForPrediction",
        measured,
        {
            "num_input_channels": 2,
            "context_length": STEPS,
            "prediction_length": NEXT,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_attention_heads": 2,
            "ffn_dim": 32,
        },
    ),
    "speech2text": Recipe(
        "Speech2TextForConditionalGeneration",
        spoken,
        {
            **{name: size for name, size in BART.items() if name != "max_position_embeddings"},
            "input_feat_per_channel": MELS,
            "conv_channels": 16,
            # Leaving out layers at random is a choice that no graph can follow.
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
            "max_source_positions": 64,
            "max_target_positions": 64,
        },
    ),
    "moonshine": Recipe(
        "MoonshineForConditionalGeneration",
        recorded,
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "intermediate_size": 64,
            **{
                f"{part}_{count}": size
                for part in ("encoder", "decoder")
                for count, size in (("num_hidden_layers", 1), ("num_attention_heads", 4))
            },
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
    ),
}
