"""Strategies that are chosen for the stages of a pipeline, against all strategies."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mixed import mixed
from support.small.every_pipeline import small_chain

from pcg.graph.graph import Graph, apply, leaf
from pcg.machine import Machine, load_machine
from pcg.ops import OPERATORS
from pcg.placement.layout import operand_layout, output_layout
from pcg.placement.schedule import trace
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.progress import Phases, Teller
from search.map.rules.cuts import Cuts
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.chunk_weights import ChunkWeights, plain_weights
from search.pipeline.built.in_stages import chosen_in_stages
from search.pipeline.built.pricer import PipelinePricer
from search.pipeline.crossing import Crossings
from search.pipeline.improving import PipelineImprover
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline, outline
from search.pipeline.stage_batches import StageBatches, by_kind, group_costs, in_stages
from search.pipeline.streams import streams
from substitutions.rules.store import Library, load_library

MACHINES = (
    load_machine("dgx-a100").with_devices(4),
    mixed(load_machine("p3-16xlarge"), load_machine("dgx-a100"), per_node=2, nodes=2),
)
"""Two devices for each of two stages: of one kind, and of two."""
SIZES = (6, 48, 768, 3072)
GAINING = (17, 9)
"""A chain, and a number of micro-batches, for which it pays to choose again."""
WEIGHING = (30, 8)
"""The same for weights of the stages."""


@cache
def library() -> Library:
    return load_library()


def groups_of(graph: Graph, machine: Machine, slices: int) -> StageBatches:
    """Two stages of a model."""
    source = streams(graph, library())
    cuts = Cuts.of_rules(library().concrete(source.graph))
    costs = group_costs(machine, 2, CostModel)
    return StageBatches(machine, by_kind(costs, lambda c: MicroBatches(source, c, cuts, slices)))


def chain(batch: int, widths: list[int]) -> Graph:
    """Products one after the other, and a loss."""
    value = leaf("input", "x", (batch, widths[0]))
    for number, pair in enumerate(pairwise(widths)):
        value = apply(OPERATORS["matmul"](), value, leaf("weight", f"w{number}", pair))
    return Graph((apply(OPERATORS["mean_loss"](), value),))


def seconds(one: Outline, crossings: Crossings, weights: ChunkWeights | None = None) -> float:
    """The sum over both stages by their weights, and of the tensors between them as they are in the
    graph that is built. By default, all seconds count alike."""
    micro, once = weights or plain_weights(2, one.groups.slices)
    groups, stages = one.groups, [0] * one.bounds[1] + [1] * (one.bounds[2] - one.bounds[1])
    places = [
        group.spaces.of(node).place(strategy)
        for group, node, strategy in zip(
            (groups.each[stage] for stage in stages),
            one.batches.nodes,
            one.chosen.strategies,
            strict=True,
        )
    ]
    total = 0.0
    for at, stage in enumerate(stages):
        costs = groups.each[stage].tables()[0][at]
        own_micro, own_once = costs.micro[places[at]], costs.once[places[at]]
        total += float(micro[stage] * own_micro + once[stage] * own_once)
    for stage, group in enumerate(groups.each):
        for own in group.tables()[1]:
            if stages[own.source] == stages[own.target] == stage:
                times = own.times * (micro if own.repeated else once)[stage]
                one_way = own.seconds.forth[places[own.source], places[own.target]]
                total += times * float(one_way)
    made = PipelineParts(one.batches, one.chosen, one.bounds).placed()
    for node, view in made.views.items():
        for position, value in enumerate(node.inputs):
            source, _ = trace(value)
            there = made.views.get(source.node)
            if there is not None and there.start // groups.size != view.start // groups.size:
                ends = output_layout(source.node, source.port, there), (node, position, view)
                both = crossings.seconds(ends[0], operand_layout(*ends[1]))
                total += sum(micro) * both  # gradients go back
    return total


@settings(max_examples=6, deadline=None)
@given(
    machine=st.sampled_from(MACHINES),
    batch=st.sampled_from((6, 64, 1024)),
    widths=st.lists(st.sampled_from(SIZES), min_size=3, max_size=3),
    bound=st.integers(1, 2),
    weights=st.none()
    | st.builds(ChunkWeights, *(st.tuples(st.floats(0.1, 8.0), st.floats(0.1, 8.0)),) * 2),
)
def test_no_strategies_take_less_time_in_stages(machine, batch, widths, bound, weights):
    groups = groups_of(chain(batch, widths), machine, 2)
    crossings = Crossings(CostModel(machine))
    first, nodes = groups.choose(MicroBatches.choose), groups.each[0].nodes
    bounds = (0, bound, len(nodes))
    found = chosen_in_stages(Outline(groups, first, bounds, 0.0), crossings, 64, weights)
    spaces = [range(len(groups.each[0].spaces.of(node))) for node in nodes]
    every = (
        Outline(groups, tuple(own.chosen(places) for own in groups.each), bounds, 0.0)
        for places in product(*spaces)
    )
    least = min(seconds(one, crossings, weights) for one in every)
    assert seconds(found, crossings, weights) == pytest.approx(least, rel=1e-5)


def outline_of(seed: int, slices: int) -> tuple[Outline, PipelinePricer]:
    given = small_chain(seed)
    groups = groups_of(given.graph, given.machine, slices)
    one = outline(groups, "1f1b", groups.choose(MicroBatches.choose))
    assert one is not None
    crossings = Crossings(CostModel(given.machine))
    return one, PipelinePricer(crossings, "1f1b", Recompute.NONE, Phases(), Teller())


def test_a_pipeline_with_strategies_for_its_stages_is_faster():
    one, pricer = outline_of(*GAINING)
    again = chosen_in_stages(one, pricer.crossings, 64)
    assert pricer.built(again).seconds < 0.95 * pricer.built(one).seconds


@pytest.mark.parametrize("most", [1, 2, 5])
def test_few_strategies_at_bounds_are_no_worse_than_those_before(most):
    one, pricer = outline_of(*GAINING)
    again = chosen_in_stages(one, pricer.crossings, most)
    before, after = (seconds(own, pricer.crossings) for own in (one, again))
    assert after <= before * (1 + 1e-5)


def test_the_search_chooses_again():
    one, pricer = outline_of(*GAINING)
    built = [pricer.built(one)]
    PipelineImprover(pricer, float("inf"), built, brief=True).improve()
    assert min(own.seconds for own in built if own.fits) < 0.95 * built[0].seconds
    assert in_stages(built[-1].outline.choices, one.bounds).strategies != one.chosen.strategies


def test_the_search_weighs_stages_by_how_much_they_delay_a_step():
    one, pricer = outline_of(*WEIGHING)
    built = [pricer.built(one)]
    alike = pricer.built(chosen_in_stages(one, pricer.crossings, 64))
    PipelineImprover(pricer, float("inf"), built, brief=True).improve()
    least = min(own.seconds for own in built if own.fits)
    assert least < 0.95 * min(alike.seconds, built[0].seconds)
