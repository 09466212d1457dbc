"""Torch's own list of operators: captured with their gradients, or refused in a line."""

from __future__ import annotations

import pytest
import torch
from support.public.operators import operators, outcome

EVERY = 6
"""One in this many operators is tried. ``tests/benchmarks/public/single_operators.py`` tries
all."""


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_no_operator_is_wrong_or_ends_in_a_traceback() -> None:
    bad: list[str] = []
    for number, (name, module, most) in enumerate(operators()):
        if number % EVERY:
            continue
        torch.manual_seed(0)
        verdict = outcome(module, most)
        if verdict.kind in ("wrong", "traceback"):
            bad.append(f"{name}: {verdict.kind}: {verdict.detail}")
    assert not bad
