"""Alpa's layers and stages, against all ways to cut a row."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st

from search.planners.alpa.layers import layers
from search.planners.alpa.stages import APART, best_stages
from search.planners.row_cuts import operations
from search.split.blocks import blocks_of


def cuts(count, parts):
    for inner in combinations(range(1, count), parts - 1):
        yield (0, *inner, count)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_stages_are_the_best_of_all(data):
    count = data.draw(st.integers(1, 7))
    stages = data.draw(st.integers(1, count))
    micro = data.draw(st.integers(1, 9))
    drawn = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    table = drawn.integers(1, 12, (count, count + 1, stages)) * 1e-3
    table[drawn.random(table.shape) < 0.2] = inf

    def latency(bounds):
        own = [table[a, b, stages - 1 - i] for i, (a, b) in enumerate(pairwise(bounds))]
        return sum(own) + (micro - 1) * max(own) if max(own) < inf else inf

    stages_of = best_stages(count, stages, micro, lambda a, b, after: table[a, b, after])
    least = min(map(latency, cuts(count, stages)))
    if stages_of is None:
        assert least == inf
        return
    assert stages_of[0] == pytest.approx(least, abs=micro * APART)
    assert stages_of[0] == pytest.approx(latency(stages_of[1]))


def test_layers_of_a_decoder_are_its_blocks():
    graph = graph_of(Gpt(4, 64, 8, 16, 64), 4)
    blocks = blocks_of(graph)
    assert blocks is not None
    bounds = layers(graph, operations(graph), 4)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(graph.operators), 5)
    flops = operations(graph)
    each = [flops[a:b].sum() for a, b in pairwise(bounds)]
    assert max(each) <= 1.5 * flops.sum() / 4
    # Layers exchange the same as blocks: one tensor of tokens.
    number = {node: i for i, node in enumerate(graph.operators)}
    for bound in bounds[1:-1]:
        crossing = {
            value
            for node in graph.operators[bound:]
            for value in node.inputs
            if number.get(value.node, bound) < bound
        }
        assert len([v for v in crossing if v.type.rank == 3]) == 1


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_number_of_layers_is_the_one_asked_for(count):
    graph = graph_of(Gpt(2, 64, 8, 16, 64), 4)
    bounds = layers(graph, operations(graph), count)
    assert len(bounds) == 1 + min(count, len(graph.operators))
    assert all(a < b for a, b in pairwise(bounds))
