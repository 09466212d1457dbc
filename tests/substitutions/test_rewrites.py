"""Every rewrite of a graph by a library keeps types and values."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from support.graphs.strategies import graphs, parts_of_leaves, seeds

from pcg.errors import OperatorError
from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from substitutions.rules.match import build, matches, rewrite
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import Library, load_library
from verifier.trusted.sizes.runs import free_runs

MOST = 200
"""The number of rewrites of one random graph that are evaluated."""


def general(name: str, left: str, right: str, **inputs: int) -> Rule:
    rule = parse_rule(name, inputs, left, right)
    return replace(rule, runs=free_runs(rule.left, rule.right))


PAIR = "split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|)"
GENERAL = (
    general(
        "cut",
        "combine(pointwise(partition(x, dim=1, degree=k)), dim=1, degree=k)",
        "pointwise(x)",
        x=3,
    ),
    general(
        "cut of two",
        "combine(pointwise2(partition(x, dim=1, degree=k), partition(y, dim=1, degree=k)),"
        " dim=1, degree=k)",
        "pointwise2(x, y)",
        x=3,
        y=3,
    ),
    general("merge", "matmul(x, y), matmul(x, z)", f"{PAIR}.0, {PAIR}.1", x=2, y=2, z=2),
    general(
        "merge of functions",
        "pointwise(x), pointwise(y)",
        "split(pointwise(concat(x, y, axis=1)), axis=1, at=|x.1|).0,"
        " split(pointwise(concat(x, y, axis=1)), axis=1, at=|x.1|).1",
        x=3,
        y=3,
    ),
    general(
        "concat and functions",
        "concat(pointwise(x), pointwise(y), axis=1)",
        "pointwise(concat(x, y, axis=1))",
        x=3,
        y=3,
    ),
    general("turn", "transpose(transpose(x, dim0=1, dim1=3), dim0=1, dim1=3)", "x", x=5),
    general(
        "turn a function",
        "transpose(pointwise(x), dim0=1, dim1=3)",
        "pointwise(transpose(x, dim0=1, dim1=3))",
        x=5,
    ),
    general("scales", "scale(scale(x, factor=a), factor=b)", "scale(x, factor=a*b)", x=1),
)
"""Some general rules with stand-ins and several outputs, beside the committed ones."""


@pytest.fixture(scope="module")
def library() -> Library:
    return Library((*GENERAL, *load_library().rules), "test")


def rewrites(library: Library, graph: Graph):
    """(rule, graph after), for every rule of the library for a graph, in both directions."""
    for rule in (way for both in library.concrete(graph) for way in (both, both.reversed)):
        if not rule.is_applicable:
            continue
        symbols = sorted(rule.free_symbols)
        for match in matches(rule, graph):
            for values in product((1, 2, 3), repeat=len(symbols)):
                outputs = build(rule, match, dict(zip(symbols, values, strict=True)))
                if outputs is not None and outputs != match.outputs:
                    yield rule, rewrite(graph, match, outputs)


def values_of(graph: Graph, parts: dict[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [meaning(value, Reals()) for value in evaluate_shards(graph, parts, Reals())]


def check(
    graph: Graph,
    after: Graph,
    rule: Rule,
    parts: dict[str, np.ndarray],
    values: list[np.ndarray],
) -> None:
    """Check rewrites of a graph. ``values``: the values of the graph before."""
    after.check()
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs], rule.text
    pairs = list(zip(values, values_of(after, parts), strict=True))
    for expected, actual in pairs:
        fine = np.isfinite(expected)
        assert np.allclose(actual[fine], expected[fine], rtol=1e-6, atol=1e-9), (
            rule.name,
            rule.text,
        )


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=3, deadline=None, suppress_health_check=SLOW)
@given(graph=graphs(operators=5), seed=seeds)
def test_rewrites_of_random_graphs_keep_types_and_values(library, graph, seed):
    parts = parts_of_leaves(graph, seed, Reals())
    values, made = values_of(graph, parts), 0
    for rule, after in rewrites(library, graph):
        try:
            check(graph, after, rule, parts, values)
        except OperatorError as error:
            raise AssertionError(f"{rule.text}: {error}") from error
        made += 1
        if made == MOST:
            break
    event(f"{min(made, 100) // 20 * 20} rewrites or more")


ATTENTION = """
    x = input[4, 6]
    q = weight[6, 4]
    k = weight[6, 4]
    v = weight[6, 2]
    a = matmul(x, q)
    b = matmul(x, k)
    c = matmul(x, v)
    s = matmul(transpose(a, dim0=0, dim1=1), b)
    r = matmul(c, transpose(c, dim0=0, dim1=1))
    return relu(scale(scale(s, factor=2.0), factor=0.25)), relu(r), add(a, b)
"""


@pytest.mark.soak  # the property above has such graphs too
def test_rewrites_of_a_graph_with_shared_inputs(library):
    """Products that share an input are merged in pairs, and so are equal functions of values that
    share one. No operator is merged with its own result."""
    graph = parse_graph(ATTENTION)
    parts = parts_of_leaves(graph, 1, Reals())
    values = values_of(graph, parts)
    met: dict[str, int] = {}
    for rule, after in rewrites(library, graph):
        check(graph, after, rule, parts, values)
        name = rule.name.split("[")[0]
        met[name] = met.get(name, 0) + 1
    assert met["merge"] == 6
    assert met["scales"] == 1
    assert met["cut"] > 4
    assert met["cut of two"] > 2
    assert "turn a function" not in met  # no function is exchanged
    assert "merge of functions" not in met  # they share no input: pairs of all functions
    assert sum(met.values()) > 100
