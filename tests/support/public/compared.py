"""Compare a model with its graph, in double precision."""

from __future__ import annotations

import time

from torch import Tensor, nn

from pcg.capture import Captured, capture
from runtime.train.eager import compare_module

NEAR = 1e-8
"""The tolerance. Constants that a module makes have its own format, float32."""


def compared(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Captured, float]:
    """The capture of a module that agrees with its graph, and the processor seconds of the
    capture."""
    begin = time.process_time()
    captured = capture(module, inputs)
    seconds = time.process_time() - begin
    comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR, comparison.error
    return captured, seconds
