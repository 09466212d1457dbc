"""Limits of devices and batch, which are checked before a search begins."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from pcg.errors import InputError
from search.choices import IndexRole

MOST_DEVICES = 1 << 16
"""The most devices that a plan may use. A machine may have more."""


def check_devices(where: str, devices: int) -> None:
    """Raise InputError for more devices than a plan may use. ``where``: what asks for them."""
    if devices > MOST_DEVICES:
        problem = f"expected at most {MOST_DEVICES} devices to plan for, got {devices}"
        raise InputError(where, problem)


def check_batch(
    batch: int | None,
    devices: int,
    dimensions: Collection[IndexRole] | None = None,
    *,
    advice: str = "",
) -> None:
    """Raise InputError for a batch that shares no factor with the number of devices, if samples may
    be cut. ``advice``: a remedy beside another batch, for the message."""
    if batch is None or (dimensions is not None and IndexRole.DATA not in dimensions):
        return
    if devices > 1 and batch > 0 and gcd(batch, devices) == 1:
        factor = next(n for n in range(2, devices + 1) if devices % n == 0)
        problem = f"{batch} shares no factor with {devices} devices"
        raise InputError("batch", f"{problem}: choose a multiple of {factor}{advice}")
