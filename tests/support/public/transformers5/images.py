"""Models of images and videos, and of images with texts, by name. Each has its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from support.public.further import HEADS
from support.public.language import BATCH, SHARED, SIZES
from support.public.transformers5.recipe import FEW, Recipe, images, words
from support.public.vision import CLASSES, ENCODER, RESNET
from torch import Tensor

PATCH, FRAMES, IMAGE_WORD, IGNORED = 16, 4, 3, -100
"""``IMAGE_WORD`` holds the place of a patch in a text. ``IGNORED``: a label that does not count."""
TOWER: Mapping[str, Any] = {**ENCODER, "patch_size": PATCH}
VIDEO: Mapping[str, Any] = {**ENCODER, "num_frames": FRAMES}
STAGES: Mapping[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "num_labels": CLASSES,
}


def shown(size: int = ENCODER["image_size"]) -> dict[str, Tensor]:
    """Images, each of a class."""
    return {"pixel_values": images(size), "labels": torch.randint(0, CLASSES, (BATCH,))}


def segmented() -> dict[str, Tensor]:
    """Images, each pixel of a class."""
    pixels = images(batch=FEW)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (FEW, *pixels.shape[2:]))}


def filmed() -> dict[str, Tensor]:
    """Videos, each of a class."""
    size = ENCODER["image_size"]
    frames = torch.randn(FEW, FRAMES, 3, size, size)
    return {"pixel_values": frames, "labels": torch.randint(0, 2, (FEW,))}


def captions() -> dict[str, Tensor]:
    """Images with their texts."""
    return {**words(), "pixel_values": images()}


def illustrated() -> dict[str, Tensor]:
    """Images with their texts, which begin with the places of the patches."""
    texts, patches = words(), (BATCH, (TOWER["image_size"] // PATCH) ** 2)
    places = {"input_ids": IMAGE_WORD, "labels": IGNORED}
    begun = {n: torch.cat([torch.full(patches, w), texts[n]], 1) for n, w in places.items()}
    return {**begun, "pixel_values": images()}


def typed() -> dict[str, Tensor]:
    """The same, with the type of each word: 1 for the words to predict."""
    given = illustrated()
    return {**given, "token_type_ids": torch.ones_like(given["input_ids"])}


IMAGES: Mapping[str, Recipe] = {
    "regnet-y": Recipe("RegNetForImageClassification", shown, {**STAGES, "groups_width": 4}),
    "resnet of basic blocks": Recipe(
        "ResNetForImageClassification",
        shown,
        {**RESNET, "layer_type": "basic", "num_labels": CLASSES},
    ),
    "convnext-v2": Recipe(
        "ConvNextV2ForImageClassification",
        shown,
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": CLASSES},
    ),
    "mobilevit": Recipe(
        "MobileViTForImageClassification",
        partial(shown, 64),
        {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
            "num_labels": CLASSES,
        },
    ),
    "dpt": Recipe(
        "DPTForSemanticSegmentation",
        segmented,
        {
            **ENCODER,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "num_labels": CLASSES,
        },
    ),
    "timesformer": Recipe("TimesformerForVideoClassification", filmed, VIDEO),
    "videomae": Recipe("VideoMAEForVideoClassification", filmed, VIDEO),
    "git": Recipe("GitForCausalLM", captions, {**SIZES, "vision_config": TOWER}),
    "llava": Recipe(
        "LlavaForConditionalGeneration",
        illustrated,
        {
            "text_config": {**SHARED, "model_type": "llama"},
            "vision_config": {**TOWER, "model_type": "clip_vision_model", "projection_dim": 32},
            "image_token_index": IMAGE_WORD,
            "vision_feature_select_strategy": "default",
            "vision_feature_layer": -1,
        },
    ),
    "paligemma": Recipe(
        "PaliGemmaForConditionalGeneration",
        typed,
        {
            "text_config": {**HEADS, "model_type": "gemma"},
            "vision_config": {**TOWER, "model_type": "siglip_vision_model", "projection_dim": 32},
            "projection_dim": 32,
            "image_token_index": IMAGE_WORD,
        },
    ),
}
