"""Random numbers: xorshift with 32 bits (Marsaglia, Journal of Statistical Software, 2003).

The state is an array of one number, which is not 0. It is written to.
"""

from __future__ import annotations

from search.cost.native.compiled import inlined
from search.refine.native.tables import Numbers

_MASK = 0xFFFFFFFF


@inlined
def draw(random: Numbers) -> int:
    """A number from 1 to 2^32 - 1."""
    bits = int(random[0])
    bits ^= (bits << 13) & _MASK
    bits ^= bits >> 17
    bits ^= (bits << 5) & _MASK
    random[0] = bits
    return bits


@inlined
def below(random: Numbers, count: int) -> int:
    """A number from 0 to ``count`` - 1."""
    return (draw(random) * count) >> 32


@inlined
def fraction(random: Numbers) -> float:
    """A number between 0 and 1, both excluded."""
    return draw(random) / 4294967296.0
