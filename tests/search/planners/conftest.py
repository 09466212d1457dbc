from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.runs.rank_group import Ranks, RankThreads, light_ranks


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks | RankThreads]:
    """Four ranks, for the plans of all planners."""
    with light_ranks(4) as ranks:
        yield ranks
