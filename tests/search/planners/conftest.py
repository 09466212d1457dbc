from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.runs.rank_group import Ranks


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Four connected processes, for the plans of all planners."""
    with TemporaryDirectory() as folder:
        pool = Ranks(Path(folder), 4)
        yield pool
        pool.stop()
