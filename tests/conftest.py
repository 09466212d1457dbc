"""Settings of hypothesis: enough examples to find faults, few enough to wait for. And of torch, and
of the collector of garbage."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Torch would start a pool of compilers, each of which imports torch, and outlives its test.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# How long an example takes varies with what is drawn, and with the computer: no deadline.
settings.register_profile("unity", max_examples=8, deadline=None)
settings.register_profile("soak", max_examples=100, deadline=None)
settings.load_profile("unity")
# Seldom, also while test files are imported.
gc.set_threshold(300_000, 20, 50)
LITTLE_WORK = 20_000
"""Of a refinement, in operators of the states that it looks at."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Benchmarks take long to import, and most runs leave them out."""
    left_out = "not benchmark" in str(config.getoption("markexpr"))
    return True if left_out and collection_path.name == "benchmarks" else None


def pytest_collection_finish() -> None:
    """What is imported stays until the end: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are so small here that torch's threads would but wait for each other, and there is
    a worker of pytest for each processor already. Where torch is not loaded, nothing loads it."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _little_refinement(pytestconfig: pytest.Config) -> Iterator[None]:
    """Tests of searches want a plan, and few of them the last percent of its speed: those that do,
    set their own work. Long tests and benchmarks refine as users do."""
    refining = sys.modules.get("search.plan.refining")
    asked = str(pytestconfig.getoption("markexpr"))
    if refining is None or asked in ("soak", "benchmark"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refining, "WORK", LITTLE_WORK)
        yield
