"""The published points, as they are read; ``make fidelity`` prices them."""

from __future__ import annotations

from math import inf

import pytest
from fidelity.data import held_out, points

from pcg.machine import load_machine


def test_points_are_read():
    every = points()
    assert len(every) > 50
    assert len({(p.run, p.name, p.gpus, p.degrees) for p in every}) == len(every)
    for point in every:
        machine = load_machine(point.machine)
        nodes = -(-point.gpus // machine.devices_per_node)
        assert point.gpus == machine.with_nodes(nodes).with_devices(point.gpus).devices
        data = point.degrees.data(point.gpus)
        assert point.batch % (data * point.degrees.micro_batches) == 0
        assert point.model.hidden % point.model.heads == 0
        assert 0 < point.seconds < inf


def test_most_points_judge():
    every = points()
    calibrating = [p for p in every if p.calibrates]
    assert len(held_out(every)) + len(calibrating) == len(every)
    for run in {p.run for p in every}:
        own = [p for p in every if p.run == run]
        assert len(held_out(own)) > sum(p.calibrates for p in own)


def test_seconds_follow_from_what_is_published():
    """Of Megatron's 1.7B the paper says 137 TFLOP/s a GPU; of MPT-7B 4,641 tokens a second."""
    found = {(p.run, p.name): p for p in points()}
    small = found["Megatron 2021", "1.7B"]
    parameters = 12 * 24 * 2304**2 + 51200 * 2304
    least = 8 * parameters * 512 * 2048 / 32 / 137e12
    assert least < small.seconds < 1.2 * least
    mosaic = found["MosaicML, A100", "7b 2048"]
    assert mosaic.seconds == pytest.approx(6 * 2 * 2048 / 4641)
