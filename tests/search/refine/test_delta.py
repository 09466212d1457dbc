"""Programs of plans that are put together from pieces: equal to those of the plans, to the last
bit."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nextafter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.graphs.strategies import training_graphs
from support.plans.tries import fastest_try
from support.small.random_choices import at_random
from support.small.states import chosen, on_device

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.placement.order import ordered
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel, Duration
from search.cost.derivation import Derivation
from search.cost.simulate import price
from search.cost.tasks import TaskProgram, program
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.mapping import OperatorMapping
from search.refine.delta import DeltaSimulator
from search.refine.moves import Moves
from search.refine.native.listing import STEPS
from search.refine.native.mappings import MAPPED
from search.refine.native.states import find_pieces
from search.refine.native.tables import Numbers
from search.refine.native.timing import is_path_longer
from search.refine.overlap import Trial
from substitutions.rules.concrete.rooted import ListedRules
from substitutions.rules.rule import parse_rule
from substitutions.rules.store import Library, load_library

MACHINES = [("local", 4), ("summit", 6), ("dgx-a100", 3)]


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def chooser_of(graph: Graph, library: Library, machine: tuple[str, int]) -> Chooser:
    target = load_machine(machine[0]).with_devices(machine[1])
    return Chooser.on(CostModel(target), Cuts.of_rules(library.concrete(graph), windows=True))


def moved(chooser: Chooser, choice: Choice, random: Random) -> Choice:
    """The choice with other strategies of an operator or two."""
    other = at_random(chooser, choice.graph, random)
    nodes = random.sample(choice.graph.operators, min(2, len(choice.graph.operators)))
    firsts = {**choice.starts, **{node: other.starts.get(node, 0) for node in nodes}}
    rows = {**choice.strategies, **{node: other.strategies[node] for node in nodes}}
    return replace(choice, strategies=rows, starts={node: at for node, at in firsts.items() if at})


def assert_same(delta: DeltaSimulator, chooser: Chooser, choice: Choice) -> None:
    """Check that the program of a choice, and the answers about it, equal those of its plan."""
    cost = chooser.pricing.cost
    cut = Builder(chooser.spaces).cut(choice)
    expected, made = program(cut.schedule(), cost), delta.program(choice)
    assert made is not None
    assert [step[2:] for step in made.steps] == [step[2:] for step in expected.steps]
    for ours, theirs in zip(durations(made), durations(expected), strict=True):
        np.testing.assert_array_equal(ours.groups, theirs.groups)
        np.testing.assert_array_equal(ours.seconds, theirs.seconds)
    assert [*map(tuple, made.buffers)] == [*map(tuple, expected.buffers)]
    seconds = price(expected, cost.machine.devices).step_seconds
    assert delta.takes_less(choice, nextafter(seconds, inf))
    assert delta.takes_less(choice, seconds) is False


def durations(given: TaskProgram) -> list[Duration]:
    pairs = [*((step.forward, step.backward) for step in given.steps), *given.weights]
    return [duration for pair in pairs for duration in pair]


@examples(4)
@given(training_graphs(cut=False), st.sampled_from(MACHINES), st.randoms(use_true_random=False))
def test_a_program_of_pieces_is_that_of_the_plan(library, graph, machine, random):
    chooser = chooser_of(graph, library, machine)
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    choice = at_random(chooser, graph, random)
    for _ in range(4):
        assert_same(delta, chooser, choice)
        choice = moved(chooser, choice, random)
        places = {node: random.random() for node in graph.operators}
        choice = replace(choice, order=ordered(graph, places))


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        ("mlp-mnist", MACHINES[0]),
        ("xdl-tiny", MACHINES[1]),
        pytest.param("bert-large-tiny", MACHINES[2], marks=pytest.mark.soak),
    ],
)
def test_moves_from_the_choice_of_a_model(library, model, machine):
    graph = build_model(model, 12, 1)
    chooser = chooser_of(graph, library, machine)
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    choice, random = chooser.choose(graph), Random(model)
    for _ in range(4):
        assert_same(delta, chooser, choice)
        choice = moved(chooser, choice, random)


def test_second_price_of_a_choice_reuses_its_pieces(library, monkeypatch):
    """The pieces that a move leaves unchanged are not cut again."""
    graph = build_model("mlp-mnist", 32, 4)
    chooser = chooser_of(graph, library, MACHINES[0])
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    cut: list[object] = []
    whole = Builder.cut_along
    monkeypatch.setattr(
        Builder, "cut_along", lambda self, *args: cut.append(args) or whole(self, *args)
    )
    choice = chooser.choose(graph)
    delta.program(choice)
    first = len(cut)
    assert 0 < first <= len(graph.operators)
    delta.program(choice)
    assert len(cut) == first
    last = graph.operators[-1]
    for row in chooser.spaces.of(last).strategies.tolist():
        delta.program(replace(choice, strategies={**choice.strategies, last: tuple(row)}))
    assert len(cut) <= first + len(chooser.spaces.of(last)) - 1


def test_longest_path_rules_a_choice_out_before_its_tasks_are_made(library):
    graph = build_model("mlp-mnist", 32, 4)
    chooser = chooser_of(graph, library, MACHINES[0])
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    choice = chooser.choose(graph)
    seconds = delta.seconds(choice)
    assert seconds is not None
    _, _, room = delta.tables()
    room.issued.counts[:] = room.made.counts[STEPS] = 0
    assert delta.seconds(choice, seconds / 3) is None
    assert not room.issued.counts.any()
    assert not room.made.counts[STEPS]
    assert delta.seconds(choice, nextafter(seconds, inf)) == seconds


def has_longer_path(delta: DeltaSimulator, state: Numbers, limit: float) -> bool:
    """Whether a path of operators takes so long, in a state that was simulated."""
    given, states, room = delta.tables()
    find_pieces(given, states, state[MAPPED], room.made.counts)
    return is_path_longer(given, states.pieces, limit, room.clock.times)


@given(training_graphs(cut=False), st.sampled_from(MACHINES), st.integers(0, 99))
def test_no_plan_is_faster_than_the_longest_path_of_its_operators(library, graph, machine, seed):
    chooser = chooser_of(graph, library, machine)
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    moves = Moves(graph, chooser.spaces, machine[1], delta.states.mappings, seed)
    now = on_device(graph)
    for _ in range(8):
        now = moves.moved(moves.apart(now) or now)
        state = delta.states.mappings.encoded(now)
        seconds = delta.seconds_of(state, inf)
        assert seconds == delta.seconds(chosen(graph, now))
        assert not has_longer_path(delta, state, seconds * (1 + 1e-9))
        tables, states, _ = delta.tables()
        own = tables.pieces.seconds[states.pieces]
        assert has_longer_path(delta, state, (own[:, 0] + own[:, 1]).max())


@given(training_graphs(cut=False), st.sampled_from(MACHINES), st.integers(0, 99))
def test_what_is_not_priced_yet_rules_out_no_plan_that_is_fast_enough(
    library, graph, machine, seed
):
    """A simulator to which all is new answers like one that knows all seconds."""
    chooser = chooser_of(graph, library, machine)
    given = graph, Builder(chooser.spaces), chooser.pricing.cost
    whole = DeltaSimulator.of(*given)
    moves = Moves(graph, chooser.spaces, machine[1], whole.states.mappings, seed)
    now = on_device(graph)
    for part in (0.5, 0.9, 0.999, 1.0, 1.001, 1.1) * 2:
        now = moves.moved(moves.apart(now) or now)
        choice = chosen(graph, now)
        seconds = whole.seconds(choice)
        assert seconds is not None
        limit = part * seconds
        answer = DeltaSimulator.of(*given).seconds(choice, limit)
        assert answer == (seconds if seconds < limit else None)


def test_a_resharding_rules_a_plan_out_before_others_are_priced(library):
    """Each operator is cut along another dimension than the one that it reads. Machine code does
    not price what moves among the same devices."""
    graph = parse_graph("x = input[64, 4096]\nreturn relu(relu(relu(relu(relu(relu(x))))))")
    chooser = chooser_of(graph, library, MACHINES[0])
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    mapped = tuple(OperatorMapping.packed(0, [(number % 2, 4)]) for number in range(6))
    turned, alone = on_device(graph)._replace(mappings=mapped), on_device(graph)
    seconds = delta.seconds(chosen(graph, alone))
    assert seconds is not None
    assert delta.seconds(chosen(graph, turned), seconds) is None
    assert 0 < len(delta.pieces.moves) < len(graph.operators) - 1


def test_sums_that_only_other_devices_want_are_added_up_first(library):
    """The relu is on another device than the partial sums of the product."""
    graph = parse_graph(
        "x = input[64, 512]\nw = weight[512, 4096]\nreturn mean_loss(relu(matmul(x, w)))"
    )
    chooser = chooser_of(graph, library, MACHINES[0])
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    axes = chooser.spaces.of(graph.operators[0]).axes
    (k,) = (place for place, axis in enumerate(axes) if axis.outputs == (None,))
    mapped = [OperatorMapping.packed(0, [(k, 2)]), OperatorMapping(2), OperatorMapping(2)]
    mappings = dict(zip(graph.operators, mapped, strict=True))
    assert_same(delta, chooser, Choice(graph, {}, 0.0, mappings=mappings))
    made = delta.program(Choice(graph, {}, 0.0, mappings=mappings))
    assert made is not None
    assert [step.reshards for step in made.steps] == [False, True, True, False, False]


def test_operators_that_the_loss_does_not_need_have_no_gradients(library):
    """A second output is computed, and has no backward pass."""
    graph = parse_graph(
        "x = input[12, 24]\nw = weight[24, 12]\nv = weight[24, 36]\n"
        "return mean_loss(matmul(x, w)), relu(matmul(x, v))"
    )
    chooser, random = chooser_of(graph, library, MACHINES[0]), Random(0)
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    for _ in range(6):
        assert_same(delta, chooser, at_random(chooser, graph, random))


def test_fully_sharded_weights_are_not_known_here(library):
    graph = build_model("mlp-mnist", 32, 4)
    chooser = chooser_of(graph, library, MACHINES[0])
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    assert delta.takes_less(replace(chooser.choose(graph), fully_sharded=True), inf) is None


def test_operands_in_another_order_are_not_known_here():
    """If its rules differ from the library's, the order of steps may change: the plan decides."""
    swapped = parse_rule(
        "swapped",
        {"x": 2, "y": 2},
        "add(x, y)",
        "combine(add(partition(y, dim=0, degree=k), partition(x, dim=0, degree=k)),"
        " dim=0, degree=k)",
    )
    graph = parse_graph(
        "x = input[24, 24]\nw = weight[24, 24]\nreturn mean_loss(add(matmul(x, w), relu(x)))"
    )
    chooser = Chooser.on(CostModel(load_machine("local")), Cuts(ListedRules((swapped,))))
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    (add,) = (node for node in graph.operators if node.name == "add")
    choice = chooser.choose(graph)
    answers = [
        delta.takes_less(replace(choice, strategies={**choice.strategies, add: tuple(row)}), inf)
        for row in chooser.spaces.of(add).strategies.tolist()
    ]
    assert set(answers) == {True, None}
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: None)
    assert fastest_try(trial).seconds > 0
