"""The machine views that the search considers for an operator."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from pcg.view import MachineView

Range = tuple[int, int]
"""Consecutive devices: the first, and how many."""

MAX_VIEWS = 8
"""How many views of an operator are considered in one range of devices."""


@lru_cache(maxsize=65536)
def candidate_views(shape: tuple[int, ...], devices: Range) -> tuple[MachineView, ...]:
    """Views of a task grid within a range of devices; none where it doesn't fit.

    Tasks lie on consecutive devices. Views differ in the order of the grid's axes (all rotations
    of the axes that are cut, and their reversals, hence every order of up to three) and in the
    first device (multiples of the number of tasks, spread over the range if there are many).
    """
    first, size = devices
    tasks = prod(shape)
    starts = range(first, first + size - tasks + 1, tasks)
    if not starts:
        return ()
    orders = _orders(shape)
    kept = min(len(starts), max(1, MAX_VIEWS // len(orders)))
    chosen = [starts[i * len(starts) // kept] for i in range(kept)]
    return tuple(MachineView.packed(start, shape, order) for start in chosen for order in orders)


def _orders(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Orders of the axes from the slowest to the fastest, the given one first."""
    uncut = tuple(axis for axis, length in enumerate(shape) if length == 1)
    cut = tuple(axis for axis, length in enumerate(shape) if length > 1)
    turned = [cut[i:] + cut[:i] for i in range(len(cut))] or [()]
    both = dict.fromkeys(turned + [order[::-1] for order in turned])
    return [uncut + order for order in list(both)[:MAX_VIEWS]]
