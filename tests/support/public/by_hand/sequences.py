"""Transformers of torch's own layers, and recurrent networks, for texts."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import CLASSES, LENGTH, WORDS, Maker, ids, padded, words
from torch import Tensor, nn
from torch.nn import functional as f


class Translator(nn.Module):
    """Encoder and decoder of ``nn.Transformer``. Padding is masked in both, later words in the
    decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.transformer = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        states = self.transformer(
            self.table(source),
            self.table(target[:, :-1]),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.size(1) - 1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = self.head(states).flatten(0, 1)
        return f.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=0)


class SequenceFirstTranslator(nn.Module):
    """The same with words along the first dimension, which is the default of ``nn.Transformer``."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.transformer = nn.Transformer(32, 4, 2, 2, 64)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source, target = source.t(), target.t()
        mask = self.transformer.generate_square_subsequent_mask(target.size(0))
        states = self.transformer(self.table(source), self.table(target), tgt_mask=mask)
        return f.cross_entropy(self.head(states).view(-1, WORDS), target.reshape(-1))


class TextEncoder(nn.Module):
    """A class of the mean state of a text without its padding, by ``nn.TransformerEncoder``."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32, padding_idx=0), nn.Linear(32, CLASSES)
        self.positions = nn.Parameter(torch.zeros(1, LENGTH, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, activation="gelu", norm_first=True, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, text: Tensor, labels: Tensor) -> Tensor:
        padding = text == 0
        states = self.encoder(self.table(text) + self.positions, src_key_padding_mask=padding)
        total = states.masked_fill(padding.unsqueeze(-1), 0).sum(1)
        mean = total / (~padding).sum(1, keepdim=True).clamp(min=1)
        return f.cross_entropy(self.head(mean), labels)


class GruWords(nn.Module):
    """The next word by two layers of GRU with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16), nn.Linear(24, WORDS)
        self.layers = nn.GRU(16, 24, 2, batch_first=True, dropout=0.2)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.layers(self.table(text[:, :-1]))
        return f.cross_entropy(self.head(states).reshape(-1, WORDS), text[:, 1:].reshape(-1))


class BothEnds(nn.Module):
    """A class of a text by the last states of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(48, CLASSES)
        self.lstm = nn.LSTM(16, 24, bidirectional=True, batch_first=True)

    def forward(self, text: Tensor, labels: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.table(text))
        return f.cross_entropy(self.head(torch.cat([last[0], last[1]], 1)), labels)


class PaddedLstm(nn.Module):
    """A class of a text by the state of an LSTM at its last word."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(24, CLASSES)
        self.lstm = nn.LSTM(16, 24, batch_first=True)

    def forward(self, text: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        states, _ = self.lstm(self.table(text))
        last = states[torch.arange(text.shape[0]), lengths - 1]
        return f.cross_entropy(self.head(last), labels)


class Tagger(nn.Module):
    """A tag for each word by an LSTM in both directions and a conditional random field."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16), nn.Linear(48, CLASSES)
        self.lstm = nn.LSTM(16, 24, bidirectional=True, batch_first=True)
        self.transitions = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, text: Tensor, tags: Tensor) -> Tensor:
        scores, mask = self.head(self.lstm(self.table(text))[0]), (text != 0).float()
        given = scores.gather(2, tags.unsqueeze(2)).squeeze(2) * mask
        steps = self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]
        return (self.normalizer(scores, mask) - given.sum(1) - steps.sum(1)).mean()

    def normalizer(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The logarithm of the sum over all sequences of tags."""
        sums = scores[:, 0]
        for place in range(1, scores.shape[1]):
            pairs = sums.unsqueeze(2) + self.transitions + scores[:, place].unsqueeze(1)
            longer = torch.logsumexp(pairs, 1)
            sums = torch.where(mask[:, place : place + 1] > 0, longer, sums)
        return torch.logsumexp(sums, 1)


SEQUENCES: dict[str, Maker] = {
    "transformer": lambda: (Translator(), (padded()[0], words(8))),
    "transformer-sequence-first": lambda: (SequenceFirstTranslator(), (words(), words(8))),
    "transformer-encoder": lambda: (TextEncoder(), (padded()[0], ids(CLASSES))),
    "gru-words": lambda: (GruWords(), (words(),)),
    "bilstm": lambda: (BothEnds(), (words(), ids(CLASSES))),
    "lstm-padded": lambda: (PaddedLstm(), (*padded(), ids(CLASSES))),
    "bilstm-crf": lambda: (Tagger(), (padded()[0], ids(CLASSES, LENGTH))),
}
