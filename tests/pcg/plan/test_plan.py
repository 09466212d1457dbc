"""Plan files: a saved plan is loaded as the same plan, and an altered file is refused by its
place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs.strategies import placed, training_graphs
from support.plans.random_plans import orders_of

from pcg.errors import InputError
from pcg.files import read_json
from pcg.graph.graph import Graph, Node
from pcg.machine import load_machine
from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.derivation import Application, AppliedRule, made_id
from pcg.plan.plan import Plan, altered_parts, load_plan, machine_record, save_plan
from pcg.plan.precision import Precision
from pcg.plan.schema import EstimatesFile, MachineFile, PlanFile
from pcg.plan.text import parse_graph
from pcg.plan.training import Training

MODEL = parse_graph("""
    x = input[64, 784]
    w1 = weight[784, 512]
    w2 = weight[512, 10]
    return mean_loss(matmul(relu(matmul(x, w1)), w2))
""")
GRAPH = parse_graph("""
    x = input[64, 784]
    w1 = weight[784, 512]
    w2 = weight[512, 10]
    p = matmul(partition(x, dim=1, degree=2), partition(w1, dim=0, degree=2))
    h = relu(partition(reduce(p, degree=2), dim=0, degree=2))
    return mean_loss(combine(matmul(h, replicate(w2, degree=2)), dim=0, degree=2))
""")
ESTIMATES = EstimatesFile(
    step_seconds=0.5,
    one_device_seconds=1.0,
    communication_elements=8,
    peak_memory_bytes=64,
)

Content = dict[str, Any]


def packed(graph: Graph) -> dict[Node, MachineView]:
    return {
        node: MachineView.packed(0, grid(node))
        for node in graph.nodes
        if not node.is_leaf and not node.is_parallel
    }


def plan_of(
    model: Graph, graph: Graph, views: Mapping[Node, MachineView], machine: MachineFile
) -> Plan:
    rule = AppliedRule("row cut~", "row cut", (), (), True, "x == x")
    derivation = (Application(rule, ("t0",), ("x", "w1"), (("factor", 0.5), ("k", 2))),)
    return Plan("mlp-mnist", model, graph, views, machine, "0" * 64, derivation, ESTIMATES)


@pytest.fixture
def plan() -> Plan:
    machine = machine_record(load_machine("summit").with_devices(2))
    return plan_of(MODEL, GRAPH, packed(GRAPH), machine)


@pytest.fixture
def path(tmp_path: Path, plan: Plan) -> Path:
    save_plan(plan, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_round_trip(plan: Plan, path: Path):
    assert load_plan(path) == plan
    again = path.with_name("again.json")
    save_plan(load_plan(path), again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("precision", ["fp64", "tf32", "bf16", "fp16"])
def test_plans_keep_their_number_format(plan: Plan, path: Path, precision: Precision):
    """Plans in float32 are written as before there were other formats."""
    assert "precision" not in path.read_text()
    other = replace(plan, training=Training("adam", precision))
    save_plan(other, path)
    assert load_plan(path) == other
    content = read_json(path, PlanFile)
    assert not altered_parts(content)
    changed = content.decisions.model_copy(update={"precision": "fp32"})
    assert "decisions.precision" in altered_parts(content.model_copy(update={"decisions": changed}))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=placed(training_graphs()), data=st.data())
def test_round_trip_of_any_plan(
    tmp_path: Path, case: tuple[Graph, dict[Node, MachineView], int], data: st.DataObject
):
    graph, views, devices = case
    machine = MachineFile(name="m", kind="cpu", devices=devices, hash="0")
    order = data.draw(st.just(()) | orders_of(graph))
    given = replace(plan_of(graph, graph, views, machine), order=order)
    save_plan(given, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == given


def set_in(*keys: str | int, to: Any) -> Callable[[Content], None]:
    """A change of one field, given by its path."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


