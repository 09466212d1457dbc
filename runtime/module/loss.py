"""The loss of a step, found however a module's own is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Loss(Tensor):
    """The loss of the whole batch, one number. A loop finds it as what is returned, as ``.loss``,
    ``["loss"]`` or ``[0]``, so that it need not know what the module itself would return. Whatever
    is computed of it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType, reportPrivateUsage]

    @property
    def loss(self) -> Tensor:
        return self

    def __getitem__(self, place: Any) -> Tensor:
        if place in ("loss", 0):
            return self
        raise KeyError(place)

    def __iter__(self) -> Iterator[Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield self
