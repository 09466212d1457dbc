"""Large models are captured in seconds, without their weights."""

from __future__ import annotations

import sys

import pytest
from benchmarks import llama
from support.runs.programs import answer_of

pytest.importorskip("transformers")
MOST_GB = 4.0


@pytest.mark.benchmark
@pytest.mark.parametrize(("size", "most"), [("8", 30.0), ("70", 60.0)])
def test_llama_is_captured_in_seconds(size: str, most: float):
    """In processor seconds: a machine that others use takes longer."""
    answer = answer_of([sys.executable, llama.__file__, size], 900)
    print(answer)
    assert answer["cpu_seconds"] < most
    assert answer["peak_gb"] < MOST_GB
