"""Random changes of plans: what may follow, what does follow, and its function and time."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.behaviour import assert_same
from support.graphs.strategies import training_graphs
from support.small.states import chosen, on_device
from support.small.towers import TOWERS, chooser_of

from pcg.graph.graph import Graph
from pcg.placement.order import order_problem
from pcg.plan.text import parse_graph
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.space.mapping import MappedAxis, OperatorMapping, mapping_of
from search.map.space.strategies import starts
from search.refine.delta import DeltaSimulator
from search.refine.mappings import NumberedMappings, PlanState
from search.refine.moves import BROAD, FINE, ORDERS, Moves, Shares
from substitutions.rules.store import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def moves_of(graph: Graph, library: Library) -> Moves:
    return Moves(graph, chooser_of(graph, library).spaces, 5, NumberedMappings())


@given(training_graphs(cut=False), st.integers(0, 99), st.sampled_from([3, 5, 8]))
def test_moves_keep_the_function_and_price_it_as_its_plan(library, graph, seed, devices):
    chooser = chooser_of(graph, library, devices)
    builder = Builder(chooser.spaces)
    delta = DeltaSimulator.of(graph, builder, chooser.pricing.cost)
    moves = Moves(graph, chooser.spaces, devices, delta.states.mappings, seed)
    state = on_device(graph, devices - 1)
    for shares in (BROAD, FINE, ORDERS) * 3:
        state = moves.moved(moves.apart(state) or state, shares)
    choice = chosen(graph, state)
    cut = builder.cut(choice)
    assert_same(graph, cut.graph)
    for view in cut.views.values():
        assert view.is_injective
        assert 0 <= min(view.devices) <= max(view.devices) < devices
    assert order_problem(cut.graph, cut.order or cut.graph.computing) is None
    steps = cut.schedule()
    assert delta.seconds(choice) == simulate(steps, chooser.pricing.cost).step_seconds


def test_every_strategy_can_be_drawn(library):
    """A change of one operator leads to each of its strategies, from any first device."""
    graph = parse_graph("x = input[8, 12]\nw = weight[12, 4]\nreturn mean_loss(matmul(x, w))")
    chooser = chooser_of(graph, library, 4)
    moves = Moves(graph, chooser.spaces, 4, NumberedMappings())
    now = on_device(graph)
    mesh, product = chooser.mesh, 0
    one = Shares(*[1.0] * 6, relocated=0.0, grown=0.0, reissued=0.0)
    seen = {moves.moved(now, one).mappings[product] for _ in range(20_000)}
    rows = chooser.spaces.of(graph.operators[product]).strategies.tolist()
    for row in rows:
        first = mapping_of(tuple(row), 0, tuple(mesh.primes), tuple(mesh.strides))
        wanted = {as_drawn(first.moved(start)) for start in starts(row, mesh)}
        assert wanted <= {as_drawn(mapping) for mapping in seen}, row


def as_drawn(mapping: OperatorMapping) -> OperatorMapping:
    """The mapping with neighbouring axes along one place as one axis."""
    axes: list[MappedAxis] = []
    for axis in mapping.axes:
        if axes and axes[-1].place == axis.place:
            axis = axis._replace(degree=axis.degree * axes.pop().degree)
        axes.append(axis)
    return OperatorMapping(mapping.start, tuple(axes))


def test_branches_are_laid_out_on_devices_of_their_own(library):
    graph = parse_graph(TOWERS)
    moves = moves_of(graph, library)
    together = on_device(graph)
    products = [node for node in graph.operators if node.name == "matmul"]
    short = next(node for node in products if node.types[0].shape == (64, 512))
    for _ in range(8):
        state = moves.apart(together)
        assert state is not None
        apart = chosen(graph, state).mappings
        devices = {node: set(range(apart[node].start, apart[node].last + 1)) for node in products}
        assert all(devices[short].isdisjoint(devices[n]) for n in products if n is not short)


def test_operators_that_share_devices_move_together_or_change_places(library):
    """Changes of one operator at a time lead through states with more moves of tensors."""
    graph = parse_graph(TOWERS)
    moves = moves_of(graph, library)
    short = next(n for n in graph.operators if n.types[0].shape == (64, 512))
    tower = {short, *graph.users[short]}

    def apart(of_tower: int, of_others: int) -> PlanState:
        starts = (of_tower if node in tower else of_others for node in graph.operators)
        return on_device(graph)._replace(mappings=tuple(map(OperatorMapping, starts)))

    now = apart(3, 0)
    seen = {moves.moved(now) for _ in range(2000)}
    for state in (apart(0, 3), *(apart(device, 0) for device in (0, 1, 2, 4))):
        assert state in seen


def test_operators_that_share_devices_get_more_or_fewer_together(library):
    """A product on one device and its activation on two would move the tensor between them."""
    graph = parse_graph(TOWERS)
    moves = moves_of(graph, library)
    short = next(n for n in graph.operators if n.types[0].shape == (64, 512))
    tower = {short, *graph.users[short]}
    is_in = [node in tower for node in graph.operators]
    one = on_device(graph)._replace(
        mappings=tuple(OperatorMapping(3 if own else 0) for own in is_in)
    )
    grown = Shares(*[0.0] * 6, relocated=0.0, grown=1.0, reissued=0.0)

    def devices(state: PlanState) -> list[set[tuple[int, int]]]:
        """The first and the last devices of the tower, and those of all other operators."""
        pairs = list(zip(is_in, state.mappings, strict=True))
        return [{(m.start, m.last) for own, m in pairs if own is side} for side in (True, False)]

    two = next(
        state for state in changed(moves, one, grown) if devices(state) == [{(3, 4)}, {(0, 0)}]
    )
    for wanted in ((3, 3), (4, 4), (0, 3), (1, 4)):
        assert any(devices(state) == [{wanted}, {(0, 0)}] for state in changed(moves, two, grown))


def changed(moves: Moves, now: PlanState, shares: Shares) -> list[PlanState]:
    return [moves.moved(now, shares) for _ in range(2000)]


def test_every_order_of_issue_can_be_reached(library):
    """Operators that are in the way move along."""
    graph = parse_graph(TOWERS)
    moves, state = moves_of(graph, library), on_device(graph)
    nodes, seen = graph.operators, {state.order}
    for _ in range(20_000):
        state = moves.moved(state, ORDERS)
        seen.add(state.order)
    expected = {
        order
        for order in permutations(range(len(nodes)))
        if order_problem(graph, [nodes[number] for number in order]) is None
    }
    assert seen == expected


def test_a_chain_has_no_branches_to_lay_out(library):
    graph = parse_graph("x = input[8, 8]\nw = weight[8, 8]\nreturn mean_loss(relu(matmul(x, w)))")
    moves = moves_of(graph, library)
    assert moves.apart(on_device(graph)) is None
