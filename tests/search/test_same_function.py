"""Plans of the search compute the same as the model: outputs and gradients, device by device.

The machine of these tests has slow devices and links that are nearly free, so a plan on all devices
wins, however small the model.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs.behaviour import assert_same
from support.graphs.strategies import training_graphs

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import MODELS, build_model
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import by_equation
from search.choices import Mode
from search.pipeline.planner import PIPELINES, PipelinePlanner
from search.plan.planner import MeshPlanner
from substitutions.rules.store import Library, load_library

TINY = [name for name in MODELS if name.endswith(("-tiny", "-mnist"))]
FAMILIES = ("joint", "data-parallel", "zero", "expert", "megatron", *PIPELINES)
SECONDS = 30.0
"""The time limit of a search."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def machine_with(devices: int) -> Machine:
    nodes = -(-devices // 2)
    return load_machine("tests/data/two-devices.toml").with_nodes(nodes).with_devices(devices)


def planned(
    library: Library, name: str, graph: Graph, devices: int, how: str, mode: Mode = Mode.JOINT
) -> Plan:
    """The plan of a planner."""
    machine = machine_with(devices)
    if how in PIPELINES:
        return PipelinePlanner(machine, library, PIPELINES[how], SECONDS).plan(name, graph).plan
    return MeshPlanner(machine, library, how, SECONDS, mode=mode).plan(name, graph).plan


def batch_of(name: str, devices: int) -> int:
    return devices if name.startswith(("bert", "resnext", "inception")) else 4 * devices


def check(library: Library, name: str, devices: int, how: str, mode: Mode = Mode.JOINT) -> Plan:
    graph = build_model(name, batch_of(name, devices), 1)
    try:
        plan = planned(library, name, graph, devices, how, mode)
    except NegativeAnswer as none:
        pytest.skip(str(none))
    assert_same(graph, plan.graph)
    return plan


@pytest.mark.parametrize(
    ("name", "devices", "how", "mode"),
    [
        pytest.param("dlrm-tiny", 4, "joint", "joint", marks=pytest.mark.soak),
        pytest.param("mlp-mnist", 6, "joint", "sequential", marks=pytest.mark.soak),
        pytest.param("xdl-tiny", 6, "joint", "parallel", marks=pytest.mark.soak),
        ("candle-uno-tiny", 4, "joint", "algebra"),
        pytest.param("xdl-tiny", 4, "expert", "joint", marks=pytest.mark.soak),
        pytest.param("bert-large-tiny", 4, "zero", "joint", marks=pytest.mark.soak),
        ("mlp-mnist", 4, "zero", "joint"),
        pytest.param("candle-uno-tiny", 4, "megatron", "joint", marks=pytest.mark.soak),
        ("dlrm-tiny", 4, "pipeline", "joint"),
        ("mlp-mnist", 3, "pipeline-2bw", "joint"),
    ],
)
def test_a_plan_computes_what_the_model_does(library, name, devices, how, mode):
    plan = check(library, name, devices, how, Mode(mode))
    assert plan.derivation
    used = {device for view in plan.views.values() for device in view.devices}
    assert used == set(range(devices))


@pytest.mark.soak
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("how", [*FAMILIES, *(mode for mode in Mode if mode is not Mode.JOINT)])
@pytest.mark.parametrize("name", TINY)
def test_all_plans_compute_what_the_model_does(library, name, devices, how):
    mode = how if isinstance(how, Mode) else Mode.JOINT
    check(library, name, devices, "joint" if isinstance(how, Mode) else how, mode)


RANDOM = st.tuples(
    training_graphs(cut=False), st.sampled_from((2, 3, 4, 6)), st.sampled_from(("joint", "zero"))
)


def check_random(library: Library, graph: Graph, devices: int, how: str) -> None:
    print(print_graph(graph))
    plan = planned(library, "random", graph, devices, how)
    print(print_graph(plan.graph))
    assert_same(graph, plan.graph, by_equation)


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=RANDOM)
def test_a_plan_of_a_random_graph(library, drawn):
    check_random(library, *drawn)


@pytest.mark.soak
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=RANDOM)
def test_plans_of_many_random_graphs(library, drawn):
    check_random(library, *drawn)


def test_another_function_is_told_apart():
    """The other tests rest on this: a difference in a value or in a gradient alone is noticed."""
    text = "x = input[4, 4]\nw = weight[4, 4]\n"
    model = parse_graph(text + "return mean_loss(matmul(x, w))")
    for other in ("mean_loss(scale(matmul(x, w), factor=1.001))", "mean_loss(matmul(x, relu(w)))"):
        with pytest.raises(AssertionError):
            assert_same(model, parse_graph(f"{text}return {other}"))
