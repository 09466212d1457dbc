"""Bytes of live tensors, by the storages that torch's operators make."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that are made in one thread while it is on, until their last tensor is
    freed.

    The count is exact and the same in every run. Allocators, workspaces of kernels and
    communication libraries are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = storage
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size
