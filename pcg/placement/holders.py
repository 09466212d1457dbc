"""The holders of the pieces of a layout, as arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.placement.layout import Layout

Places = NDArray[np.int64]


class Holders(NamedTuple):
    """The different pieces of a layout, in the order of their numbers, and their devices."""

    numbers: Places
    """The number of each piece [pieces]."""
    first: NDArray[np.intp]
    """The first place of each piece in the layout [pieces]."""
    partials: Places
    starts: Places
    """The start of each piece without its halo [pieces, rank]."""
    stops: Places
    devices: Places
    """The holders of the first piece, ascending, then those of the second, and so on."""
    begins: NDArray[np.intp]
    """The place of the first holder of each piece in ``devices`` [pieces]."""
    counts: NDArray[np.intp]
    """The number of holders of each piece [pieces]."""
    held: NDArray[np.intp]
    """The piece of each device, -1 for those without one. The last entry is -1."""

    def asked(self, piece: NDArray[np.intp], number: Places, askers: Places) -> Places:
        """The devices that serve requests for pieces. ``number``: that of each request for its
        piece, in the order of the devices that ask; ``askers``: of each piece, how many ask.

        The holders of a piece, in the order of devices, serve equal numbers of requests, one after
        the other. So no holder sends more than others, and most often it is near who asks.
        """
        return self.devices[self.begins[piece] + number * self.counts[piece] // askers[piece]]


@lru_cache(maxsize=512)
def holders_of(layout: Layout) -> Holders:
    """The holders of the pieces of a layout."""
    cells = layout.cells
    numbers, first, which = np.unique(cells.numbers, return_index=True, return_inverse=True)
    order = np.lexsort((cells.devices, which))
    counts = np.bincount(which, minlength=len(numbers))
    held = np.full(2 + cells.devices.max(), -1)
    held[cells.devices] = which
    starts, stops = layout.without_halos.bounds(cells.blocks[first])
    begins = np.cumsum(counts) - counts
    return Holders(
        numbers,
        first,
        cells.partials[first],
        starts,
        stops,
        cells.devices[order],
        begins,
        counts,
        held,
    )


def ranks(values: NDArray[np.intp]) -> Places:
    """For each entry, the number of equal entries before it."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.arange(len(values)) - np.searchsorted(ascending, ascending)
    return numbers
