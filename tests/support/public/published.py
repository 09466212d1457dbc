"""Public models at their published sizes, without weights, with batches as people train them.

Sizes are those of the configurations that the authors published. A comment states the batch of a
device. A package is loaded when one of its models is made, so any package may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from support.public.calls import PublicModel
from support.public.large import DLRM, Classified, GraphNetwork, Language, UNet
from torch import Tensor

Sizes = Mapping[str, Any]
"""Arguments of a configuration."""


def words(samples: int, length: int) -> Tensor:
    return torch.zeros(samples, length, dtype=torch.long)


def of_transformers(name: str, sizes: Sizes, given: Callable[[], Any], head: str) -> PublicModel:
    """A model of ``transformers`` by the name of its configuration, with its own loss."""
    home: Any = import_module("transformers")
    config = getattr(home, f"{name}Config")(**sizes)
    config.use_cache = False
    return PublicModel(getattr(home, f"{name}{head}")(config), given())


def text(name: str, samples: int, length: int, head: str = "ForCausalLM", **sizes: Any) -> Any:
    """A model of words with ``samples`` texts of ``length`` words on each device."""

    def given() -> Any:
        return {"input_ids": (ids := words(samples, length)), "labels": ids}

    return lambda: of_transformers(name, sizes, given, head)


def pairs(name: str, samples: int, lengths: tuple[int, int], **sizes: Any) -> Any:
    """A model that reads texts of one length and writes texts of another."""

    def given() -> Any:
        read, written = lengths
        return {"input_ids": words(samples, read), "labels": words(samples, written)}

    return lambda: of_transformers(name, sizes, given, "ForConditionalGeneration")


def image(name: str, samples: int, **sizes: Any) -> Any:
    """A model that classifies images of 224 x 224 into 1,000 classes."""

    def given() -> Any:
        labels = torch.zeros(samples, dtype=torch.long)
        return {"pixel_values": torch.zeros(samples, 3, 224, 224), "labels": labels}

    numbered = {**sizes, "num_labels": 1000}
    return lambda: of_transformers(name, numbered, given, "ForImageClassification")


def clip() -> PublicModel:
    """CLIP's ViT-L/14: 64 pairs of an image and a text."""
    home: Any = import_module("transformers")
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    vision = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 14,
    }
    config = home.CLIPConfig(text_config=text, vision_config=vision, projection_dim=768)

    class Paired(home.CLIPModel):
        def forward(self, pixel_values: Any, input_ids: Any) -> Any:
            return super().forward(pixel_values=pixel_values, input_ids=input_ids, return_loss=True)

    given = {"pixel_values": torch.zeros(64, 3, 224, 224), "input_ids": words(64, 77)}
    return PublicModel(Paired(config), given)


def whisper() -> PublicModel:
    """Whisper large v3: 8 sounds of 30 seconds, and 448 words of each."""
    home: Any = import_module("transformers")
    layers = {f"{part}_layers": 32 for part in ("encoder", "decoder")}
    layers |= {f"{part}_attention_heads": 20 for part in ("encoder", "decoder")}
    layers |= {f"{part}_ffn_dim": 5120 for part in ("encoder", "decoder")}
    config = home.WhisperConfig(d_model=1280, num_mel_bins=128, vocab_size=51866, **layers)
    config.use_cache = False
    given = {"input_features": torch.zeros(8, 128, 3000), "labels": words(8, 448)}
    return PublicModel(home.WhisperForConditionalGeneration(config), given)


def of_torchvision(name: str, samples: int, size: int) -> PublicModel:
    """A model by its name in ``torchvision``, with cross entropy."""
    home: Any = import_module("torchvision.models")
    labels = torch.zeros(samples, dtype=torch.long)
    model = Classified(getattr(home, name)(weights=None).train())
    return PublicModel(model, (torch.zeros(samples, 3, size, size), labels))


def u_net() -> PublicModel:
    """The U-Net of Stable Diffusion 1.5: 8 images of 512 x 512, each with 77 words."""
    times = torch.zeros(8, dtype=torch.long)
    return PublicModel(UNet(), (torch.zeros(8, 4, 64, 64), times, torch.zeros(8, 77, 768)))


def lstm() -> PublicModel:
    """The large model of Zaremba et al. (2014): 20 texts of 35 words."""
    return PublicModel(Language(10_000, 1500), (words(20, 36),))


