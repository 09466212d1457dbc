"""Models of images and videos at tiny size, with cross entropy, in training mode, by name.

The models of ``torchvision`` are the classes that take sizes, made small. Those of ``timm`` are one
for each family. Batch norms, dropout and stochastic depth are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

m: Any = import_module("torchvision.models")
SAMPLES, CLASSES = 4, 10
Made = tuple[nn.Module, tuple[Tensor, ...]]
Maker = Callable[[], Made]


class Classified(nn.Module):
    """Cross entropy of all outputs of a model, auxiliary heads too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        output: Any = self.model(x)
        heads = output.values() if isinstance(output, dict) else output
        if isinstance(output, Tensor):
            return f.cross_entropy(output, labels)
        return torch.stack([f.cross_entropy(head, labels) for head in heads]).sum()


def images(model: Callable[[], nn.Module], size: int = 32, samples: int = SAMPLES) -> Maker:
    """A model that classifies images."""
    return lambda: (
        Classified(model().train()),
        (torch.randn(samples, 3, size, size), torch.randint(0, CLASSES, (samples,))),
    )


def places(model: Callable[[], nn.Module]) -> Maker:
    """A model that classifies each place of an image."""
    return lambda: (
        Classified(model().train()),
        (torch.randn(2, 3, 32, 32), torch.randint(0, CLASSES, (2, 32, 32))),
    )


def videos(model: Callable[[], nn.Module], frames: int = 4, size: int = 16) -> Maker:
    return lambda: (
        Classified(model().train()),
        (torch.randn(2, 3, frames, size, size), torch.randint(0, CLASSES, (2,))),
    )


