"""Sharded evaluation: tasks compute from their blocks the same as the whole tensors give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each, examples
from support.graphs.strategies import COMPUTE, Applied, applied, graphs, parts_of_leaves, seeds

from pcg.graph.graph import Graph
from pcg.readings.evaluate import evaluate_shards, evaluate_whole, meaning
from pcg.readings.ring import PrimeField, Reals
from pcg.types.operator import Operator

RINGS = (Reals(), PrimeField())


def check(graph: Graph, seed: int, ring: Reals | PrimeField) -> None:
    """Check that shards add up to the whole and have the shapes of their types."""
    parts = parts_of_leaves(graph, seed, ring)
    whole = evaluate_whole(graph, {name: meaning(v, ring) for name, v in parts.items()}, ring)
    shards = evaluate_shards(graph, parts, ring)
    for value, v, g in zip(graph.outputs, shards, whole, strict=True):
        assert v.shape == (value.type.degrees.partials, *value.type.shape)
        same(meaning(v, ring), g, ring)


def same(a: Any, b: Any, ring: Reals | PrimeField) -> None:
    if isinstance(ring, PrimeField):
        np.testing.assert_array_equal(a, b)
    else:
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * scale)


@each("operator", COMPUTE, ids=lambda operator: operator.name)
@examples(2)
@given(data=st.data(), seed=seeds, ring=st.sampled_from(RINGS))
def test_sharded_operators_equal_whole_ones(
    operator: Operator, data: st.DataObject, seed: int, ring: Reals | PrimeField
):
    case: Applied = data.draw(applied((operator,)))
    check(case.graph, seed, ring)


@settings(max_examples=33)
@given(graph=graphs(), seed=seeds, ring=st.sampled_from(RINGS))
def test_sharded_graphs_equal_whole_ones(graph: Graph, seed: int, ring: Reals | PrimeField):
    check(graph, seed, ring)


@pytest.mark.parametrize(
    ("equation", "cuts"),
    [
        # Two sums over one name, multiplied: the product of parts is no part of the product.
        ("out[i] = (sum k: x[i, k]) * (sum k: y[i, k])", ["i"]),
        ("out[i] = (sum k: x[i, k]) * exp(sum k: y[i, k])", ["i"]),
        ("out[i] = (sum k: x[i, k]) + (sum k: y[i, k])", ["i", "k"]),
        ("out[i] = 1 + (sum k: x[i, k])", ["i"]),
        ("out[i] = exp(sum k: x[i, k])", ["i"]),
        # A sum over a part of the operand's index.
        ("x[i, k] -> out[i] = sum k < 2: x[i, k]", ["i"]),
        # Neighbours and reversals are read from other tasks.
        ("x[i, j] -> out[i, j] = x[i, j] + x[i, j + 1]", ["i"]),
        ("x[i, j] -> out[i, j] = x[i, |j| - 1 - j]", ["i"]),
        ("x[i, i] -> out[i] = x[i, i]", []),
        # A sum that is squared, and a sum within a let.
        ("let s[i] = sum k: x[i, k]; out[i] = s[i] * s[i]", ["i"]),
        ("x[i, j] -> out[] = sum i, j: x[i, j]; rows[i] = sum j: x[i, j]", ["j", "i"]),
    ],
)
def test_typing_of_other_equations(equation: str, cuts: list[str]):
    operator = Operator("other", equation)
    ranks = tuple(len(operand.dims) for operand in operator._expand(()).operands)
    assert {axis.name for axis in operator.typing(ranks, ()).axes} == set(cuts)
