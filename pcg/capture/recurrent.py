"""Decompose multi-layer LSTM, GRU and plain recurrent networks layer by layer.

Torch's own decomposition of several layers drops the dropout between them. So they are written as
networks of one layer each, which torch decomposes, with a dropout after all but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

States = list["Tensor"]


def _layer_by_layer(function: Any) -> Callable[..., Any]:
    """Return a function of several layers that calls ``function`` once for each layer."""

    def apart(
        x: Tensor,
        begin: Any,
        weights: list[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if layers == 1 or not dropout or not train:
            given = (has_biases, layers, 0.0, train, bidirectional, batch_first)
            return function(x, begin, weights, *given)
        x = x.transpose(0, 1) if batch_first else x
        is_one = isinstance(begin, torch.Tensor)
        states: States = [begin] if is_one else list(begin)
        each, ways = len(weights) // layers, 2 if bidirectional else 1
        ends: list[States] = []
        for layer in range(layers):
            first = [state[layer * ways : (layer + 1) * ways] for state in states]
            own = weights[layer * each : (layer + 1) * each]
            given = (has_biases, 1, 0.0, train, bidirectional, False)
            x, *last = function(x, first[0] if is_one else first, own, *given)
            ends.append(last)
            x = torch.dropout(x, dropout, True) if layer < layers - 1 else x
        x = x.transpose(0, 1) if batch_first else x
        return x, *(torch.cat(of_layers) for of_layers in zip(*ends, strict=True))

    return apart


def layers_apart() -> Mapping[Any, Callable[..., Any]]:
    """Return the decompositions of recurrent networks, by torch's function."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore[reportPrivateUsage]
    aten = torch.ops.aten
    functions = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    # These kernels are torch's own decompositions, which stay callable while ours replace them.
    return {function: _layer_by_layer(function.py_kernels[key]) for function in functions}
