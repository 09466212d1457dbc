"""Operators at given ranks, and the parallel operators on a tensor."""

from __future__ import annotations

import pytest

from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from substitutions.generate.algebra.enumerate import (
    computing,
    input_names,
    instance,
    instances,
    labels,
    moves,
    runs_of,
)


def test_instances_of_an_operator():
    ranks = {o.name: sorted(i.ranks for i in instances(o)) for o in computing()}
    assert ranks["relu"] == [(0,), (1,), (2,), (3,)]
    assert ranks["matmul"] == [(2, 2), (3, 2)]
    assert ranks["batch_matmul"] == [(3, 3)]
    assert ranks["concat"] == [(1, 1), *[(2, 2)] * 2, *[(3, 3)] * 3]
    assert ranks["flatten"] == [(2,), (3,), (3,)]
    assert ranks["embedding"] == [(1, 2), (2, 2)]
    assert ranks["conv2d"] == [(4, 4)]  # its least rank, which may be more than that of others
    assert ranks["expand"] == [(0,), *[(1,)] * 2, *[(2,)] * 3]
    for operator in computing():
        least = min(i.max_rank for i in instances(operator))
        for built in instances(operator):
            assert max(built.edges) == built.max_rank <= max(3, least)


@pytest.mark.parametrize(
    ("name", "lengths", "text", "edges"),
    [
        ("softmax", {"a": 2, "b": 1}, "softmax(axis=2)", (4, 4)),
        ("transpose", {"a": 1, "b": 0, "c": 2}, "transpose(dim0=1, dim1=2)", (5, 5)),
        ("stack", {"a": 1, "b": 1}, "stack(axis=1)", (2, 2, 3)),
        ("split", {"a": 0, "b": 1}, "split(axis=0, at=at)", (2, 2, 2)),
    ],
)
def test_an_instance_at_given_lengths(name, lengths, text, edges):
    built = instance(OPERATORS[name], lengths)
    assert built is not None
    assert (str(built.call), built.edges) == (text, edges)


def test_labels_tell_the_axes_of_runs_from_the_others():
    assert runs_of(OPERATORS["softmax"]) == ["a", "b"]
    x, out = labels(OPERATORS["softmax"], {"a": 2, "b": 1})
    assert x == out == (("a", 0), ("a", 1), ("", 1), ("b", 0))
    assert labels(OPERATORS["matmul"], {"a": 1})[0] == (("a", 0), ("", 1))


def test_names_of_inputs():
    assert input_names(3) == ("x", "y", "z")
    assert len(set(input_names(20))) == 20


def test_moves_are_all_parallel_operators_at_a_rank():
    texts = [str(call) for call in moves(1, Poly.of("k"))]
    assert texts == [
        "partition(dim=0, degree=k)",
        "combine(dim=0, degree=k)",
        "pipeline(dim=0, degree=k)",
        "batch(dim=0, degree=k)",
        "replicate(degree=k)",
        "reduce(degree=k)",
    ]
    assert [len(moves(rank, 2)) for rank in range(4)] == [2, 6, 10, 14]
