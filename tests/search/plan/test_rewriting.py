"""Rewrites of refined plans: their graphs, their derivations, and their gain."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.behaviour import assert_same
from support.graphs.strategies import training_graphs
from support.small.states import chosen, on_device

from pcg.fork import RUNNING
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.placement.order import order_problem
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.mapping import OperatorMapping
from search.plan import rewriting
from search.plan.rewriting import RefinedRewriter, RewrittenPlan, carried_over
from search.refine.delta import DeltaSimulator
from search.refine.mappings import NumberedMappings
from search.refine.moves import Moves
from search.refine.overlap import Trial
from search.refine.pieces import OperatorPieces
from search.refine.processes import run_in_turn, run_side_by_side
from search.refine.rows import TableRows
from search.substitute.algebra import Algebra
from substitutions.rules.store import Library, load_library

JOINED = """
x = input[8, 512]
a = weight[512, 512]
b = weight[512, 512]
left = relu(matmul(x, a))
return mean_loss(concat(left, relu(matmul(x, b)), axis=1))
"""
"""Two small branches that are joined. One relu after the concat is one kernel less."""
BESIDE = """
x = input[8, 512]
a = weight[512, 64]
b = weight[64, 64]
c = weight[512, 2048]
d = weight[2048, 64]
left = matmul(matmul(x, a), b)
return mean_loss(add(left, matmul(relu(matmul(x, c)), d)))
"""
"""A short branch beside a longer one. Two products in a row may be made in another order."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def chooser_of(graph: Graph, library: Library, machine: Machine) -> Chooser:
    return Chooser.on(CostModel(machine), Cuts.of_rules(library.concrete(graph)))


def rewriter_of(graph: Graph, library: Library, devices: int = 2) -> RefinedRewriter:
    """A rewriter of the plan with all operators on the first device."""
    machine = load_machine("dgx-a100").with_devices(devices)
    chooser = chooser_of(graph, library, machine)
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: ())
    mappings = dict.fromkeys(graph.operators, OperatorMapping(0))
    choice = Choice(graph, dict.fromkeys(graph.operators, ()), 0.0, mappings=mappings)
    seconds = trial.delta.seconds(choice)
    assert seconds is not None
    return RefinedRewriter(trial, choice, seconds, library.concrete, work=50_000)


@given(training_graphs(cut=False), st.integers(0, 99))
def test_mappings_are_carried_over_to_any_rewritten_graph(library, graph, seed):
    """Operators that stay keep their mappings, and the others have valid ones. The order of issue
    is one of the new graph. Simulators of all these graphs share their rows, and the seconds are
    those of the plans."""
    chooser = chooser_of(graph, library, load_machine("dgx-a100").with_devices(6))
    algebra = Algebra.of(library.concrete(graph))
    moves = Moves(graph, chooser.spaces, 6, NumberedMappings(), seed)
    state = on_device(graph)
    for _ in range(8):
        state = moves.moved(state)
    choice = chosen(graph, state)
    builder, cost = Builder(chooser.spaces), chooser.pricing.cost
    rows = TableRows(OperatorPieces(builder, cost))
    ways = [way for node in graph.operators for way in algebra.applications(node, graph)]
    for way in ways[seed % 5 :: 5]:
        made = graph.replace(way.replaced)
        carried, fresh = carried_over(choice, way, made, chooser.spaces)
        before, after = choice.mappings, carried.mappings
        assert [*after] == [*made.operators]
        stay = {*after} & {*before} - fresh
        assert all(after[node] == before[node] for node in stay)
        assert bool(carried.order) == bool(choice.order)
        assert not carried.order or order_problem(made, carried.order) is None
        cut = builder.cut(carried)
        assert_same(graph, cut.graph)
        seconds = simulate(cut.schedule(), cost).step_seconds
        assert DeltaSimulator.of(made, builder, cost, rows).seconds(carried) == seconds


def test_a_rewrite_that_saves_a_kernel_is_made_and_written_down(library):
    graph = parse_graph(JOINED)
    rewriter = rewriter_of(graph, library)
    before = rewriter.plan.seconds
    rewriter.run()
    plan = rewriter.plan
    made = plan.choice.graph
    assert plan.seconds < before
    assert len(made.operators) < len(graph.operators)
    assert_same(graph, made)
    assert plan.derivation.steps
    assert {*made.operators} == {*plan.choice.mappings}
    trial = Trial(rewriter.trial.chooser, made, plan.derivation, lambda made: ())
    assert trial.delta.seconds(plan.choice) == plan.seconds


def test_rewrites_apart_from_each_other_are_made_in_one_round(library, monkeypatch):
    """Three pairs of branches are joined, and each could be written with a kernel less."""
    pairs = [
        f"""
        a{number} = weight[512, 512]
        b{number} = weight[512, 512]
        left{number} = relu(matmul(x, a{number}))
        loss{number} = mean_loss(concat(left{number}, relu(matmul(x, b{number})), axis=1))
        """
        for number in range(3)
    ]
    total = "return add(add(loss0, loss1), loss2)"
    graph = parse_graph("\n".join(["x = input[8, 512]", *pairs, total]))
    monkeypatch.setattr(rewriting, "ROUNDS", 1)
    rewriter = rewriter_of(graph, library)
    rewriter.run()
    plan = rewriter.plan
    assert len(plan.choice.graph.operators) <= len(graph.operators) - 3
    assert len(plan.derivation.steps) >= 3
    assert_same(graph, plan.choice.graph)
    trial = Trial(rewriter.trial.chooser, plan.choice.graph, plan.derivation, lambda made: ())
    assert trial.delta.seconds(plan.choice) == plan.seconds


