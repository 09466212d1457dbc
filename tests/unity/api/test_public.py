"""Plans of public models for a real machine: never slower than data parallelism, with nothing kept
whole."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
from support.public.every import public
from support.public.planned import MOST, planned

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(("name", "nodes"), [("recommender", 1), ("resnet", 4), ("vit", 4)])
def test_plans_are_as_fast_as_data_parallelism(name: str, nodes: int) -> None:
    made = planned(public(name), nodes, 60.0)
    assert made.data_parallel_seconds is not None
    assert made.step_seconds <= made.data_parallel_seconds
    assert all(kept.share <= MOST for kept in made.answer.whole)
