"""Settings of hypothesis: enough examples to find faults, few enough to wait for. And of torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes varies with what is drawn, and with the computer: no deadline.
settings.register_profile("unity", max_examples=30, deadline=None)
settings.load_profile("unity")


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
