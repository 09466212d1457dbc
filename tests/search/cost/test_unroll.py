"""A schedule of a few blocks, unrolled, equals that of the whole model: seconds and bytes to the
last bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.deep import blocks, with_bias, with_pairs

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.placement.schedule import Schedule, schedule
from pcg.plan.training import Training
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.pointwise_chains import worth_recomputing
from search.cost.simulate import recomputing
from search.cost.unroll import NotAlike, Repeated
from search.map.building import Builder
from search.map.choose.choosing import ALL, Choice, Chooser, Exposed
from search.map.rules.cuts import Cuts
from search.split.blocks import blocks_of, repeated
from search.substitute.variants import whole_choice
from substitutions.rules.store import load_library

BLOCKS_KEPT = 8
TRAINING = Training("adam", "bf16")


def chooser_of(graph: Graph, more: int, devices: int = 4) -> Chooser:
    cost = CostModel(load_machine("dgx-a100").with_devices(devices), TRAINING)
    return Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)), more=more)


def scheduled(chooser: Chooser, choice: Choice) -> Schedule:
    cut = Builder(chooser.spaces).placed(choice)
    return schedule(cut.graph, cut.views)


@pytest.mark.parametrize("model", [blocks, with_bias, with_pairs])
@settings(max_examples=6, deadline=None)
@given(
    more=st.integers(1, 5),
    price=st.sampled_from([0.0, 1e-12, 1e-10]),
    exposed=st.sampled_from([ALL, Exposed(exchange=0.0, loss=0.0), Exposed(resharding=0.1)]),
)
def test_unrolled_blocks_equal_the_whole_schedule(model, more: int, price: float, exposed: Exposed):
    short, whole = model(BLOCKS_KEPT), model(BLOCKS_KEPT + more)
    chooser = chooser_of(short, more)
    choice = chooser.choose(short, price, exposed=exposed)
    every = whole_choice(choice, whole, more)
    assert every is not None
    few, full = scheduled(chooser, choice), scheduled(chooser, every)
    often, cost = repeated(short, more), chooser.pricing.cost
    own, whole_variant = blocks_of(short), blocks_of(whole)
    assert own is not None
    assert whole_variant is not None
    for remade, again in (
        (frozenset(), frozenset()),
        (
            worth_recomputing(few, own.crossing(few)),
            worth_recomputing(full, whole_variant.crossing(full)),
        ),
    ):
        assert (
            recomputing(few, cost, remade, often).simulation
            == recomputing(full, cost, again).simulation
        )
        assert peak_memory(few, TRAINING, remade, often) == peak_memory(full, TRAINING, again)


@settings(max_examples=6, deadline=None)
@given(more=st.integers(1, 5), price=st.sampled_from([0.0, 1e-11]))
def test_the_sum_of_a_few_blocks_is_that_of_the_whole(more: int, price: float):
    """Blocks that stand for others count as many times in the sum that is minimized."""
    short, whole = blocks(BLOCKS_KEPT), blocks(BLOCKS_KEPT + more)
    chooser, other = chooser_of(short, more), chooser_of(whole, 0)
    choice = chooser.choose(short, price)
    every = whole_choice(choice, whole, more)
    assert every is not None
    fixed = other.choose(whole, price, fixed=every.strategies)
    assert fixed.seconds == pytest.approx(choice.seconds, rel=1e-6)


def test_blocks_that_are_cut_in_two_ways_are_not_alike():
    short = blocks(BLOCKS_KEPT)
    chooser = chooser_of(short, 0)
    choice = chooser.choose(short)
    own = blocks_of(short)
    assert own is not None
    node = short.operators[own.begin]
    space = chooser.spaces.of(node)
    now = choice.strategies[node]
    other = next(one for one in map(space.strategy, range(len(space))) if one != now)
    odd = Choice(short, {**choice.strategies, node: other}, 0.0)
    steps = scheduled(chooser, odd)
    with pytest.raises(NotAlike):
        recomputing(steps, chooser.pricing.cost, frozenset(), repeated(short, 3))


def test_a_block_needs_neighbours():
    short = blocks(BLOCKS_KEPT)
    chooser = chooser_of(short, 0)
    steps = scheduled(chooser, chooser.choose(short))
    for first in (0, len(short.operators) - 1):
        with pytest.raises(NotAlike):
            peak_memory(steps, TRAINING, (), Repeated(first, 5, 2))
