"""The time of messages between few devices, and between many."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from support.small.random_layouts import layout_at_random

from pcg.machine import load_machine
from pcg.placement.transfer import transfer
from search.cost import messages as module
from search.cost.messages import Messages

MACHINES = [load_machine("p3-16xlarge").with_nodes(2), load_machine("summit").with_devices(6)]


@pytest.mark.parametrize("seed", range(60))
def test_messages_of_few_devices_take_as_long_as_those_of_many(seed, monkeypatch):
    machine, random = MACHINES[seed % 2], Random(seed)
    partials = random.choice([1, 1, 3])
    source = layout_at_random(machine, random, partials * random.choice([1, 2]), overlaps=False)
    moved = transfer(source, layout_at_random(machine, random, partials, overlaps=True))
    messages = Messages(machine, 4)
    busy = messages.busy(moved)
    monkeypatch.setattr(module, "FEW_DEVICES", 0)
    np.testing.assert_array_equal(messages.busy(moved), busy)
    ends = {d for m in moved.messages if m.source != m.target for d in (m.source, m.target)}
    assert {*np.flatnonzero(busy).tolist()} == ends
