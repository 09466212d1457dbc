"""One model for each of many families of ``timm``, small, with cross entropy, in training mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from support.public.images import CLASSES, Maker, images
from torch import nn

timm: Any = import_module("timm")
FEW: Mapping[str, Any] = {"depths": (1, 1, 1, 1)}
FLAT: Mapping[str, Any] = {"depth": 2}


def named(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, pretrained=False, num_classes=CLASSES, **sizes)


def small(name: str, size: int = 64, **sizes: Any) -> tuple[str, Maker]:
    return name, images(named(name, **sizes), size, 2 if size > 100 else 4)


TIMM: Mapping[str, Maker] = dict(
    (
        *(small(f"test_{name}") for name in ("byobnet", "convnext", "efficientnet", "resnet")),
        *(small(f"test_efficientnet_{norm}") for norm in ("evos", "gn", "ln")),
        *(small(f"test_{name}") for name in ("mambaout", "nfnet")),
        *(small(name, 160) for name in ("test_vit", "test_vit2", "test_vit3", "test_vit4")),
        small("beit_base_patch16_224", img_size=64, embed_dim=48, num_heads=3, **FLAT),
        small("cait_xxs24_224", img_size=64, **FLAT),
        small("convit_tiny", img_size=64, **FLAT),
        small("convnextv2_atto", **FEW),
        small("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(24, 48, 96, 192)),
        small("deit_tiny_distilled_patch16_224", img_size=64, **FLAT),
        small("edgenext_xx_small", **FEW),
        small("efficientvit_b0", depths=(1, 1, 1, 1)),
        small("eva02_tiny_patch14_224", 56, img_size=56, **FLAT),
        small("fasternet_t0", **FEW),
        small("fastvit_t8", layers=(1, 1, 1, 1)),
        small("ghostnet_050"),
        small("hiera_tiny_224", 224, stages=(1, 1, 1, 1), embed_dim=24),
        small("inception_next_atto", **FEW),
        small("lambda_resnet26t"),
        small("levit_128s", 224),
        small("mixer_s32_224", img_size=64),
        small("mobilenetv4_conv_small_035"),
        small("mobilevit_xxs"),
        small("pit_ti_224", 224, depth=(1, 1, 1)),
        small("pvt_v2_b0", **FEW),
        small("resnetv2_18", layers=(1, 1, 1, 1)),
        small("sequencer2d_s", 64, img_size=64, layers=(1, 1, 1, 1)),
        small("starnet_s050"),
        small("tnt_s_patch16_224", 64, img_size=64, **FLAT),
    )
)
"""The models, by the name in timm."""
