"""Repeated blocks are found, and a graph with fewer of them is that of a shallower model."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.deep import blocks, with_bias, with_look_back

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from search.split import blocks as module
from search.split.blocks import BLOCKS_KEPT, blocks_of, folded


def signatures(graph: Graph) -> list[object]:
    return [node.signature for node in graph.operators]


@pytest.mark.parametrize("model", [blocks, with_bias])
@settings(max_examples=20, deadline=None)
@given(count=st.integers(4, 20), data=st.data())
def test_fewer_blocks_are_a_model_less_deep(model, count: int, data: st.DataObject):
    fewer = data.draw(st.integers(1, count - 3))
    own = blocks_of(model(count))
    assert own is not None
    assert own.count >= count - 1
    less = own.without(fewer)
    assert less is not None
    less.check()
    assert signatures(less) == signatures(model(count - fewer))
    assert {leaf.leaf.name for leaf in less.leaves} <= {leaf.leaf.name for leaf in own.graph.leaves}


@pytest.mark.parametrize("model", [blocks, with_bias])
def test_each_operator_has_a_stand_in_with_its_signature(model):
    whole = model(20)
    own = blocks_of(whole)
    assert own is not None
    less = own.without(own.count - BLOCKS_KEPT)
    assert less is not None
    short, more = blocks_of(less), own.count - BLOCKS_KEPT
    assert short is not None
    stand_ins = short.stand_ins(whole, more)
    assert stand_ins is not None
    often = Counter(stand_ins.values())
    assert dict(often) == {**dict.fromkeys(less.operators, 1), **short.times(more)}
    for node, other in stand_ins.items():
        assert node.signature == other.signature
    assert short.stand_ins(whole, more + 1) is None
    assert short.stand_ins(parse_graph("x = input[4, 4]\nreturn mean_loss(x)"), more) is None


def test_the_first_and_the_last_block_may_be_cut_otherwise():
    own = blocks_of(blocks(BLOCKS_KEPT))
    assert own is not None
    looks = own.colours()
    sizes = Counter(Counter(looks.values()).values())
    assert sizes[own.count - 2] == own.length
    assert sizes[1] == len(own.graph.operators) - own.length * (own.count - 2)


def test_block_that_a_later_operator_reads_cannot_be_left_out():
    own = blocks_of(with_look_back(BLOCKS_KEPT + 4))
    assert own is not None
    assert own.without(4) is None


def test_a_graph_that_is_not_deep_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch):
    assert folded(blocks(20)) is None
    monkeypatch.setattr(module, "MOST_FREE", 20)
    graph = folded(blocks(20))
    assert graph is not None
    assert len(graph.graph.operators) < len(blocks(20).operators)
    assert folded(blocks(5)) is None
    assert folded(with_look_back(20)) is None
    assert folded(parse_graph("x = input[4, 4]\nreturn mean_loss(x)")) is None
