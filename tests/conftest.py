"""Settings of hypothesis, torch and the garbage collector. Hypothesis draws enough examples to find
faults, and few enough to wait for."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Torch would start a pool of compilers. Each of them imports torch and outlives its test.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# The time of an example varies with its size and with the computer: no deadline.
settings.register_profile("unity", max_examples=8, deadline=None)
settings.register_profile("soak", max_examples=100, deadline=None)
settings.load_profile("unity")
# Collect garbage seldom, also while test files are imported.
gc.set_threshold(300_000, 20, 50)
# Tests interrupt processes. Programs that a shell runs in the background ignore that, as do theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
LITTLE_WORK = 20_000
"""The work of a refinement, in operators of the states that it looks at."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out benchmarks unless they are asked for: they take long to import."""
    left_out = "not benchmark" in str(config.getoption("markexpr"))
    return True if left_out and collection_path.name == "benchmarks" else None


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Collect garbage once. At its end, pytest searches all objects five times for errors in
    finalizers: what is alive by then stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread. Tensors are so small here that torch's threads would only wait for
    each other, and pytest has a worker for each processor. Where torch is not loaded, nothing loads
    it."""
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
    """Limit the work of refinements. Few tests need the last percent of a plan's speed, and those
    set their own limit. Long tests and benchmarks refine as users do."""
    refining = sys.modules.get("search.plan.refining")
    asked = str(pytestconfig.getoption("markexpr"))
    if refining is None or asked in ("soak", "benchmark"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refining, "WORK", LITTLE_WORK)
        yield
