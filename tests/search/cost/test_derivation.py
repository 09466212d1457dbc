"""Derivations: the recorded steps of any walk by rules lead from the model to the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from support.plans.walks import steps_from

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.derivation import Application
from pcg.plan.plan import Plan, machine_record
from pcg.plan.schema import EstimatesFile
from pcg.plan.text import parse_graph
from search.choices import Mode
from search.cost.cost import CostModel
from search.cost.derivation import Derivation, Scribe
from search.map.building import Builder
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import data_parallel
from search.substitute.rewrites import Limits
from search.substitute.variants import variants
from substitutions.audit.replay import replay
from substitutions.rules.store import Library, load_library

MODELS = {
    "perceptron": (
        "x = input[8, 12]\nw = weight[12, 4]\nv = weight[4, 8]\n"
        "return mean_loss(matmul(relu(matmul(x, w)), v))"
    ),
    "shared": (
        "x = input[8, 8]\nw = weight[8, 8]\nt = matmul(x, w)\n"
        "return mean_loss(add(add(t, t), multiply(relu(t), t)))"
    ),
    "equal branches": (
        "x = input[4, 8]\nw = weight[8, 4]\nv = weight[8, 4]\n"
        "return sum_loss(add(matmul(x, w), matmul(x, v))), matmul(x, v)"
    ),
    "split": (
        "x = input[4, 8]\nw = weight[8, 8]\na, b = split(matmul(x, w), axis=1, at=4)\n"
        "return sum_loss(add(relu(a), b))"
    ),
}
ESTIMATES = EstimatesFile(
    step_seconds=1.0,
    one_device_seconds=1.0,
    communication_elements=0,
    peak_memory_bytes=0,
)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def plan_of(model: Graph, graph: Graph, steps: Sequence[Application]) -> Plan:
    machine = machine_record(load_machine("local"))
    return Plan("m", model, graph, {}, machine, "", tuple(steps), ESTIMATES)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
@pytest.mark.parametrize("name", MODELS)
def test_a_walk_is_replayed(name: str, seed: int, library: Library):
    """Random walks by any usable rule anywhere: values are shared, merged and unfolded on the
    way."""
    model = parse_graph(MODELS[name])
    rules = library.concrete(model)
    random, graph = Random(seed), model
    scribe = Scribe.after(Derivation.start(model))
    for _ in range(4):
        graph = scribe.follow(graph, random.choice(list(steps_from(graph, rules, (2, 4)))))
    assert {v: scribe.ids[v] for n in graph.nodes for v in n.inputs}
    followed = replay(plan_of(model, graph, scribe.steps), library.rules)
    assert followed.findings == ()
    assert followed.steps == 4


def test_derivation_begins_with_the_decomposition(library: Library):
    """A batch norm is decomposed, so that its batch can be cut."""
    model = parse_graph(
        "x = input[64, 4]\ns = weight[4]\nb = weight[4]\n"
        "return mean_loss(batch_norm(relu(x), s, b, eps=0.001))"
    )
    machine = load_machine("dgx-a100").with_devices(2)
    alone = Chooser.on(CostModel(machine.with_devices(1)), Cuts())
    variant = next(variants(model, library, Mode.PARALLEL, alone, Limits(tries=0)))
    graph, before = variant.graph, variant.derivation
    assert "batch_norm" not in {node.name for node in graph.nodes}
    assert replay(plan_of(model, graph, before.steps), library.rules).findings == ()
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(library.concrete(graph)))
    cut = Builder(chooser.spaces).cut(chooser.choose(graph, 0.0, data_parallel(graph)), before)
    assert cut.graph != graph
    assert cut.steps[: len(before.steps)] == before.steps
    assert replay(plan_of(model, cut.graph, cut.steps), library.rules).findings == ()
