"""Deep models are captured and planned in minutes: time against layers."""

from __future__ import annotations

import sys

import pytest
from benchmarks import deep
from support.runs.programs import answer_of

pytest.importorskip("transformers")
MOST_GB = {"llama-405b": 8.0}
"""Peak memory in GB, for models that may take more than 4."""
LAYERS = {
    "llama": (4, 8, 16, 32),
    "llama-70b": (20, 80),
    "llama-405b": (126,),
    "gpt": (12, 24, 48, 96),
    "mixtral": (8, 16, 32),
}
NODES = {"llama": 1, "llama-70b": 128, "llama-405b": 512, "gpt": 128, "mixtral": 4}
MOST_SECONDS = {
    "llama": 120.0,
    "llama-70b": 180.0,
    "llama-405b": 600.0,
    "gpt": 180.0,
    "mixtral": 300.0,
}
"""Processor seconds for capture and search of the deepest model."""


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("name", "layers"), [(name, n) for name, own in LAYERS.items() for n in own]
)
def test_deep_models_are_planned_in_minutes(name: str, layers: int):
    """In processor seconds: a machine that others use takes longer."""
    answer = answer_of([sys.executable, deep.__file__, name, str(layers), str(NODES[name])], 7200)
    print(name, layers, answer)
    assert answer["stop"] == "exhausted"
    assert answer["capture"] + answer["plan"] < MOST_SECONDS[name]
    assert answer["peak_gb"] < MOST_GB.get(name, 4.0)
