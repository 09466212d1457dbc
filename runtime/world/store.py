"""Torch's key-value stores, through which ranks meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

# torch.distributed documents both, but its type hints do not export them.
TCP_STORE: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
PREFIX_STORE: Any = dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]
LIMIT = timedelta(seconds=60)
"""How long to wait for the answer of a store that exists already."""


class Store(Protocol):
    """The methods of torch's stores that this package uses."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
