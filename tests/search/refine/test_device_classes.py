"""Simulations of classes of devices: the same seconds as those of all devices, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.graphs.strategies import training_graphs
from support.small.random_choices import at_random

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.placement.order import ordered
from search.cost.cost import CostModel, Duration
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.refine.delta import DeltaSimulator
from search.refine.device_classes import DeviceClasses
from search.refine.native.tables import GROUPS
from search.refine.rows import DurationRows
from substitutions.rules.store import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def delta_of(graph: Graph, library: Library, nodes: int) -> tuple[DeltaSimulator, Chooser]:
    """A simulator of plans on nodes of summit."""
    cost = CostModel(load_machine("summit").with_nodes(nodes))
    chooser = Chooser.on(cost, Cuts.of_rules(library.concrete(graph), windows=True))
    return DeltaSimulator.of(graph, Builder(chooser.spaces), cost), chooser


def in_another_order(choice: Choice, random: Random) -> Choice:
    places = {node: random.random() for node in choice.graph.operators}
    return replace(choice, order=ordered(choice.graph, places))


@given(training_graphs(cut=False), st.randoms(use_true_random=False))
@examples(15)
def test_seconds_are_those_of_all_devices(graph: Graph, random: Random) -> None:
    delta, chooser = delta_of(graph, load_library(), 4)
    for _ in range(2):
        choice = at_random(chooser, graph, random)
        for _ in range(3):
            choice = in_another_order(choice, random)
            # Classes first: what is missing in the tables is then priced for them.
            seconds = delta.by_classes.seconds(choice)
            assert delta.seconds(choice) == seconds
            if seconds is not None:
                assert delta.by_classes.takes_less(choice, np.nextafter(seconds, 2 * seconds))
                assert not delta.by_classes.takes_less(choice, seconds)


def test_devices_of_a_plan_by_sums_are_of_few_classes(library: Library) -> None:
    delta, chooser = delta_of(build_model("dlrm", 1024, 192), library, 32)
    choice = chooser.choose(delta.graph.graph)
    random = Random(0)
    for _ in range(3):
        assert delta.by_classes.seconds(choice) == delta.seconds(choice)
        choice = in_another_order(choice, random)
    assert delta.by_classes.states.busy <= 192 // 4


def durations(*given: tuple[list[list[int]], list[float]]) -> DurationRows:
    """The rows of durations on eight devices: groups, with the seconds of each."""
    rows = DurationRows(8)
    for groups, seconds in given:
        rows.row[Duration(np.array(groups), np.array(seconds))]
    return rows


EVEN, ODD = [0, 2, 4, 6], [1, 3, 5, 7]
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ([], 1),
        ([([EVEN, ODD], [1.0, 1.0])], 1),
        ([([EVEN, ODD], [1.0, 2.0])], 2),
        ([([EVEN], [1.0])], 2),
        # Each pair has a device of both classes.
        ([([EVEN], [1.0]), (PAIRS, [1.0] * 4)], 2),
        # One pair takes longer, and each other device waits for it or not.
        ([([EVEN], [1.0]), (PAIRS, [2.0, 1.0, 1.0, 1.0])], 4),
        # A device that is busy alone tells its pair apart, and that one the other pairs.
        ([(PAIRS, [1.0] * 4), ([[0]], [1.0])], 3),
        ([(PAIRS, [1.0] * 4), ([[0]], [1.0]), ([[1, 2], [3, 4], [5, 6]], [1.0] * 3)], 8),
    ],
)
def test_classes(given: list[tuple[list[list[int]], list[float]]], count: int) -> None:
    classes = DeviceClasses(durations(*given), 8)
    classes.table()
    assert classes.count == count


def test_classes_are_parted_by_a_later_duration() -> None:
    rows = durations((PAIRS, [1.0] * 4))
    classes = DeviceClasses(rows, 8)
    assert classes.table().rows[2, GROUPS] == 1
    rows.row[Duration(np.array([[1]]), np.array([1.0]))]
    table = classes.table()
    assert classes.count == 3
    assert table.rows[2, GROUPS] == 2  # the pair of devices 0 and 1, and the others
