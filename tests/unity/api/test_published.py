"""Public models at their published sizes: they have the published sizes, and are captured without
weights."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.public.calls import call_of_loss
from support.public.planned import MOST, Gain, gained_or_not
from support.public.published import PUBLISHED, published
from support.public.table import Table

from pcg.capture import capture

MILLIONS = {
    "gpt2": 124,
    "gpt2-medium": 355,
    "gpt2-large": 774,
    "gpt2-xl": 1558,
    "llama-3-8b": 8030,
    "mistral-7b": 7242,
    "qwen2-7b": 7616,
    "qwen3-8b": 8191,
    "gemma2-9b": 9242,
    "mixtral-8x7b": 46703,
    "deepseek-v2-lite": 15706,
    "bert-large": 335,
    "roberta-large": 355,
    "t5-large": 738,
    "bart-large": 406,
    "mamba-2.8b": 2768,
    "vit-large": 304,
    "swin-base": 88,
    "clip-vit-large": 428,
    "whisper-large": 1543,
    "u-net": 860,
    "lstm": 66,
    "recommender": 24037,
    "resnet152": 60,
    "mobilenet_v2": 4,
    "mobilenet_v3_large": 5,
    "densenet201": 20,
    "efficientnet_b4": 19,
    "efficientnet_v2_m": 54,
    "convnext_base": 89,
}
"""The numbers of parameters, as authors and packages state them, with heads for training."""
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(is_missing, reason=f"needs {package}"))
    for package, models in PUBLISHED.items()
    for is_missing in [package != "others" and find_spec(package) is None]
    for name in models
    if name in MILLIONS
]


@pytest.mark.parametrize("name", NAMES)
def test_models_are_as_large_as_is_published(name: str) -> None:
    parameters = list(published(name).module.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    assert round(sum(parameter.numel() for parameter in parameters) / 1e6) == MILLIONS[name]


def test_models_without_weights_are_captured() -> None:
    captured = capture(*call_of_loss(published("graph network")))
    assert not captured.opaque


@pytest.mark.soak
@pytest.mark.parametrize("name", ["graph network", "recommender"])
def test_plans_of_published_sizes_are_as_fast_as_data_parallelism(name: str) -> None:
    gain = gained_or_not(published(name), 1, 300.0, "bf16")
    assert gain.gain is not None
    assert gain.gain >= 1.0
    assert all(share <= MOST for share in gain.shares.values())
    # 24 billion parameters, of 16 bytes each with Adam.
    assert gain.is_data_fit is (name != "recommender")


def test_gain_states_its_baseline() -> None:
    assert Gain(1.0, 1.2349, {}).text == "1.234"
    assert Gain(1.0, 1.2349, {}, is_data_fit=False, stop="time").text == (
        "1.234, alone fits, stopped: time"
    )
    assert not Gain(1.0, None, {}, problem="nothing fits").holds


ROW = '{"name": "%s", "attention": "", "equations": 3, "batched": 0, "whole": {}, "capture": 1, '
PLAN = '"gained": {"1": {"seconds": 2.0, "gain": 1.5, "shares": {}}}}'
SCRIPT = f"""
import sys
name = sys.argv[1]
assert name != "broken", "it is"
print('{ROW}' % name + '{PLAN}' if name == "whole" else '{{"refused": "one line"}}')
"""


def test_table_continues_after_failed_models_and_after_a_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, results = tmp_path / "script.py", tmp_path / "rows.jsonl"
    script.write_text(SCRIPT)
    given = Namespace(nodes=[1], results=results, budget=1.0, limit=60.0)
    table = Table(str(script), given)
    assert not table.printed([("broken", ""), ("refused", ""), ("whole", "")])
    head, _, *lines = capsys.readouterr().out.splitlines()
    row = "| whole | - | 3 | 0 | none | 1.0 | 2.0 | 1.500 |"
    assert head.count("|") == row.count("|")
    assert lines == [
        "| broken | - | failed: ['AssertionError: it is'] |",
        "| refused | - | refused: one line |",
        row,
    ]
    script.write_text("raise SystemExit(1)")
    assert table.printed([("whole", "")])
    assert capsys.readouterr().out.splitlines()[-1] == row
