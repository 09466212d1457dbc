"""Refuses, before a search begins, what it could not use or what would take it too long."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from pcg.errors import InputError
from search.choices import IndexRole

MOST_DEVICES = 1 << 16
"""Devices that plans are made for; a machine may have more."""


def check_devices(where: str, devices: int) -> None:
    """Refuse more devices than plans are made for. ``where`` they are asked for."""
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
    """Refuse a batch that cannot be cut for any number of the devices, where it may be cut.
    ``advice``: what else than another batch would do."""
    if batch is None or (dimensions is not None and IndexRole.DATA not in dimensions):
        return
    if devices > 1 and batch > 0 and gcd(batch, devices) == 1:
        factor = next(n for n in range(2, devices + 1) if devices % n == 0)
        problem = f"{batch} shares no factor with {devices} devices"
        raise InputError("batch", f"{problem}: choose a multiple of {factor}{advice}")
