"""Shrunk counterexamples are counterexamples, and small."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from statistics import median
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import check_each
from support.graphs.operators import known_within
from support.rules.refuted import first, lines, refute, shrunk
from support.rules.rule_files import parse

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from pcg.types.operator import Operator
from verifier import shrink as shrinking
from verifier.counterexample import Counterexample, difference, input_values, replay, replayable
from verifier.instances import Instance, instances, instantiate
from verifier.shrink import Measure, measure, shrink

EVERY = lines()
LINES = EVERY[::3]
"""A third in each run; `make soak` has all of them."""


def measured(counterexample: Counterexample) -> Measure:
    return measure(*replayable(counterexample))


def kinds(counterexample: Counterexample) -> str:
    again = difference(*replayable(counterexample))
    assert again is not None
    assert again.text == counterexample.difference
    return again.kind


def operators(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_shrunk_is_a_counterexample_to_the_same_pair():
    def check(line: str) -> None:
        instance, counterexample = first(line)
        smaller = shrunk(line)
        assert kinds(smaller) == kinds(counterexample)
        assert measured(smaller) <= measured(counterexample)
        assert shrink(instance, counterexample) == smaller
        sides = zip(parse(line), (smaller.left, smaller.right), strict=True)
        assert all(operators(Graph(side)) == operators(parse_graph(text)) for side, text in sides)
        assert dict(smaller.symbols).keys() == dict(counterexample.symbols).keys()

    check_each(LINES, check)


@pytest.mark.parametrize("pairs", [LINES, pytest.param(EVERY, marks=pytest.mark.soak)], ids=len)
def test_shrunk_are_small(pairs):
    before = [measured(first(line)[1]) for line in pairs]
    after = [measured(shrunk(line)) for line in pairs]
    for name in Measure._fields:
        for when, side in (("before", before), ("after", after)):
            met = [getattr(m, name) for m in side]
            print(f"{name} {when}: median {median(met):g}, most {max(met):g}")
    assert median(m.elements for m in after) <= 3
    assert max(m.elements for m in after) <= 64  # two images and a kernel
    assert median(m.nonzero for m in after) <= 1
    fractions = [line for line, m in zip(pairs, after, strict=True) if m.numbers >= 10]
    assert all("to_float16" in line for line in fractions)  # rounding shows in fractions only


def test_indices_stay_indices():
    def check(line: str) -> None:
        values = input_values(shrunk(line))
        for name in values.keys() & {"ids"}:
            assert (values[name] >= 0).all()
            assert (values[name] == np.rint(values[name])).all()

    check_each(LINES, check)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(LINES), st.integers(0, 5), st.integers(0, 3))
def test_shrinking_ends_at_a_counterexample_from_any_start(line, number, seed):
    """From other types and inputs than the first ones."""
    valuation = first(line)[0].valuation
    assert valuation is not None
    met = instances(*valuation.pair, valuation.sizes, valuation.degrees)
    instance = next(islice(met, number, None), None)
    replayed = replay(instance, seed) if instance is not None else None
    if instance is None or replayed is None:
        return
    with patch.object(shrinking, "value_difference", wraps=shrinking.value_difference) as evaluated:
        smaller = shrink(instance, replayed)
    assert evaluated.call_count <= shrinking.MAX_EVALUATIONS
    for call in evaluated.call_args_list:
        ids = call.args[1].get("ids", np.zeros(1))
        assert (ids >= 0).all()
        assert (ids == np.rint(ids)).all()
    assert kinds(smaller) == kinds(replayed)
    assert measured(smaller) <= measured(replayed)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x:2 | softmax(x, axis=0) == softmax(x, axis=1)", Measure(2, 6, 0, 0.0)),
        ("x:2 | relu(x) == gelu(x)", Measure(1, 6, 1, 1.0)),
        ("x:2 y:2 | relu(add(x, y)) == add(relu(x), relu(y))", Measure(2, 12, 2, 2.5)),
        ("x:2 | scale(x, factor=a) == scale(scale(x, factor=a), factor=a)", Measure(1, 6, 1, 3.0)),
        ("x:2 | x == replicate(reduce(x, degree=k), degree=k)", Measure(2, 9, 0, 0.0)),
        ("ids:1 t:2 | scale(embedding(ids, t), factor=a) == embedding(ids, t)", (2, 10, 1, 3.0)),
    ],
)
def test_smallest_of_all_is_found(line, expected):
    assert measured(shrunk(line)) == expected


@pytest.mark.parametrize("budget", range(9))
def test_no_larger_on_any_budget(monkeypatch, budget):
    """From sizes of 1 and 2. With both of 1 the sides do not differ, and with both of 2 they are
    larger."""
    valuation = first("x:2 | softmax(x, axis=0) == softmax(x, axis=1)")[0].valuation
    assert valuation is not None
    instance = instantiate(replace(valuation, values={"|x.0|": 1, "|x.1|": 2}))
    replayed = replay(instance) if instance is not None else None
    assert instance is not None
    assert replayed is not None
    monkeypatch.setattr(shrinking, "MAX_FOR_TYPES", budget)
    assert measured(shrink(instance, replayed)) <= measured(replayed)


def test_defined_differences_stay_defined():
    """1 / x is infinite at 0 and no more than x at 1."""
    inverse = Operator("inverse", "out[i...] = recip(x[i...])")
    with known_within(inverse):
        instance, counterexample = refute(*parse("x:1 | inverse(x) == x"))
        assert kinds(counterexample) == "value"
        smaller = shrink(instance, counterexample)
    assert kinds(smaller) == "value"
    assert input_values(smaller)["x"].tolist() == [[2.0]]


def test_fixed_sizes_stay():
    left, right = parse("x:2 | relu(x) == gelu(x)")
    valuation = first("x:2 | relu(x) == gelu(x)")[0].valuation
    assert valuation is not None
    instance = next(instances(left, right, valuation.sizes, valuation.degrees, {"|x.1|": 4}))
    replayed = replay(instance)
    assert replayed is not None
    assert dict(shrink(instance, replayed).inputs)["x"] == "[1, 4]"


def test_degrees_and_symbols_shrink():
    line = "x:2 w:2 | matmul(x, w) == matmul(partition(x, dim=1, degree=k), "
    instance, counterexample = first(line + "partition(w, dim=0, degree=k))")
    smaller = shrink(instance, counterexample)
    assert smaller.symbols == (("k", 2),)
    assert measured(smaller).degrees < measured(counterexample).degrees


@pytest.mark.parametrize("budget", [8, shrinking.MAX_EVALUATIONS])
def test_without_an_origin_values_shrink(monkeypatch, budget):
    monkeypatch.setattr(shrinking, "MAX_EVALUATIONS", budget)
    instance, counterexample = first(
        "x:2 y:2 | matmul(concat(x, x, axis=1), concat(y, y, axis=0)) == matmul(x, y)"
    )
    with patch.object(shrinking, "value_difference", wraps=shrinking.value_difference) as evaluated:
        smaller = shrink(replace(instance, valuation=None), counterexample)
    assert 1 < evaluated.call_count <= budget
    assert smaller.inputs == counterexample.inputs
    assert measured(smaller).nonzero < measured(counterexample).nonzero
    assert kinds(smaller) == "value"


def test_equal_sides_have_no_counterexample_to_shrink():
    instance, counterexample = first("x:2 | relu(x) == gelu(x)")
    same = Instance(instance.left, instance.left, instance.symbols)
    with pytest.raises(ValueError, match="do not differ"):
        shrink(same, counterexample)
