"""Pipelines whose stages issue operators in any order, on simulated ranks, against the model."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.plans.pipelines import planned, trained

from pcg.placement.order import ordered
from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from substitutions.rules.store import load_library

CASES = [
    ("candle-uno-tiny", 4, 2, "1f1b", 1),
    ("candle-uno-tiny", 8, 2, "1f1b", 2),
    ("xdl-tiny", 4, 2, "zb-h1", 1),
    pytest.param("tied", 4, 4, "zb-h1", 1, marks=pytest.mark.soak),
    pytest.param("xdl-tiny", 4, 4, "1f1b", 3, marks=pytest.mark.soak),
]
"""Models, slices, stages, schedules, and chunks of each stage."""


@pytest.mark.parametrize(("name", "slices", "stages", "kind", "interleave"), CASES)
def test_pipeline_in_any_order_trains_as_the_model(name, slices, stages, kind, interleave):
    given = planned(name, load_library(), slices, stages, kind, interleave)
    plan = in_another_order(given, Random(stages))
    validate_lowered(Lowering(plan))
    report = trained(plan, ordered=True)
    assert report.comparisons
    assert not [c for c in report.comparisons if not c.passes]


def in_another_order(plan: Plan, random: Random) -> Plan:
    nodes = plan.graph.computing
    order = ordered(plan.graph, {node: random.random() for node in nodes})
    assert order != nodes
    return replace(plan, order=order)
