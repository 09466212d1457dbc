"""Layouts at random."""

from __future__ import annotations

from math import prod
from random import Random

from pcg.language.poly import Poly
from pcg.machine import Machine
from pcg.placement.layout import Layout, default_layout, relocated
from pcg.types.tensor import Degrees, Halo, ParallelTensor

DEGREES = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (3, 2)]


def layout_at_random(machine: Machine, random: Random, partials: int, *, overlaps: bool) -> Layout:
    """The layout of a matrix on some devices. ``overlaps``: whether its blocks may have halos."""
    most = machine.devices // partials
    cuts = [(dims, copies) for dims in DEGREES for copies in (1, 2) if prod(dims) * copies <= most]
    dims, copies = random.choice(cuts)
    widths = Poly.of(random.randint(0, 2)), Poly.of(random.randint(0, 2))
    halos = (Halo(0, *widths),) if overlaps and dims[0] > 1 and random.random() < 0.5 else ()
    tensor = ParallelTensor((12, 8), Degrees(dims, (1, 1), copies, partials, halos))
    plain = ParallelTensor((12, 8), Degrees(dims, (1, 1), copies, partials))
    made = relocated(
        default_layout(plain), tuple(random.sample(range(machine.devices), tensor.pieces))
    )
    assert made is not None
    return Layout(tensor, made.pieces)
