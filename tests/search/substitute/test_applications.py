"""What rules do to graphs: every application keeps types and meaning, and chains count as one."""

from __future__ import annotations

import numpy as np
import pytest

from pcg.graph.graph import Graph, Node
from pcg.models import build_model
from pcg.models.mlp import mlp
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, evaluate_whole, meaning
from pcg.readings.ring import PrimeField
from pcg.types.tensor import ParallelTensor
from search.substitute.applications import Keys, Rewrites
from substitutions.rules.store import Library, load_library

DEVICES = 6


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def rewrites(library: Library) -> Rewrites:
    return Rewrites(library.concrete(small_mlp()), DEVICES)


def small_mlp() -> Graph:
    return mlp(6, (6, 12, 6))


def test_every_application_keeps_the_meaning(rewrites: Rewrites) -> None:
    graph = small_mlp()
    ring = PrimeField()
    rng = np.random.default_rng(0)
    leaves = {n.leaf.name: rng.integers(0, ring.prime, n.types[0].shape) for n in graph.leaves}
    (expected,) = evaluate_whole(graph, leaves, ring)
    shards = {name: values[None] for name, values in leaves.items()}
    seen = 0
    for changed, application in rewrites.applications(graph):
        assert changed.outputs[0].type == graph.outputs[0].type
        (found,) = evaluate_shards(changed, shards, ring)
        assert meaning(found, ring) == expected, application
        seen += 1
    assert seen > 20


def test_degrees_are_the_divisors_of_the_device_count(rewrites: Rewrites) -> None:
    cut = {
        int(str(node.operator_call.values["degree"]))
        for graph, _ in rewrites.applications(small_mlp())
        for node in graph.nodes
        if node.is_parallel
    }
    assert cut == {2, 3, 6}


def test_a_library_without_rules_makes_no_move() -> None:
    empty = Rewrites((), DEVICES)
    assert not list(empty.applications(small_mlp()))
    assert [o.parts for o in empty.options(small_mlp().outputs[0].node.inputs[0])] == [()]


def test_only_what_is_allowed_is_made(library: Library) -> None:
    def whole(node: Node) -> bool:
        return node.types[0] == ParallelTensor.whole(node.types[0].shape)

    rewrites = Rewrites(library.concrete(small_mlp()), DEVICES, allow=whole)
    for graph, _ in rewrites.applications(small_mlp()):
        for node in graph.nodes:
            assert node.is_leaf or node.is_parallel or whole(node)


def test_options_cut_each_dimension_by_every_degree_that_fits(rewrites: Rewrites) -> None:
    (value,) = (v for n in small_mlp().nodes if n.name == "relu" for v in n.inputs)
    types = {str(option.type) for option in rewrites.options(value)}
    assert {"[6, 12]", "[6/2, 12]", "[6/3, 12/2]", "[6, 12/6]", "[6/6, 12]"} <= types
    for option in rewrites.options(value):
        assert option.cut(value).type == option.type
        assert option.join(option.cut(value)).type == value.type


def test_the_order_of_a_chain_does_not_count() -> None:
    first = "x = input[4, 4]\nt = relu(partition(replicate(x, degree=2), dim=0, degree=2))"
    second = "x = input[4, 4]\nt = relu(replicate(partition(x, dim=0, degree=2), degree=2))"
    third = "x = input[4, 4]\nt = relu(replicate(partition(x, dim=1, degree=2), degree=2))"
    keys = Keys()
    numbers = [keys.of(parse_graph(f"{text}\nreturn t")) for text in (first, second, third)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_how_a_weight_is_stored_counts() -> None:
    head = "x = input[4, 4]\nw = weight[4, 4]\n"
    plain = parse_graph(f"{head}return matmul(x, w)")
    stored = "combine(partition(w, dim=0, degree=2), dim=0, degree=2)"
    zero = parse_graph(f"{head}return matmul(x, {stored})")
    keys = Keys()
    assert keys.of(plain) != keys.of(zero)


def test_tidying_removes_what_cancels(rewrites: Rewrites) -> None:
    graph = parse_graph(
        "x = input[4, 4]\n"
        "a = combine(relu(partition(x, dim=0, degree=2)), dim=0, degree=2)\n"
        "b = combine(relu(partition(a, dim=0, degree=2)), dim=0, degree=2)\n"
        "return b"
    )
    tidy, applied = rewrites.tidied(graph)
    assert [n.name for n in tidy.nodes if not n.is_leaf] == ["partition", "relu", "relu", "combine"]
    assert len(applied) == 1


def test_models_of_the_zoo_have_rewrites(rewrites: Rewrites) -> None:
    graph = build_model("mlp-mnist", 6, DEVICES)
    assert next(rewrites.applications(graph), None) is not None
