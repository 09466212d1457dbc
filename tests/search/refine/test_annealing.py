"""Plans whose operators run on any devices: their function, their time, and their gain."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.plans.branched import KINDS, branched
from support.small.towers import TOWERS, chooser_of

from pcg.graph.graph import Graph
from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph
from search.cost.derivation import Derivation
from search.cost.progress import OutOfTime, Phases, timed_by
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.space.mapping import OperatorMapping
from search.refine.annealing import WIDELY, Annealer
from search.refine.delta import DeltaSimulator
from search.refine.overlap import Trial
from substitutions.rules.store import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def annealer_of(chooser: Chooser, graph: Graph, **options: object) -> Annealer:
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    return replace(Annealer(chooser, delta), **options)


def whole_seconds(chooser: Chooser, choice: Choice) -> float:
    """Seconds of a step of the plan of a choice, by full simulation."""
    cut = Builder(chooser.spaces).cut(choice)
    return simulate(schedule(cut.graph, cut.views), chooser.pricing.cost).step_seconds


def test_a_tower_runs_on_devices_that_no_mesh_axes_make_up(library):
    graph = parse_graph(TOWERS)
    chooser = chooser_of(graph, library)
    first = chooser.choose(graph)
    made = annealer_of(chooser, graph, work=20_000).annealed(first)
    assert whole_seconds(chooser, made) < 0.9 * whole_seconds(chooser, first)
    cut = Builder(chooser.spaces).cut(made)
    assert {len(view.devices) for view in cut.views.values()} - {1, 5}, "5 has no other divisors"


def test_annealing_is_deterministic_and_never_slower(library):
    graph = parse_graph(TOWERS)
    chooser = chooser_of(graph, library)
    first = chooser.choose(graph)
    made, again = (annealer_of(chooser, graph, work=2000).annealed(first) for _ in range(2))
    assert made.mappings == again.mappings
    assert whole_seconds(chooser, made) <= whole_seconds(chooser, first)
    assert annealer_of(chooser, graph, work=0).annealed(first) is first


def test_annealing_ends_when_its_time_is_up(library):
    graph = parse_graph(TOWERS)
    chooser, asked = chooser_of(graph, library), count()
    over = annealer_of(chooser, graph, is_over=lambda: next(asked) >= 20)
    over.annealed(chooser.choose(graph))
    assert next(asked) <= 30, "it asks once more in each stage"


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, OutOfTime])
def test_an_annealing_that_is_stopped_leaves_its_best_plan(library, monkeypatch, stopped):
    """The plan is priced before the search ends."""
    graph = parse_graph(TOWERS)
    chooser = chooser_of(graph, library)
    first = chooser.choose(graph)
    priced: list[float] = []
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: priced.append(made.seconds))
    whole, asked = DeltaSimulator.add_missing, count()

    def stopping(self: DeltaSimulator) -> None:
        if next(asked) == 120:
            raise stopped
        whole(self)

    monkeypatch.setattr(DeltaSimulator, "add_missing", stopping)
    with pytest.raises(stopped):
        trial.refined(first, 5000, WIDELY)
    (seconds,) = priced
    assert seconds < 0.95 * whole_seconds(chooser, first)


def test_an_annealing_whose_time_is_up_leaves_its_best_plan(library):
    graph = parse_graph(TOWERS)
    chooser = chooser_of(graph, library)
    first = chooser.choose(graph)
    phases = Phases(deadline=0.6, has_plan=True)
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: None, phases=phases)
    with timed_by(count(0.0, 1e-3).__next__):
        refined = trial.refined(first, 50_000, WIDELY)
    assert refined.seconds < 0.95 * whole_seconds(chooser, first)
    assert phases.deadline == 0.6


def test_fully_sharded_weights_are_left_as_they_are(library):
    graph = parse_graph(TOWERS)
    chooser = chooser_of(graph, library)
    choice = replace(chooser.choose(graph), fully_sharded=True)
    assert annealer_of(chooser, graph).annealed(choice) is choice


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_seeded_graphs_are_the_same_each_time(seed):
    (kind, graph), (same, again) = branched(seed), branched(seed)
    assert (kind, graph) == (same, again)
    assert 10 <= len(graph.operators) <= 40
    assert any(len({v.node for v in n.inputs if not v.node.is_leaf}) > 1 for n in graph.operators)


def test_a_mapping_of_devices_in_a_row():
    mapping = OperatorMapping.packed(3, [(0, 2), (1, 3)])
    assert [(axis.degree, axis.stride) for axis in mapping.axes] == [(2, 3), (3, 1)]
    assert (mapping.size, mapping.last, mapping.places) == (6, 8, (0, 1))
    assert mapping.moved(0).last == 5
