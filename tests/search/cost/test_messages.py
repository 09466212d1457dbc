"""The time of messages between few devices, and between many."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from pcg.machine import Machine, load_machine
from pcg.placement.layout import Layout, default_layout, relocated
from pcg.placement.transfer import transfer
from pcg.types.tensor import Degrees, ParallelTensor
from search.cost import messages as module
from search.cost.messages import Messages

MACHINES = [load_machine("p3-16xlarge").with_nodes(2), load_machine("summit").with_devices(6)]


DEGREES = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (3, 2)]


def at_random(machine: Machine, random: Random) -> Layout:
    """The layout of a matrix on some of a machine's devices."""
    copies = random.choice([1, 1, 2])
    fitting = [dims for dims in DEGREES if prod(dims) * copies <= machine.devices]
    degrees = Degrees(random.choice(fitting), (1, 1), copies, 1)
    tensor = ParallelTensor((12, 8), degrees)
    made = relocated(
        default_layout(tensor), tuple(random.sample(range(machine.devices), tensor.pieces))
    )
    assert made is not None
    return made


@pytest.mark.parametrize("seed", range(40))
def test_messages_of_few_devices_take_as_long_as_those_of_many(seed, monkeypatch):
    machine, random = MACHINES[seed % 2], Random(seed)
    moved = transfer(at_random(machine, random), at_random(machine, random))
    messages = Messages(machine, 4)
    busy = messages.busy(moved)
    monkeypatch.setattr(module, "FEW_DEVICES", 0)
    np.testing.assert_array_equal(messages.busy(moved), busy)
    ends = {d for m in moved.messages if m.source != m.target for d in (m.source, m.target)}
    assert {*np.flatnonzero(busy).tolist()} == ends
