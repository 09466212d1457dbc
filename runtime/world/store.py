"""Torch's stores of keys and values, in which ranks meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

# Both are documented as torch.distributed's, whose typing leaves them out.
TCP_STORE: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
PREFIX_STORE: Any = dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]
LIMIT = timedelta(seconds=60)
"""For an answer of a store that is there already."""


class Store(Protocol):
    """The part of torch's stores that is used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
