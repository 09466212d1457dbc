"""A small copy of a large model, to compare with its graph.

A module that is too large to run, or is on the meta device, is not compared itself. Modules of
``transformers`` are made from a configuration with the number and the width of layers. So a copy
with two layers, as narrow as needed, has the same code. Its weights are random. Other modules have
no configuration, and are not compared.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from runtime.train.eager import MOST_PARAMETERS

LAYERS, WORDS, LENGTH = 2, 1000, 16
"""The most layers, words of the vocabulary, and words of a text of a copy."""
WIDTHS = ("hidden_size", "intermediate_size", "head_dim")
FACTORS = (1, 2, 4, 8, 16, 32, 64)
DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")


def shrunk(model: Module) -> tuple[Module, str] | None:
    """Return a small copy in main memory, and a description of it; None if none can be made."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not isinstance(_number(config, DEPTHS[0]), int):
        return None
    for factor in FACTORS:
        small = _narrower(config, factor)
        try:
            with torch.device("meta"):
                made: Module = type(model)(small)
            if sum(parameter.numel() for parameter in made.parameters()) > MOST_PARAMETERS:
                continue
            with torch.random.fork_rng(devices=[]):
                made = type(model)(small)
        except Exception:  # a class may refuse a configuration in any way
            continue
        wide = f", 1/{factor} as wide" if factor > 1 else ""
        return made.train(model.training), f"a copy with {small.num_hidden_layers} layers{wide}"
    return None


def shorter(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut texts to a few words, if all inputs are texts."""
    if any(tensor.is_floating_point() or tensor.dim() > 2 for tensor in tensors.values()):
        return tensors
    return {name: t[:, :LENGTH] if t.dim() == 2 else t for name, t in tensors.items()}


def _narrower(config: Any, factor: int) -> Any:
    small = deepcopy(config)
    for name in DEPTHS:
        if isinstance(own := _number(config, name), int):
            setattr(small, name, min(own, LAYERS))
    for name in WIDTHS:
        if isinstance(own := _number(config, name), int):
            setattr(small, name, own // factor)
    words = _number(config, "vocab_size")
    if isinstance(words, int) and words > WORDS:
        small.vocab_size = WORDS
        padding = _number(config, "pad_token_id")
        small.pad_token_id = None if padding is None or padding >= WORDS else padding
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        small.layer_types = kinds[: small.num_hidden_layers]
    return small


def _number(config: Any, name: str) -> int | None:
    return getattr(config, name, None)
