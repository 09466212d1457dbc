"""The pipeline of the search for a small model, against all pipelines."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small.every_pipeline import (
    EveryPipeline,
    beside_every,
    mixed_chain,
    pipeline_of_search,
    ratio,
    small_chain,
)

from search.pipeline.built.moves import BoundMoves, moved
from search.pipeline.outline import Outline
from substitutions.rules.store import Library, load_library

PRICED = 15
"""A case of each run, without a limit of memory. The pipelines of both searches are compared in
full."""
FEW_MIXED = (1,)
"""A quick case. In cases 15 and 38, the best pipeline is estimated not to fit."""
ROUNDING = 1e-9
NOTHING: Any = None


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_of_a_small_chain_is_faster(library, seed):
    """In cases 19 and 39, the pipeline that looks best before it is built does not fit."""
    plan, best = beside_every(library, small_chain(seed))
    print(ratio(plan, best), best)
    assert ratio(plan, best) <= 1 + ROUNDING, best


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in FEW_MIXED else pytest.mark.soak) for n in range(40)]
)
def test_no_pipeline_on_devices_of_two_kinds_is_faster(library, seed):
    plan, best = beside_every(library, mixed_chain(seed))
    print(ratio(plan, best), best)
    assert ratio(plan, best) <= 1 + ROUNDING, best


def test_exhaustive_search_prices_the_best_pipeline_as_the_search(library):
    """The other tests rest on this: both price a pipeline equally."""
    chain = small_chain(PRICED)
    plan, every = pipeline_of_search(library, chain), EveryPipeline(chain, library)
    best = every.best()
    assert plan is not None
    assert plan.pipeline is not None
    assert best is not None
    assert every.priced > 100
    assert best.seconds == pytest.approx(plan.estimates.step_seconds, rel=ROUNDING)
    assert ratio(plan, best) <= 1 + ROUNDING, best
    own = plan.pipeline
    assert (best.stages, best.micro_batches, best.kind) == (
        own.stages,
        own.micro_batches,
        own.schedule,
    )


def with_bounds(bounds: tuple[int, ...]) -> Outline:
    batches: Any = SimpleNamespace(slices=2)
    return Outline(batches, NOTHING, bounds, 0.0)


bounds = st.sets(st.integers(1, 11), max_size=4).map(lambda inner: (0, *sorted(inner), 12))


@given(bounds)
def test_moved_bounds_are_bounds(start):
    others = [one.bounds for one in moved(with_bounds(start))]
    assert len({*others, start}) == len(others) + 1
    for other in others:
        assert (other[0], other[-1], len(other)) == (0, 12, len(start))
        assert all(a < b for a, b in pairwise(other))


@given(bounds, st.data())
def test_moves_of_bounds_end_when_none_pays(start, data):
    """Each pipeline is priced once."""
    wanted = data.draw(st.tuples(*(st.integers(0, 12) for _ in start)))
    priced: dict[tuple[int, ...], float] = {}

    def price(one: Outline) -> float:
        assert one.bounds not in priced
        far = (abs(a - b) for a, b in zip(one.bounds, wanted, strict=True))
        return priced.setdefault(one.bounds, float(sum(far)))

    best = BoundMoves(price, more_chunks=False).improve(with_bounds(start))
    assert best == min(priced.values()) <= priced[start]
    at = [bounds for bounds, seconds in priced.items() if seconds == best]
    assert any({one.bounds for one in moved(with_bounds(b))} <= priced.keys() for b in at)
