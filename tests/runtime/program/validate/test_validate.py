"""Programs that are lowered from plans are valid programs of these plans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.pipelines import planned
from support.plans.random_plans import drawn_plan
from support.plans.small_plans import NAMES, small_plan
from support.runs.own_loop import words_cut_at_random

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from runtime.program.lower import Lowering
from runtime.program.program import Run
from runtime.program.validate import validate_lowered
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library


@pytest.mark.parametrize("name", NAMES)
def test_small_plans(name):
    validate_lowered(Lowering(small_plan(name)))


@pytest.mark.parametrize(
    ("name", "slices", "stages", "kind"),
    [
        ("mlp-mnist", 4, 2, "1f1b"),
        ("xdl-tiny", 4, 1, "1f1b"),
        ("tied", 4, 2, "2bw"),
    ],
)
def test_lowered_pipelines_are_valid(name, slices, stages, kind):
    validate_lowered(Lowering(planned(name, load_library(), slices, stages, kind)))


def test_a_tensor_that_is_repeated_to_the_shape_of_another_has_no_gradient():
    """For example, the angles of rotary positions, which are multiplied with queries."""
    text = """
    x = input[8, 12]
    w = weight[12, 16]
    angles = input[8]
    q = matmul(x, w)
    turned = multiply(q, expand_as(q, angles, axis=1))
    return mean_loss(multiply(turned, turned))
    """
    search = MeshPlanner(load_machine("local").with_devices(2), load_library(), "data-parallel")
    graph = parse_graph(text)
    graph.check()
    lowering = Lowering(search.plan("turned", graph).plan)
    validate_lowered(lowering)
    program = lowering.program(0)
    runs = [one for one in program.instructions if isinstance(one, Run)]
    (repeated,) = (run.results for run in runs if run.call.name == "expand_as")
    (product,) = (run.results for run in runs if run.call.name == "matmul")
    assert program.active.isdisjoint(repeated)
    assert program.active.issuperset(product)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_plans(data):
    validate_lowered(Lowering(drawn_plan(data)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_plans_of_a_model_that_reads_shapes(data):
    """A copy that an operator reads for its shape alone gets no gradient, wherever it lies."""
    validate_lowered(Lowering(words_cut_at_random(data.draw)))


@pytest.mark.soak
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_many_random_plans(data):
    validate_lowered(Lowering(drawn_plan(data)))