def test_rewriters_in_processes_of_their_own_find_the_same(library, monkeypatch):
    graphs = parse_graph(BESIDE), parse_graph(JOINED)
    apart, in_turn = ([rewriter_of(graph, library) for graph in graphs] for _ in range(2))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    run_side_by_side(apart)
    run_in_turn(in_turn)
    assert not RUNNING
    assert apart[1].plan.seconds < apart[1].seconds
    for one, other in zip(apart, in_turn, strict=True):
        assert [*map(written, (one.plan, *one.others))] == [
            *map(written, (other.plan, *other.others))
        ]
        assert one.is_exhausted == other.is_exhausted


def written(plan: RewrittenPlan) -> tuple[object, ...]:
    """All that says which plan it is."""
    choice, steps = plan.choice, plan.derivation.steps
    return choice.graph, choice.mappings, choice.order, plan.seconds, steps


def test_graphs_that_are_nearly_as_fast_are_returned_as_well(library, monkeypatch):
    """Here graphs count as near that take up to twice as long."""
    monkeypatch.setattr(rewriting, "NEAR", 2.0)
    monkeypatch.setattr(rewriting, "SLOWER", 2.0)
    graph = parse_graph(BESIDE)
    rewriter = rewriter_of(graph, library)
    rewriter.run()
    assert rewriter.others
    reached = {rewriter.plan.choice.graph, *(plan.choice.graph for plan in rewriter.others)}
    assert len(reached) == len(rewriter.others) + 1
    seconds = [plan.seconds for plan in (rewriter.plan, *rewriter.others)]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= 2 * seconds[0]
    for plan in rewriter.others:
        assert_same(graph, plan.choice.graph)
        trial = Trial(rewriter.trial.chooser, plan.choice.graph, plan.derivation, lambda made: ())
        assert trial.delta.seconds(plan.choice) == plan.seconds


def test_the_search_goes_on_from_slower_graphs_and_reaches_none_twice(library, monkeypatch):
    """No graph is faster, and still some rounds look at others."""
    rewriter = rewriter_of(parse_graph(JOINED), library)
    rewriter = replace(rewriter, seconds=0.5 * rewriter.seconds)
    monkeypatch.setattr(rewriting, "SLOWER", 4.0)
    begun: list[Graph] = []
    listed = RefinedRewriter._applications

    def noted(self: RefinedRewriter, now: RewrittenPlan):
        begun.append(now.choice.graph)
        return listed(self, now)

    monkeypatch.setattr(RefinedRewriter, "_applications", noted)
    rewriter.run()
    assert 1 < len(begun) == len({*begun})
    assert rewriter.is_exhausted
    begun.clear()
    monkeypatch.setattr(rewriting, "PATIENCE", 1)
    patient = replace(rewriter)
    patient.run()
    assert len(begun) == 1, "no round follows those that may find nothing faster"
    assert patient.is_exhausted


def test_a_rewriter_that_ends_right_after_a_gain_is_not_exhausted(library, monkeypatch):
    monkeypatch.setattr(rewriting, "ROUNDS", 1)
    rewriter = rewriter_of(parse_graph(JOINED), library)
    rewriter.run()
    assert rewriter.plan.seconds < rewriter.seconds
    assert not rewriter.is_exhausted


def test_an_application_that_makes_a_step_slower_is_not_tried_again(library, monkeypatch):
    rewriter = rewriter_of(parse_graph(JOINED), library)
    rounds: list[set[object]] = []
    listed = RefinedRewriter._applications

    def noted(self: RefinedRewriter, now: RewrittenPlan):
        applications = listed(self, now)
        rounds.append({key for key, _, _ in applications})
        return applications

    monkeypatch.setattr(RefinedRewriter, "_applications", noted)
    rewriter.run()
    assert len(rounds) > 1
    slow = {key for key, ratio in rewriter._ratios.items() if ratio > rewriting.PROMISING}
    assert slow
    assert all(sum(key in round_ for round_ in rounds) == 1 for key in slow)


def test_an_interrupt_keeps_the_best_graph_so_far(library, monkeypatch):
    rewriter, rounds = rewriter_of(parse_graph(JOINED), library), count()
    before, run = rewriter.plan.seconds, rewriting.run_in_turn

    def interrupted(lanes) -> None:
        if next(rounds) == 1:
            raise KeyboardInterrupt
        run(lanes)

    monkeypatch.setattr(rewriting, "run_in_turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewriter.run()
    assert rewriter.plan.seconds < before
    assert rewriter.plan.choice.graph != rewriter.trial.graph
