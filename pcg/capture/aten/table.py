"""The table of ATen operators that have an index equation, or are made of some that have."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.capture.aten import layers, losses, moves, norms, pointwise, random, windows
from pcg.capture.aten.attention import attended_in_parts
from pcg.capture.aten.call import Entry
from pcg.graph.torch_calls import ATTENTION

TABLE: Mapping[str, Entry] = {
    **pointwise.ENTRIES,
    **moves.ENTRIES,
    **layers.ENTRIES,
    **norms.ENTRIES,
    **losses.ENTRIES,
    **windows.ENTRIES,
}
"""By torch's name of the operator. What is not here is taken apart by torch's own decompositions,
and what is left then, and what an entry does not support, is opaque."""

DRAWING: Mapping[str, random.Drawing] = {**random.DRAWS, ATTENTION: attended_in_parts}
"""Those that draw random numbers, where their arguments let them."""