def graph_network() -> PublicModel:
    """A graph network for ogbn-arxiv, with 1 node and 29 edges more, so that 32 divides both. The
    batch is the whole graph."""
    nodes, edges = 169_344, 1_166_272
    given = (torch.zeros(nodes, 128), words(2, edges), torch.zeros(nodes, dtype=torch.long))
    return PublicModel(GraphNetwork((128, 256, 256), 40), given, nodes)


def recommender() -> PublicModel:
    """The recommender of MLPerf, for the clicks of Criteo: 8,192 samples."""
    return PublicModel(DLRM(), (torch.zeros(8192, 13), words(8192, 26), torch.zeros(8192)))


GPT: Mapping[str, Sizes] = {
    "gpt2": {},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}
GROUPED: Sizes = {"num_key_value_heads": 8, "max_position_embeddings": 8192}
LARGE: Sizes = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
LITE: Sizes = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 102_400,
}
"""The configuration of DeepSeek-V2-Lite."""
QWEN2: Sizes = {
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
}
QWEN3: Sizes = {
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
GEMMA2: Sizes = {
    "hidden_size": 3584,
    "intermediate_size": 14_336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
LLAMA3: Sizes = {"intermediate_size": 14_336, "vocab_size": 128_256, "rope_theta": 5e5, **GROUPED}
T5: Sizes = {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
SWIN: Sizes = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}
ROBERTA: Sizes = {**LARGE, "vocab_size": 50_265, "max_position_embeddings": 514}

PUBLISHED: Mapping[str, Mapping[str, Callable[[], PublicModel]]] = {
    "transformers": {
        **{
            name: text("GPT2", 4 if name == "gpt2-xl" else 8, 1024, "LMHeadModel", **own)
            for name, own in GPT.items()
        },
        "llama-3-8b": text("Llama", 1, 8192, **LLAMA3),
        "mistral-7b": text("Mistral", 1, 8192, num_key_value_heads=8),
        "qwen2-7b": text("Qwen2", 1, 4096, **QWEN2),
        "qwen3-8b": text("Qwen3", 1, 4096, **QWEN3),
        "gemma2-9b": text("Gemma2", 1, 4096, **GEMMA2),
        "mixtral-8x7b": text("Mixtral", 1, 4096),
        "deepseek-v2-lite": text("DeepseekV2", 1, 4096, **LITE),
        "bert-large": text("Bert", 16, 512, "ForMaskedLM", **LARGE),
        "roberta-large": text("Roberta", 16, 512, "ForMaskedLM", **ROBERTA),
        "t5-large": pairs("T5", 8, (512, 114), decoder_start_token_id=0, **T5),
        "bart-large": pairs("Bart", 8, (512, 512)),
        "mamba-2.8b": text("Mamba", 1, 2048, hidden_size=2560, num_hidden_layers=64),
        "vit-large": image("ViT", 64, **LARGE),
        "swin-base": image("Swin", 64, **SWIN),
        "clip-vit-large": clip,
        "whisper-large": whisper,
    },
    "others": {
        "u-net": u_net,
        "lstm": lstm,
        "graph network": graph_network,
        "recommender": recommender,
    },
    "torchvision": {
        name: partial(of_torchvision, name, samples, size)
        for name, samples, size in (
            ("resnet152", 64, 224),
            ("mobilenet_v2", 128, 224),
            ("mobilenet_v3_large", 128, 224),
            ("efficientnet_b4", 32, 380),
            ("efficientnet_v2_m", 32, 384),
            ("convnext_base", 64, 224),
            ("densenet201", 64, 224),
        )
    },
}
"""The models by package. Samples, lengths and sizes of images are those of one device."""


def published(name: str) -> PublicModel:
    """The model of a name, on the meta device. Raises KeyError for other names."""
    matching = [models[name] for models in PUBLISHED.values() if name in models]
    if not matching:
        raise KeyError(name)
    with torch.device("meta"):
        return matching[0]()


def names_of(given: Sequence[str]) -> Iterator[str]:
    """The models of the given names and packages. All that are installed if nothing is given."""
    installed = [name for name in PUBLISHED if name == "others" or find_spec(name)]
    for name in given or installed:
        yield from PUBLISHED.get(name, (name,))
