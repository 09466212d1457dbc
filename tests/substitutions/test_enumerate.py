"""The graphs that are enumerated, against all texts of their form."""

from __future__ import annotations

from itertools import product

import pytest

from pcg.graph import Graph
from pcg.operator import Operator
from pcg.ops import OPERATORS
from pcg.poly import Poly
from pcg.text import parse_values
from substitutions.cuts import decorations
from substitutions.enumerate import (
    CORE,
    NAMES,
    Instance,
    computing,
    core_instances,
    decorated,
    instances,
    move_chains,
    moves,
    pairs,
    single,
)
from substitutions.rule import side_text


def only(operator: str, *ranks: int) -> Instance:
    return next(i for i in instances(OPERATORS[operator]) if i.ranks == ranks)


def nested(first: str, second: str) -> set[str]:
    """Every second operator over inputs and a first, which it reads at least once; all of rank 1.

    ``first`` and ``second`` are calls with ``{}`` where an operand goes.
    """
    found: set[str] = set()
    for inner in product(NAMES, repeat=first.count("{}")):
        made = first.format(*inner)
        for operands in product((made, *NAMES), repeat=second.count("{}")):
            if made in operands:
                text = second.format(*operands)
                found.add(Graph(parse_values(text, dict.fromkeys(NAMES, 1))).digest)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("relu({})", "relu({})"),
        ("relu({})", "add({}, {})"),
        ("add({}, {})", "relu({})"),
        ("add({}, {})", "multiply({}, {})"),
        ("concat({}, {}, axis=0)", "concat({}, {}, axis=0)"),
        ("concat({}, {}, axis=0)", "add({}, {})"),
    ],
)
def test_pairs_are_all_there(first, second):
    a, b = (only(text.split("(")[0], *[1] * text.count("{}")) for text in (first, second))
    found = [Graph(side).digest for side in pairs(a, b)]
    assert set(found) == nested(first, second)


@pytest.mark.parametrize(
    ("operator", "ranks", "count"),
    [
        ("relu", (1,), 4),
        ("concat", (1, 1), 16),
        ("matmul", (2, 2), 16),
        ("layer_norm", (2, 1, 1), 4 * 3 * 3),  # an input has one rank
        ("softmax", (2,), 4),
        ("split", (1,), 4 * 3),  # each output alone, and both
    ],
)
def test_single_operators_are_all_there(operator, ranks, count):
    found = [Graph(side).digest for side in single(only(operator, *ranks))]
    assert len(found) == len(set(found)) == count


@pytest.mark.parametrize(("first", "second"), [("concat", "relu"), ("relu", "concat")])
def test_graphs_are_enumerated_once(first, second):
    """Operands of commutative operators aside, which have no order."""
    ranks = {"relu": (1,), "concat": (1, 1)}
    sides = list(pairs(only(first, *ranks[first]), only(second, *ranks[second])))
    assert len({Graph(side).digest for side in sides}) == len(sides)


def test_symbols_of_equal_operators_are_told_apart():
    scale = only("scale", 1)
    texts = {side_text(side) for side in pairs(scale, scale)}
    assert "scale(scale(x, factor=factor), factor=factor2)" in texts
    assert "scale(scale(x, factor=factor2), factor=factor)" in texts


def test_instances_of_an_operator():
    ranks = {o.name: sorted(i.ranks for i in instances(o)) for o in computing()}
    assert ranks["relu"] == [(0,), (1,), (2,), (3,)]
    assert ranks["matmul"] == [(2, 2), (3, 2)]
    assert ranks["batch_matmul"] == [(3, 3)]
    assert ranks["concat"] == [(1, 1), *[(2, 2)] * 2, *[(3, 3)] * 3]
    assert ranks["flatten"] == [(2,), (3,), (3,)]
    assert ranks["embedding"] == [(1, 2), (2, 2)]
    assert ranks["conv2d"] == [(4, 4)]  # its least rank, which is more than others may have
    assert ranks["expand"] == [(0,), *[(1,)] * 2, *[(2,)] * 3]
    for operator in computing():
        least = min(i.max_rank for i in instances(operator))
        for instance in instances(operator):
            assert max(*instance.ranks, *instance.outputs) == instance.max_rank <= max(3, least)


def test_every_core_operator_has_a_core_instance():
    found = core_instances(computing())
    assert {instance.call.operator.name for instance in found} == CORE
    assert all(min(instance.ranks) > 0 for instance in found)


def test_a_user_s_operator_is_a_core_operator():
    cube = Operator("cube", "out[i...] = x[i...] * x[i...] * x[i...]")
    assert [i.ranks for i in core_instances([cube])] == [(1,), (2,)]


def test_moves():
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


def test_chains_of_moves():
    found = {side_text(side) for side in move_chains(0)}
    outer = [f"{o}({{}}, degree={{}})" for o in ("replicate", "reduce")]
    expected = {"x"}
    for inner, k in product(outer, ("k", "k2")):
        one = inner.format("x", k)
        expected |= {one, *(o.format(one, j) for o in outer for j in ("k", "k2"))}
    expected -= {o.format(i.format("x", "k2"), "k2") for o, i in product(outer, outer)}
    assert found == expected


@pytest.mark.parametrize("instance", [only("relu", 1), only("matmul", 2, 2), only("split", 1)])
def test_decorated_graphs_are_those_that_are_typed(instance):
    """Each typed graph of the family, once; those without are no side of any rule."""
    every = {side_text(side) for side in decorated(instance, Poly.of("k"))}
    edges = [2 + 4 * rank + 1 for rank in (*instance.ranks, *instance.outputs)]
    count = 1
    for options in edges:
        count *= options
    assert len(every) == count
    typed: dict[object, list[str]] = {}
    for graph in decorations(instance):
        typed.setdefault(graph.key[0], []).append(side_text(graph.outputs))
    for texts in typed.values():
        assert len(texts) == len(set(texts))
        assert set(texts) <= every