def remove(*keys: str | int) -> Callable[[Content], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


VIEW = {"start": 0, "shape": [1, 1, 2, 1, 1], "strides": [0, 0, 1, 0, 0]}
MATMUL = ("decisions", "views", "t2")


@pytest.mark.parametrize(
    ("change", "place", "problem"),
    [
        (set_in("schema_version", to=1), "", "at schema_version: expected 4, got 1"),
        (remove("library_hash"), "", "at library_hash: missing"),
        (set_in("more", to=1), "", "at more: unknown field"),
        (set_in("model", "hash", to="0"), "", "model.hash is not that of model.graph"),
        (set_in("model", "graph", 0, to="x = input[64, 785]"), ": model.graph", "size 784"),
        (set_in("model", "graph", 3, to="t0 = foo(x)"), ": model.graph: line 4", "unknown"),
        (set_in("machine", "devices", to=0), "", "at machine.devices: expected"),
        (set_in("machine", "devices", to="2"), "", "at machine.devices: expected integer"),
        (set_in("machine", "kind", to="tpu"), "", "at machine.kind: expected"),
        (set_in("machine", "devices", to=1), ": decisions.views.t2", "device 1, the machine has 1"),
        (set_in("estimates", "step_seconds", to=-1), "", "at estimates.step_seconds: expected"),
        (set_in("decisions", "graph", 1, to="t0 = partition(x, dim=1, degree=3)"),
         ": decisions.graph", "degree 3 does not divide size 784"),
        (set_in("decisions", "graph", 1, to="t0 = partition(x, dim=1, degree=1)"),
         ": decisions.graph", "degree 1, expected an integer of at least 2"),
        (set_in("decisions", "graph", 0, to="x = input[32, 784]"), ": decisions.graph",
         "x: input of shape (32, 784), not in model.graph"),
        (set_in("decisions", "graph", 0, to="x = weight[64, 784]"), ": decisions.graph",
         "x: weight of shape (64, 784), not in model.graph"),
        (set_in("decisions", "graph", to=[]), ": decisions.graph", "expected a last line 'return"),
        (set_in("decisions", "graph", to=["w1 = weight[784, 512]", "return w1"]),
         ": decisions.graph", "the first output is the loss"),
        (set_in("decisions", "graph", to=["w1 = weight[784, 512]", "t0 = mean_loss(w1)",
                                          "return t0, t0"]), ": decisions.views.", "no such"),
        (remove(*MATMUL), ": decisions.views.t2", "no view, expected one of (1, 1, 2, 1, 1) tasks"),
        (set_in("decisions", "views", "t99", to=VIEW), ": decisions.views.t99", "no such operator"),
        (set_in(*MATMUL, "shape", to=[2]), ": decisions.views.t2", "shape (2,), expected"),
        (set_in(*MATMUL, "strides", to=[1]), ": decisions.views.t2", "shape (1, 1, 2, 1, 1)"),
        (set_in(*MATMUL, "strides", to=[0] * 5), ": decisions.views.t2", "two tasks on one device"),
        (set_in(*MATMUL, "start", to=1), ": decisions.views.t2", "device 2, the machine has 2"),
        (set_in(*MATMUL, "start", to=-1), "", "at decisions.views.t2.start: expected"),
        (set_in(*MATMUL, "start", to=True), "", "at decisions.views.t2.start: expected integer"),
        (set_in("decisions", "derivation", to=[{}]), "", "at decisions.derivation[0].rule:"),
        (set_in("decisions", "derivation", to=[]), ": decisions.rules.row cut~", "no step applies"),
        (set_in("decisions", "derivation", 0, "rule", to="row cut"),
         ": decisions.derivation[0]", "rule row cut is none of decisions.rules"),
        (set_in("decisions", "rules", to={}), ": decisions.derivation[0]", "rule row cut~ is none"),
        (set_in("decisions", "derivation", 0, "symbols", "k", to="2"), "",
         "at decisions.derivation[0].symbols.k"),
        (set_in("decisions", "rules", "row cut~", "axes", to=[-1]), "",
         "at decisions.rules.row cut~.axes[0]: expected"),
    ],
)  # fmt: skip
def test_altered_plans(path: Path, change: Callable[[Content], None], place: str, problem: str):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load_plan(path)
    error = caught.value
    if place.endswith("."):
        assert error.where.startswith(f"{path}{place}")
    else:
        assert error.where == f"{path}{place}"
    assert problem in error.problem
    assert len(str(error).splitlines()) == 1


def test_plan_with_other_outputs_than_its_model_is_refused(path: Path):
    content = json.loads(path.read_text())
    content["decisions"]["graph"][-1] += ", x"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"decisions.graph returns other shapes than model.graph"):
        load_plan(path)


def test_a_failed_save_leaves_the_old_file(plan: Plan, path: Path):
    before = path.read_bytes()
    with pytest.raises(InputError):
        save_plan(plan, path / "below a file")
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_each_part_has_a_hash(plan: Plan, path: Path):
    """An edited plan that is valid may run, but the edit is reported."""
    content = json.loads(path.read_text())
    assert altered_parts(PlanFile.model_validate_json(path.read_text())) == ()
    content["decisions"]["views"]["t2"]["strides"] = [0, 0, 1, 0, 1]
    content["estimates"]["step_seconds"] = 0.25
    del content["hashes"]["machine"]
    content["hashes"]["more"] = "0"
    path.write_text(json.dumps(content))
    assert load_plan(path).estimates.step_seconds == 0.25
    altered = altered_parts(PlanFile.model_validate_json(path.read_text()))
    assert altered == ("decisions.views", "estimates", "machine", "more")


def test_an_entry_has_a_line(path: Path):
    lines = path.read_text().splitlines()
    assert '  "derivation": [' in lines
    step = '{"rule": "row cut~", "at": ["t0"], "inputs": ["x", "w1"],'
    assert f'   {step} "symbols": {{"factor": 0.5, "k": 2}}}}' in lines
    assert made_id(17, 2, 0) == "17.2"
    assert made_id(17, 2, 1) == "17.2.1"
