"""Annealings in processes of their own: the results are those of annealings one after the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import process_time

import pytest
from support.plans.branched import TWO_TOWERS
from support.small.forks import wait_for_forks

from pcg.fork import RUNNING
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.progress import timed_by
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.refine import annealing, processes
from search.refine.annealing import WIDELY, Annealer, Lane
from search.refine.delta import DeltaSimulator
from search.refine.processes import run_side_by_side
from substitutions.rules.store import load_library

WORK = 3000


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    cost = CostModel(load_machine("dgx-a100").with_devices(5))
    return Chooser.on(cost, Cuts(load_library().concrete(parse_graph(TWO_TOWERS)), windows=True))


@pytest.fixture(autouse=True)
def some_processors(monkeypatch):
    """There are two processors, and none of a lane's processes is left."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    yield
    assert not RUNNING


def lanes_of(chooser: Chooser, is_over: Callable[[], bool] = lambda: False) -> list[Lane]:
    graph: Graph = parse_graph(TWO_TOWERS)
    choice = chooser.choose(graph)
    delta = DeltaSimulator.of(graph, Builder(chooser.spaces), chooser.pricing.cost)
    seeds = (0, 1, 2)
    return [Lane(Annealer(chooser, delta, is_over, WORK, seed), choice, WIDELY) for seed in seeds]


def bests(run: Sequence[Lane]) -> list[Choice]:
    return [lane.best for lane in run]


def test_lanes_find_what_annealings_in_a_row_find(chooser, monkeypatch):
    apart, in_a_row = lanes_of(chooser), lanes_of(chooser)
    run_side_by_side(apart)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    run_side_by_side(in_a_row)
    mappings = [choice.mappings for choice in bests(apart)]
    assert mappings == [choice.mappings for choice in bests(in_a_row)]
    assert all(mappings)
    assert mappings[0] != mappings[1] != mappings[2], "the random numbers differ"


def test_a_lane_whose_process_died_runs_here(chooser, monkeypatch):
    apart, whole = lanes_of(chooser), lanes_of(chooser)
    run_side_by_side(whole)
    monkeypatch.setattr(processes, "_results", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    run_side_by_side(apart)
    assert [c.mappings for c in bests(apart)] == [c.mappings for c in bests(whole)]


def test_an_interrupt_keeps_the_best_states_of_all_lanes(chooser, monkeypatch):
    """The first lane is interrupted after some seconds, and so is the second beside it. The third
    comes after the second, and has not begun."""
    monkeypatch.setattr(annealing, "STATES", 10**6)
    own, parent, asked = lanes_of(chooser), os.getpid(), count()

    def interrupted() -> bool:
        if os.getpid() == parent and next(asked) > 2000:
            raise KeyboardInterrupt
        return False

    for lane in own:
        lane.annealer.is_over, lane.annealer.work = interrupted, 10**9
    with pytest.raises(KeyboardInterrupt):
        run_side_by_side(own)
    assert [bool(choice.mappings) for choice in bests(own)] == [True, True, False]


@dataclass
class Soon:
    """A search that has a result at once."""

    result: bool = False

    def run(self) -> None:
        self.result = True

    def take_over(self, result: bool) -> None:
        self.result = result


class Interrupted(Soon):
    """A search that is interrupted while others have ended."""

    def run(self) -> None:
        wait_for_forks()
        raise KeyboardInterrupt


def test_an_interrupt_keeps_the_results_of_processes_that_have_ended(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    searches = Interrupted(), Soon()
    with pytest.raises(KeyboardInterrupt):
        run_side_by_side(searches)
    assert searches[1].result


def test_a_clock_of_processor_time_needs_one_process(chooser, monkeypatch):
    monkeypatch.setattr(processes, "Child", lambda searches: pytest.fail("a process began"))
    with timed_by(process_time):
        run_side_by_side(lanes_of(chooser))
