"""The numbers of stages and micro-batches that are tried."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.deep import blocks
from support.plans.pipelines import layers

from pcg.capture import capture
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models.resnext import ResNext, ResNextSize
from search.cost.cost import CostModel
from search.cost.progress import Phases, Teller
from search.map.rules.cuts import Cuts
from search.map.space.allow import everything
from search.pipeline import tries as module
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import (
    interleaved,
    micro_batch_counts,
    outline,
    stage_counts,
    with_weights_pass,
)
from search.pipeline.stage_batches import alike
from search.pipeline.streams import streams
from search.pipeline.tries import OutlineSearch, beside, ladder
from search.split.blocks import blocks_of
from substitutions.rules.store import load_library


@given(st.integers(1, 5000), st.integers(1, 70))
def test_counts_are_the_divisors_that_keep_stages_busy(batch, stages):
    counts = micro_batch_counts(batch, stages)
    least = max(stages, 2)
    assert counts == [n for n in range(least, batch + 1) if batch % n == 0]


@given(st.integers(1, 50000), st.integers(1, 70))
def test_every_count_is_a_rung_or_beside_two(batch, stages):
    counts = micro_batch_counts(batch, stages)
    rungs = ladder(counts)
    assert all(b >= 2 * a for a, b in pairwise(rungs))
    assert len(rungs) <= batch.bit_length()
    for a, b in pairwise(rungs):
        assert beside(counts, a)[1] == [n for n in counts if a < n < b]
        assert beside(counts, b)[0] == [n for n in reversed(counts) if a < n < b]
    seen = {*rungs, *(n for rung in rungs for side in beside(counts, rung) for n in side)}
    assert seen == set(counts)


def test_counts_of_published_pipelines_are_there():
    assert 3072 in micro_batch_counts(3072, 64)
    assert 64 in micro_batch_counts(64, 64)


@pytest.mark.parametrize(
    ("count", "batch"), [(6, 36), pytest.param(24, 96, marks=pytest.mark.soak)]
)
def test_the_best_is_as_good_as_the_best_of_all(count, batch):
    """By exhaustive search, also of stages that are deeper than usual, on 24 devices."""
    graph, library = layers(count, batch, 256), load_library()
    machine = load_machine("summit").with_nodes(count // 6)
    source, cuts = streams(graph, library), Cuts.of_rules(library.concrete(graph))
    tries = OutlineSearch(
        source, cuts, machine, "1f1b", CostModel, everything, inf, Phases(), Teller()
    )
    every: list[float] = []
    for stages, size in stage_counts(machine):
        cost = CostModel(machine.with_devices(size))
        for slices in micro_batch_counts(batch, stages):
            groups = alike(MicroBatches(source, cost, cuts, slices), machine, stages)
            made = outline(groups, "1f1b", groups.choose(MicroBatches.choose))
            if made is not None:
                ways = (interleaved(made), with_weights_pass(made))
                every += [made.seconds] if stages == 1 else [way.seconds for way in ways]
    tried = list(tries)
    assert min(o.seconds for o in tried) == pytest.approx(min(every))
    assert len(tried) < len(every) / 2


def tries_of(graph: Graph) -> OutlineSearch:
    library = load_library()
    source, cuts = streams(graph, library), Cuts.of_rules(library.concrete(graph))
    machine = load_machine("dgx-a100").with_devices(2)
    given = source, cuts, machine, "1f1b", CostModel, everything, inf, Phases(), Teller()
    return OutlineSearch(*given)


def test_deep_pipelines_of_whole_blocks_come_before_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_FREE", 0)
    tries = tries_of(blocks(13))
    found = blocks_of(tries.source.graph)
    assert found is not None
    assert found.count == 12
    assert tries._deeper([5, 6, 8, 12]) == [6, 12]
    assert tries._deeper([5, 8]) == [5, 8]
    monkeypatch.setattr(module, "MOST_FREE", 10_000)
    assert tries._deeper([5, 6, 8, 12]) == [5, 6, 8, 12]


@pytest.mark.parametrize(
    ("seconds", "least", "asked"),
    [
        ([9.0, 7.0, 8.0, 5.0], 7.0, 3),  # clearly worse: the ladder ends
        ([9.0, 7.0, 7.5, 5.0], 5.0, 4),
        ([9.0, 7.0, 7.5, None], 7.0, 4),
        ([inf, inf, 7.0, 5.0], 5.0, 4),
    ],
)
def test_a_rung_that_is_hardly_worse_does_not_end_the_ladder(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float | None], least: float, asked: int
):
    tries, left = tries_of(layers(3, 16, 8)), iter(seconds)

    def tried(*_: object) -> Generator[object, None, float | None]:
        yield
        return next(left)

    monkeypatch.setattr(OutlineSearch, "_tried", tried)
    got: list[object] = []

    def climbed() -> Generator[object]:
        got.append((yield from tries._climbed(2)))

    assert len(list(climbed())) == asked
    assert got == [least]


def test_slices_hold_whole_groups_of_samples():
    """Batch norms take statistics over groups of samples, which no slice may cut."""
    size = ResNextSize((1, 1), 16, 1, 64, 24, 32)
    images, labels = torch.zeros(24, 3, 32, 32), torch.zeros(24, dtype=torch.long)
    graph = capture(ResNext(size), (images, labels), "wide", 8).graph
    source = streams(graph, load_library())
    assert micro_batch_counts(source.batch) == [2, 4, 8]
    graph = capture(ResNext(size), (images[:9], labels[:9]), "wide", 3).graph
    assert micro_batch_counts(streams(graph, load_library()).batch) == [3]
