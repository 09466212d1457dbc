"""Heads of models of texts, by name: answers, tokens, choices, classes. Each has its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.public.further import GPT, PADDED_TWICE
from support.public.language import BATCH, LENGTH, SHARED, SIZES, WORDS
from support.public.transformers5.recipe import KINDS, Recipe, tagged, texts, words
from torch import Tensor

ENDS: Mapping[str, Any] = {"num_labels": KINDS, "pad_token_id": 0}
"""A decoder classifies a text by its last word that is no padding."""
DECODER: Mapping[str, Any] = {"is_decoder": True, "add_cross_attention": True}


def pairs() -> dict[str, Tensor]:
    """Words to predict, and whether the second sentence follows the first one."""
    return {**words(), "next_sentence_label": torch.randint(0, 2, (BATCH,))}


def answered() -> dict[str, Tensor]:
    """Texts, each with the places where the answer begins and ends."""
    given = {name: torch.randint(0, LENGTH, (BATCH,)) for name in ("start", "end")}
    places = {f"{name}_positions": place for name, place in given.items()}
    return {"input_ids": words()["input_ids"], **places}


def choices() -> dict[str, Tensor]:
    """Several texts to choose from."""
    offered = torch.randint(0, WORDS, (BATCH, KINDS, LENGTH))
    return {"input_ids": offered, "labels": torch.randint(0, KINDS, (BATCH,))}


def numbers() -> dict[str, Tensor]:
    """Texts, each with a number to predict."""
    return {**texts(), "labels": torch.rand(BATCH)}


def several() -> dict[str, Tensor]:
    """Texts, each with the probabilities of all classes."""
    return {**texts(), "labels": torch.rand(BATCH, KINDS)}


HEADS: Mapping[str, Recipe] = {
    "convbert": Recipe("ConvBertForMaskedLM", words, {**SIZES, "embedding_size": 32}),
    "mobilebert": Recipe(
        "MobileBertForMaskedLM",
        words,
        {
            **SIZES,
            "embedding_size": 16,
            "intra_bottleneck_size": 16,
            "true_hidden_size": 16,
        },
    ),
    "bert for pretraining": Recipe("BertForPreTraining", pairs, SIZES),
    "bert for answers": Recipe("BertForQuestionAnswering", answered, SIZES),
    "bert for tokens": Recipe("BertForTokenClassification", tagged, {**SIZES, "num_labels": KINDS}),
    "bert for choices": Recipe("BertForMultipleChoice", choices, SIZES),
    "bert for numbers": Recipe(
        "BertForSequenceClassification", numbers, {**SIZES, "num_labels": 1}
    ),
    "bert for several labels": Recipe(
        "BertForSequenceClassification", several, {**SIZES, "num_labels": KINDS}
    ),
    "gpt2 for classes": Recipe("GPT2ForSequenceClassification", texts, {**GPT, **ENDS}),
    "llama for classes": Recipe("LlamaForSequenceClassification", texts, {**SHARED, **ENDS}),
    "qwen2 for tokens": Recipe(
        "Qwen2ForTokenClassification", tagged, {**SHARED, "num_labels": KINDS}
    ),
    "modernbert for classes": Recipe(
        "ModernBertForSequenceClassification", texts, {**PADDED_TWICE, "num_labels": KINDS}
    ),
    "encoder and decoder of bert": Recipe(
        "EncoderDecoderModel",
        words,
        {
            "encoder": {**SIZES, "model_type": "bert"},
            "decoder": {**SIZES, **DECODER, "model_type": "bert"},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
    ),
}
