"""Tests of outlines: memory, recomputation, and weights that are stored in parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans.pipelines import layers

from pcg.machine import Machine, load_machine
from search.cost.collectives import seconds
from search.cost.cost import CostModel
from search.map.rules.cuts import Cuts
from search.pipeline import outline as outlines
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import outline
from search.pipeline.stage_batches import StageBatches, alike
from search.pipeline.stage_memory import PLAIN, Sparing, may_fit
from search.pipeline.streams import streams
from substitutions.rules.store import load_library

STAGES, SLICES, DEVICES = 2, 4, 8
RECOMPUTED = Sparing(left=0.1, time=4 / 3)


def groups_of(memory: float) -> StageBatches:
    """Groups of four devices with ``memory`` bytes each."""
    machine = load_machine("dgx-a100")
    own = {"memory_bytes": int(memory), "reserved_bytes": 0}
    device = machine.device.model_copy(update=own)
    machine = machine.model_copy(update={"device": device}).with_devices(DEVICES)
    return alike(batches_on(machine.with_devices(DEVICES // STAGES)), machine, STAGES)


def batches_on(machine: Machine) -> MicroBatches:
    graph, library = layers(4, 512, 1024), load_library()
    source, cuts = streams(graph, library), Cuts.of_rules(library.concrete(graph))
    return MicroBatches(source, CostModel(machine), cuts, SLICES)


@pytest.mark.parametrize("sparing", [PLAIN, RECOMPUTED, replace(RECOMPUTED, parts=4)])
def test_groups_that_may_not_fit_have_no_outline(sparing, monkeypatch):
    fits: list[bool] = []
    for megabytes in (1, 2, 4, 6, 8, 12, 24):
        groups = groups_of(megabytes * 1e6)
        fits.append(may_fit(groups, "1f1b", sparing))
        with monkeypatch.context() as patch:
            patch.setattr(outlines, "may_fit", lambda *_: True)
            made = outline(groups, "1f1b", groups.choose(MicroBatches.choose), sparing)
        assert made is None or fits[-1]
    assert {*fits} == {False, True}


def test_outline_counts_the_gathering_of_weights_in_parts():
    groups = groups_of(1e12)
    batches = groups.each[0]
    apart = batches.choose(1e3)  # no device has a copy of another's weights
    copied = batches.chosen([_data_parallel(batches, i) for i in range(len(batches.nodes))])
    assert not batches.gathering(apart).any()
    ring = batches.spaces.mesh.peers((1 << len(batches.spaces.mesh)) - 1).ring
    weights = copied.costs.weights
    expected = np.where(weights > 0, seconds(ring, weights), 0.0)
    np.testing.assert_allclose(batches.gathering(copied), expected)
    once, often = (
        outline(groups, "1f1b", (copied,) * STAGES, Sparing(parts=parts)) for parts in (1, 4)
    )
    assert once is not None
    assert often is not None
    assert once.seconds < often.seconds


def _data_parallel(batches: MicroBatches, number: int) -> int:
    """The place of the strategy that cuts the samples of an operator, or else of one that cuts
    nothing."""
    node = batches.nodes[number]
    space, mesh = batches.spaces.of(node), batches.spaces.mesh
    names = [axis.name for axis in space.axes]
    sample = batches.streams.axes.get(node)
    place = space.place((names.index(sample) if sample in names else -1,) * len(mesh))
    return 0 if place is None else place


def test_equal_prices_of_memory_share_a_choice():
    batches = groups_of(1e12).each[0]
    assert batches.choose(1e-9, 2.0) is batches.choose(1e-9, 2.0)
    assert batches.choose(1e-9, 2.0) is not batches.choose(1e-9, 1.0)
