"""Tensors cross stages whole or in parts, whichever takes less time, priced as they run."""

from __future__ import annotations

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from hypothesis import given
from hypothesis import strategies as st
from support.plans.pipelines import by_degrees, two_nodes

from pcg.graph.graph import Graph
from pcg.placement.in_parts import TransferParts, layout_in_parts, stated_parts
from pcg.placement.layout import Layout, Piece, default_layout
from pcg.placement.schedule import LeafAtHome, Reshard, schedule, trace
from pcg.placement.transfer import transfer
from pcg.types.tensor import Degrees, ParallelTensor
from search.choices import IndexRole
from search.cost.cost import CostModel
from search.map.space.axes import Mesh
from search.pipeline.crossing import Crossings, crossing_seconds
from search.pipeline.planner import PipelinePlanner
from search.report.spending import charged
from search.report.trace import price_plan
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


def ways(graph: Graph) -> set[TransferParts]:
    """The parts in which tensors cross stages."""
    chains = (trace(value)[1] for n in graph.operators if not n.is_parallel for value in n.inputs)
    return {how for chain in chains if (how := stated_parts(chain))}


def copied(shape: tuple[int, ...], first: int) -> Layout:
    """A layout of copies on two devices."""
    ones = (1,) * len(shape)
    tensor = ParallelTensor(shape, Degrees(ones, ones, 2, 1))
    return Layout(tensor, tuple((first + n, Piece(0, (0,) * len(shape))) for n in range(2)))


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 64, 1000]), min_size=1, max_size=3),
    bandwidth=st.sampled_from([1e7, 1e9, 1e10, 3e11]),
)
def test_fastest_way_to_cross_stages_is_chosen(shape, bandwidth):
    """The best of all dimensions, if both stages are busy during the crossing."""
    cost = CostModel(two_nodes(bandwidth))
    source, wanted = copied(tuple(shape), 0), copied(tuple(shape), 2)

    def seconds(a: Layout, b: Layout) -> float:
        return cost.movement(transfer(a, b)).longest

    taken: dict[TransferParts | None, float] = {None: 2 * seconds(source, wanted)}
    for dim in range(len(shape)):
        between = layout_in_parts(source, wanted, TransferParts(dim, 2))
        if between is not None:
            taken[TransferParts(dim, 2)] = 2 * seconds(source, between) + seconds(between, wanted)
    best = Crossings(cost).best(source, wanted)
    assert taken[best] == pytest.approx(min(taken.values()), rel=1e-9)


@pytest.mark.parametrize("bandwidth", [1e7, 1e9, 25e9])
def test_estimates_equal_those_of_the_built_pipeline(bandwidth):
    machine = two_nodes(bandwidth)
    cost = CostModel(machine)
    source, wanted = copied((64, 1000), 0), copied((64, 1000), 2)
    how = Crossings(cost).best(source, wanted)
    between = layout_in_parts(source, wanted, how) if how else wanted
    assert between is not None
    exact = cost.movement(transfer(source, between)).longest
    if how:
        exact += cost.movement(transfer(between, wanted)).longest / 2
    peers = Mesh(machine.with_devices(2)).peers(1)
    assert peers.members == 2
    actual = crossing_seconds(machine.link(0, 2), peers, 64 * 1000 * cost.itemsize)
    assert actual == pytest.approx(exact, rel=1e-9)


def test_tensors_cross_whole_if_all_links_are_alike():
    machine = two_nodes(300e9)
    one = machine.model_copy(
        update={"levels": (machine.levels[0].model_copy(update={"count": 4}), machine.levels[1])}
    )
    crossings = Crossings(CostModel(one.with_nodes(1)))
    assert crossings.best(copied((4, 4), 0), copied((4, 4), 2)) is None
    assert Crossings(CostModel(two_nodes(1e7))).best(copied((4, 64), 0), copied((4, 64), 2))


def test_one_device_gets_a_tensor_whole():
    source, wanted = (default_layout(ParallelTensor.whole((8, 1000)), n) for n in (0, 2))
    assert Crossings(CostModel(two_nodes(1e7))).best(source, wanted) is None


def test_plans_by_hand_cross_stages_in_parts_by_a_rule(library):
    """An audit follows these plans, and their price is that of the program."""
    plan = by_degrees("tensor=2,pipeline=2,interleave=2,micro-batches=4", library)
    assert ways(plan.graph) == {TransferParts(0, 2)}
    checked = replay(plan, library.rules)
    assert not checked.findings
    price = price_plan(plan, CostModel(two_nodes(1e7)))
    assert price.seconds == plan.estimates.step_seconds
    sequence = by_degrees("tensor=2,pipeline=2,micro-batches=4,sequence", library)
    assert not ways(sequence.graph), "each device has its own part of the sequence"


def test_pipelines_of_the_search_cross_stages_in_parts(library):
    """Pipelines that cut neither the batch nor a sequence. If they may, the operators behind a
    bound read parts, which arrive one by one."""
    roles = frozenset({IndexRole.HEAD, IndexRole.REDUCTION})
    machine = two_nodes(1e9)
    planner = PipelinePlanner(machine, library, dimensions=roles)
    graph = graph_of(Gpt(2, 1024, 8, 64, 12, dropout=0.0), 8)
    plan = planner.plan("decoder", graph).plan
    assert ways(plan.graph)
    assert not replay(plan, library.rules).findings


def test_crossing_and_gather_are_charged_to_the_operator_that_reads_them(library):
    plan = by_degrees("tensor=2,pipeline=2,micro-batches=4", library)
    steps = schedule(plan.graph, plan.views)
    owners, _ = charged(steps)
    timed = [step for step in steps.steps if not isinstance(step, LeafAtHome)]
    at = next(
        i
        for i, step in enumerate(timed)
        if isinstance(step, Reshard)
        and step.target.layout.type.degrees.dims != (1, 1, 1)
        and set(step.source.layout.devices).isdisjoint(step.target.layout.devices)
        and not step.source.value.node.is_leaf
    )
    cross, gather = timed[at], timed[at + 1]
    assert isinstance(cross, Reshard)
    assert isinstance(gather, Reshard)
    assert gather.source == cross.target
    assert owners[at] == owners[at + 1]
    assert set(plan.views[owners[at]].devices) == {2, 3}