def of(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    """A model by its name, without pretrained weights."""
    return lambda: getattr(m, name)(weights=None, num_classes=CLASSES, **sizes)


def made(module: str, cls: str, *args: Any, **sizes: Any) -> Callable[[], nn.Module]:
    """A model by its class. An argument that is a function is called with the Python module of the
    class."""
    home = import_module(f"torchvision.models.{module}")
    given = {key: value(home) if callable(value) else value for key, value in sizes.items()}
    listed = [value(home) if callable(value) else value for value in args]
    return lambda: getattr(home, cls)(*listed, **given, num_classes=CLASSES)


def resnet(block: str, **sizes: Any) -> Callable[[], nn.Module]:
    return made("resnet", "ResNet", lambda home: getattr(home, block), [1, 1, 1, 1], **sizes)


def residual(convolution: str, stem: str) -> Callable[[], nn.Module]:
    """A residual network for videos, by its kinds of convolution and stem."""
    return made(
        "video.resnet",
        "VideoResNet",
        lambda home: home.BasicBlock,
        lambda home: [getattr(home, convolution)] * 4,
        [1, 1, 1, 1],
        lambda home: getattr(home, stem),
    )


def narrow(name: str) -> nn.Module:
    """AlexNet or VGG with narrow last layers."""
    model: Any = of(name)()
    first = next(layer for layer in model.classifier if isinstance(layer, nn.Linear))
    model.classifier = nn.Sequential(
        nn.Dropout(), nn.Linear(first.in_features, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    return model


def efficientnet(home: Any) -> list[Any]:
    return [
        home.FusedMBConvConfig(1, 3, 1, 8, 8, 1),
        home.FusedMBConvConfig(4, 3, 2, 8, 16, 2),
        home.MBConvConfig(4, 5, 2, 16, 24, 2),
    ]


def segmented(head: str, home: str) -> nn.Module:
    """A head for places, and an auxiliary one, on a small ResNet with dilation."""
    parts: Any = import_module("torchvision.models._utils")
    where: Any = import_module(f"torchvision.models.segmentation.{home}")
    fcn: Any = import_module("torchvision.models.segmentation.fcn")
    dilated = [False, True, True]
    body = (
        resnet("BasicBlock")()
        if head == "LRASPP"
        else resnet("Bottleneck", width_per_group=8, replace_stride_with_dilation=dilated)()
    )
    if head == "LRASPP":
        layers = parts.IntermediateLayerGetter(body, {"layer2": "low", "layer4": "high"})
        return where.LRASPP(layers, 128, 512, CLASSES, 16)
    if head == "DeepLabV3":
        layers = parts.IntermediateLayerGetter(body, {"layer4": "out"})
        return where.DeepLabV3(layers, where.DeepLabHead(2048, CLASSES), None)
    layers = parts.IntermediateLayerGetter(body, {"layer4": "out", "layer3": "aux"})
    return fcn.FCN(layers, fcn.FCNHead(2048, CLASSES), fcn.FCNHead(1024, CLASSES))


def viewed(v2: bool) -> Callable[[], nn.Module]:
    """A transformer of videos at several scales, in both versions."""
    home: Any = import_module("torchvision.models.video.mvit")
    kernel, few, none = [3, 3, 3], [1, 2, 2], [1, 1, 1]
    blocks = [
        home.MSBlockConfig(1, 16, 32, kernel, [1, 4, 4], none, kernel),
        home.MSBlockConfig(2, 32, 32, kernel, few, few, kernel),
    ]
    ways = {"residual_pool": v2, "residual_with_cls_embed": not v2, "rel_pos_embed": v2}
    return lambda: home.MViT(
        *((32, 32), 4, blocks),
        **ways,
        proj_after_attn=v2,
        stochastic_depth_prob=0.2,
        num_classes=CLASSES,
    )


class Flow(nn.Module):
    """Optical flow from one image to the next, refined twice."""

    def __init__(self) -> None:
        super().__init__()
        self.model = m.optical_flow.raft_small(weights=None)

    def forward(self, first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
        flows = self.model(first, second, num_flow_updates=2)
        return torch.stack([(one - flow).abs().mean() for one in flows]).sum()


SWIN: Mapping[str, Any] = {
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "stochastic_depth_prob": 0.2,
}

TORCHVISION: Mapping[str, Maker] = {
    "resnet": images(resnet("BasicBlock")),
    "resnext": images(resnet("Bottleneck", groups=4, width_per_group=8)),
    "mobilenet-v2": images(of("mobilenet_v2", width_mult=0.125)),
    "mobilenet-v3": images(of("mobilenet_v3_small", width_mult=0.25)),
    "efficientnet": images(
        made("efficientnet", "EfficientNet", efficientnet, dropout=0.2, last_channel=32)
    ),
    "convnext": images(
        made(
            "convnext",
            "ConvNeXt",
            lambda home: [home.CNBlockConfig(8, 16, 2), home.CNBlockConfig(16, None, 2)],
            stochastic_depth_prob=0.2,
            layer_scale=1.0,
        )
    ),
    "densenet": images(made("densenet", "DenseNet", 4, (2, 2), num_init_features=8, drop_rate=0.1)),
    "regnet": images(
        made(
            "regnet",
            "RegNet",
            lambda home: home.BlockParams.from_init_params(3, 8, 8.0, 2.0, 4, 0.25),
        )
    ),
    "shufflenet": images(made("shufflenetv2", "ShuffleNetV2", [1, 1, 1], [8, 16, 24, 32, 40])),
    "squeezenet": images(of("squeezenet1_1"), 64),
    "googlenet": images(of("googlenet", init_weights=False), 64),
    "vgg": images(partial(narrow, "vgg11_bn")),
    "alexnet": images(partial(narrow, "alexnet"), 64),
    "mnasnet": images(made("mnasnet", "MNASNet", 0.25)),
    "vit": images(made("vision_transformer", "VisionTransformer", 32, 8, 2, 2, 16, 32, 0.1, 0.1)),
    "swin": images(
        made("swin_transformer", "SwinTransformer", [2, 2], **SWIN, window_size=[4, 4]), 16
    ),
    "swin-v2": images(
        made(
            "swin_transformer",
            "SwinTransformer",
            [2, 2],
            **SWIN,
            window_size=[4, 4],
            block=lambda home: home.SwinTransformerBlockV2,
            downsample_layer=lambda home: home.PatchMergingV2,
        ),
        16,
    ),
    "maxvit": images(
        made(
            "maxvit",
            "MaxVit",
            *((32, 32), 8, 4, [8, 16], [1, 1], 4, 0.2),
        )
    ),
    "fcn": places(partial(segmented, "FCN", "fcn")),
    "lr-aspp": places(partial(segmented, "LRASPP", "lraspp")),
    "r3d": videos(residual("Conv3DSimple", "BasicStem")),
    "r2plus1d": videos(residual("Conv2Plus1D", "R2Plus1dStem")),
    "swin3d": videos(
        made(
            "video.swin_transformer",
            "SwinTransformer3d",
            [2, 2, 2],
            **SWIN,
            window_size=[2, 4, 4],
        )
    ),
    "mvit": videos(viewed(v2=False), 4, 32),
    "mvit-v2": videos(viewed(v2=True), 4, 32),
    "mc3": videos(residual("Conv3DNoTemporal", "BasicStem")),
    "deeplab": places(partial(segmented, "DeepLabV3", "deeplabv3")),
    "raft": lambda: (
        Flow(),
        (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128), torch.randn(1, 2, 128, 128)),
    ),
}
