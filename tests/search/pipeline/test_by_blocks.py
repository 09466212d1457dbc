"""Pipelines of deep models by hand: whole blocks, the same strategies in each, and what is kept."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.graphs.deep import blocks, with_bias

from pcg.machine import Machine, load_machine
from search.choices import Recompute
from search.cost.cost import CostModel
from search.map.choose import marginals
from search.map.choose.choosing import least_places
from search.map.choose.factors import Places
from search.map.rules.cuts import Cuts
from search.pipeline import by_blocks as module
from search.pipeline import micro
from search.pipeline.by_blocks import by_blocks, crossing_bytes
from search.pipeline.micro import MicroBatchCosts, MicroBatches
from search.pipeline.outline import Outline
from search.pipeline.planner import PipelinePlanner, _ranked
from search.pipeline.stage_batches import StageBatches, alike
from search.pipeline.stage_memory import PLAIN
from search.pipeline.streams import streams
from search.split.blocks import blocks_of
from substitutions.rules.store import load_library

STAGES, SLICES, DEVICES, COUNT = 4, 8, 8, 12


def machine_of(memory: float) -> Machine:
    """Devices with ``memory`` bytes each."""
    machine = load_machine("dgx-a100")
    own = {"memory_bytes": int(memory), "reserved_bytes": 0}
    device = machine.device.model_copy(update=own)
    return machine.model_copy(update={"device": device}).with_devices(DEVICES)


def groups_of(memory: float, graph=None, slices: int = SLICES) -> StageBatches:
    machine, library = machine_of(memory), load_library()
    source = streams(blocks(COUNT) if graph is None else graph, library)
    cost = CostModel(machine.with_devices(DEVICES // STAGES))
    batches = MicroBatches(source, cost, Cuts(library.concrete(source.graph)), slices)
    return alike(batches, machine, STAGES)


@pytest.fixture(autouse=True)
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FREE", 0)


def outlines(memory: float, recompute: Recompute = Recompute.AUTO) -> list[Outline]:
    return list(by_blocks(groups_of(memory), "1f1b", recompute))


def test_stages_are_whole_blocks_with_the_same_strategies():
    (made,) = outlines(1e12)
    found = blocks_of(made.batches.streams.graph)
    assert found is not None
    first, length = found.first, found.length
    assert all((bound - first) % length == 0 for bound in made.bounds[1:-1])
    own = made.chosen.strategies
    inner = [own[first + n * length :][:length] for n in range(1, found.count - 1)]
    assert len(set(inner)) == 1
    assert made.sparing == PLAIN
    assert made.by_hand


def test_stages_of_three_blocks_have_three_chunks(monkeypatch: pytest.MonkeyPatch):
    """Two chunks would be uneven, and take longer than one. Three are whole blocks."""
    groups = groups_of(1e12, blocks(COUNT + 1), slices=2 * SLICES)
    found = blocks_of(groups.each[0].streams.graph)
    assert found is not None
    assert found.count == 3 * STAGES
    with monkeypatch.context() as patch:
        patch.setattr(module, "IN_VAIN", 1)
        (given_up,) = by_blocks(groups, "1f1b", Recompute.AUTO)
    (made,) = by_blocks(groups, "1f1b", Recompute.AUTO)
    assert (given_up.interleave, made.interleave) == (1, 3)
    assert made.seconds < given_up.seconds


def test_no_outline_of_a_small_graph(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_FREE", 10_000)
    assert outlines(1e12) == []


def test_as_much_is_recomputed_as_is_needed_to_fit():
    library = load_library()
    left: list[float] = []
    for memory in (1.2e9, 0.7e9, 0.55e9, 0.5e9, 1e8):
        made = outlines(memory)
        assert bool(made) == (memory > 1e8)
        for one in made:
            left.append(one.sparing.left)
            planner = PipelinePlanner(machine_of(memory), library)
            built = planner._pricer.built(one)
            assert built.excess <= 0
            # Cheap results are recomputed first, which the estimate leaves out.
            assert 0.8 * one.seconds < built.seconds < 1.01 * one.seconds
            assert bool(outlines(memory, Recompute.NONE)) == (one.sparing == PLAIN)
    assert left == sorted(left, reverse=True)
    assert left[0] == 1.0
    assert left[-1] < 0.2


def test_residual_is_all_that_crosses_between_blocks():
    groups = groups_of(1e12)
    batches = groups.each[0]
    found = blocks_of(batches.streams.graph)
    assert found is not None
    (chosen,) = batches.by_hand() or [batches.choose()]
    held = crossing_bytes(batches, chosen, found)
    residual = 4096 // SLICES * 2048 * 4
    assert held in (residual, residual / 2)


@pytest.mark.parametrize("prices", [(0.0, 0.0), (1e-9, 1e-9), (0.0, 1e-7)])
def test_a_choice_is_no_worse_than_strategies_by_hand(monkeypatch: pytest.MonkeyPatch, prices):
    """Also if the heuristic considers next to nothing else."""
    monkeypatch.setattr(micro, "MOST_FREE", 0)
    monkeypatch.setattr(marginals, "FEW_ENTRIES", 0)
    monkeypatch.setattr(micro, "least_places", partial(least_places, most=1))
    monkeypatch.setattr(marginals, "promising", _worst)
    batches = groups_of(1e12).each[0]

    def seconds(costs: MicroBatchCosts) -> float:
        held = prices[0] * costs.weights + prices[1] * costs.activations
        return float((SLICES * costs.micro + costs.once + held).sum())

    chosen, hand = batches.choose(*prices), batches.by_hand()
    assert hand
    assert all(seconds(chosen.costs) <= seconds(one.costs) for one in hand)


def _worst(sizes, factors, most, also) -> list[Places]:
    """The last value of each variable, and those of known choices."""
    each = ([size - 1, *(choice[v] for choice in also)] for v, size in enumerate(sizes))
    return [np.unique(np.array(own, np.intp)) for own in each]


def test_repeated_elements_of_a_view_take_no_memory(monkeypatch: pytest.MonkeyPatch):
    batches = groups_of(1e12, with_bias(4)).each[0]
    number = next(i for i, n in enumerate(batches.nodes) if n.name == "expand_vector")
    value = batches.nodes[number].outputs[0]
    assert batches.streams.shown(value) == pytest.approx(1 / 4096)
    assert batches.streams.shown(batches.nodes[0].outputs[0]) == 1.0
    counted = batches.tables()[0][number].activations
    batches.forget()
    monkeypatch.setattr(type(batches.streams), "shown", lambda *_: 1.0)
    assert (counted < batches.tables()[0][number].activations).all()


def test_the_fastest_by_hand_is_built_first():
    class Fake:
        def __init__(self, seconds: float, by_hand: bool) -> None:
            self.seconds, self.by_hand = seconds, by_hand

    given = [Fake(3.0, True), Fake(1.0, False), Fake(2.0, True), Fake(4.0, False)]
    ranked = [(one.seconds, one.by_hand) for one in _ranked(given)]  # pyright: ignore[reportArgumentType]
    assert ranked == [(2.0, True), (1.0, False), (3.0, True), (4.0, False)]
