"""Other placements of an operator cost the same as by the search's own builder and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans.cut_by_hand import (
    DATA,
    LINEAR,
    LINEAR_MODEL,
    MODEL,
    TENSOR,
    machine,
    plan_of,
    simulated,
)

from pcg.placement.schedule import schedule
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import data_parallel
from search.report.alternatives import Alternatives
from search.report.rivals import rivals
from substitutions.rules.store import load_library


@pytest.mark.parametrize("text", [DATA, TENSOR])
def test_few_simulated_alternatives_include_the_best(text):
    """The best of the few alternatives that are simulated is the best of all."""
    plan = plan_of(text)
    alternatives = Alternatives(simulated(plan))
    for node in plan.views:
        every, few = alternatives.of(node, 512), alternatives.of(node)
        assert len(every.simulated) == every.placements == few.placements
        assert len(few.simulated) == min(8, len(every.simulated))
        assert few.simulated[0].step_seconds == every.simulated[0].step_seconds
        seconds = [other.step_seconds for other in every.simulated]
        assert seconds == sorted(seconds)


def test_alternatives_cost_as_much_as_in_the_search():
    """A plan by data parallelism, with any one operator by any other strategy."""
    graph, cost = parse_graph(MODEL), CostModel(machine())
    chooser = Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))
    # Alternatives do not let partial sums pass. They are compared with strategies that do not
    # either.
    chooser = replace(
        chooser,
        pricing=replace(chooser.pricing, spaces=replace(chooser.spaces, partials_pass=False)),
    )
    builder, choice = Builder(chooser.spaces), chooser.choose(graph, 0.0, data_parallel(graph))
    cut = builder.cut(choice)
    plan = replace(plan_of(DATA), graph=cut.graph, views=cut.views)
    (data, _) = rivals(plan, cost)
    base = simulated(plan)
    assert data.seconds == pytest.approx(base.step_seconds, rel=1e-12)
    assert data.memory == base.memory.total
    alternatives, compared = Alternatives(base), 0
    nodes = [node for node in cut.graph.nodes if node in cut.views]
    for whole, node in zip(graph.operators, nodes, strict=True):
        assert whole.call == node.call
        space = chooser.spaces.of(whole)
        wanted = set[float]()
        for place in range(len(space)):
            other = {**choice.strategies, whole: space.strategy(place)}
            made = builder.cut(replace(choice, strategies=other))
            wanted.add(simulate(schedule(made.graph, made.views), cost).step_seconds)
        actual = {one.step_seconds for one in alternatives.of(node, 512).simulated}
        rounded = {f"{seconds:.12g}" for seconds in actual | {base.step_seconds}}
        missing = {f"{seconds:.12g}" for seconds in wanted} - rounded
        assert not missing, (whole.name, missing)
        compared += len(wanted)
    assert compared > 40


def test_alternatives_need_no_partial_sums():
    """No transfer to partial sums is priced that are not there."""
    plan = plan_of(LINEAR, LINEAR_MODEL)
    alternatives = Alternatives(simulated(plan))
    with np.errstate(all="raise"):
        offered = [alternatives.of(node, 512) for node in plan.views]
    assert all(len(one.simulated) == one.placements for one in offered)


def test_alternative_that_does_not_fit_states_the_excess_bytes():
    plan = plan_of(DATA)
    base = simulated(plan)
    device = base.machine.device.model_copy(update={"memory_bytes": 2000})
    small = base.machine.model_copy(update={"device": device})
    node = next(iter(plan.views))
    (other, *_) = Alternatives(replace(base, machine=small)).of(node).simulated
    assert other.over == other.memory - small.memory_limit() > 0
