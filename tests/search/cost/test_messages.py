"""The time of messages between few devices, and between many."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from pcg.language.poly import Poly
from pcg.machine import Machine, load_machine
from pcg.placement.layout import Layout, default_layout, relocated
from pcg.placement.transfer import transfer
from pcg.types.tensor import Degrees, Halo, ParallelTensor
from search.cost import messages as module
from search.cost.messages import Messages

MACHINES = [load_machine("p3-16xlarge").with_nodes(2), load_machine("summit").with_devices(6)]


DEGREES = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (3, 2)]


def at_random(machine: Machine, random: Random, partials: int, *, may_overlap: bool) -> Layout:
    """The layout of a matrix on some of a machine's devices, possibly with a halo."""
    most = machine.devices // partials
    cuts = [(dims, copies) for dims in DEGREES for copies in (1, 2) if prod(dims) * copies <= most]
    dims, copies = random.choice(cuts)
    widths = Poly.of(random.randint(0, 2)), Poly.of(random.randint(0, 2))
    halos = (Halo(0, *widths),) if may_overlap and dims[0] > 1 and random.random() < 0.5 else ()
    tensor = ParallelTensor((12, 8), Degrees(dims, (1, 1), copies, partials, halos))
    plain = ParallelTensor((12, 8), Degrees(dims, (1, 1), copies, partials))
    made = relocated(
        default_layout(plain), tuple(random.sample(range(machine.devices), tensor.pieces))
    )
    assert made is not None
    return Layout(tensor, made.pieces)


@pytest.mark.parametrize("seed", range(60))
def test_messages_of_few_devices_take_as_long_as_those_of_many(seed, monkeypatch):
    machine, random = MACHINES[seed % 2], Random(seed)
    partials = random.choice([1, 1, 3])
    source = at_random(machine, random, partials * random.choice([1, 2]), may_overlap=False)
    moved = transfer(source, at_random(machine, random, partials, may_overlap=True))
    messages = Messages(machine, 4)
    busy = messages.busy(moved)
    monkeypatch.setattr(module, "FEW_DEVICES", 0)
    np.testing.assert_array_equal(messages.busy(moved), busy)
    ends = {d for m in moved.messages if m.source != m.target for d in (m.source, m.target)}
    assert {*np.flatnonzero(busy).tolist()} == ends
