"""The table of classes against all graphs written out one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np
import pytest

from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.ops import OPERATORS
from pcg.readings.evaluate import evaluate_values
from pcg.readings.ring import PrimeField
from substitutions.generate.algebra.algebra import algebra
from substitutions.generate.algebra.selection import PairSearch
from substitutions.generate.algebra.table import ClassTable
from substitutions.generate.algebra.worlds import AlgebraWorld

FIELD = PrimeField(generic=True)
NAMES = ("x", "y", "z")
SIZE = 2
SQUARES = AlgebraWorld(
    "squares",
    ("matmul", "add", "subtract", "transpose", "tanh"),
    ((2, 2),),
)
RANDOM = {
    name: np.random.default_rng(i).integers(1, FIELD.prime, (2, 2)) for i, name in enumerate(NAMES)
}
OTHER = np.random.default_rng(len(NAMES)).integers(1, FIELD.prime, (2, 2))


def graphs(size: int) -> list[Value]:
    """Every value of at most ``size`` operators over three inputs."""
    calls = [
        *(OPERATORS[name]() for name in ("matmul", "add", "subtract", "tanh")),
        OPERATORS["transpose"](dim0=0, dim1=1),
    ]
    values: dict[Value, None] = dict.fromkeys(tensor(name, 2) for name in NAMES)
    for _ in range(size):
        for call in calls:
            for inputs in product(list(values), repeat=call.operator.arity):
                value = Value(Node(call, inputs))
                if operators(value) <= size:
                    values.setdefault(value)
    return list(values)


def operators(value: Value) -> int:
    return sum(not node.is_leaf for node in Graph((value,)).nodes)


def hashed(value: Value, inputs: Mapping[str, np.ndarray]) -> bytes:
    (result,) = evaluate_values((value,), Graph((value,)).nodes, inputs, FIELD, {})
    return np.ascontiguousarray(result).tobytes()


def key(value: Value) -> bytes:
    """The meaning of a value, up to the names of its inputs."""
    return min(
        hashed(value, dict(zip(NAMES, (RANDOM[n] for n in order), strict=True)))
        for order in permutations(NAMES)
    )


def constant(value: Value) -> bool:
    """Whether a value does not depend on all of its inputs (x - x)."""
    used = [node.leaf.name for node in Graph((value,)).leaves]
    for name in used:
        changed = {**RANDOM, name: OTHER}
        if hashed(value, changed) == hashed(value, RANDOM):
            return True
    return False


@pytest.fixture(scope="module")
def written_out() -> list[Value]:
    return graphs(SIZE)


@pytest.mark.soak
@pytest.mark.parametrize("kept", [True, False])
def test_the_classes_are_the_distinct_values(written_out: Sequence[Value], kept: bool) -> None:
    expected = {key(value) for value in written_out if not constant(value)}
    table = ClassTable(SQUARES, FIELD)
    if kept:
        for size in range(1, SIZE + 1):
            table.grow(size)
        assert len(table.classes) == len(expected)
    else:
        distinct = PairSearch(table, SIZE).distinct
        # Of the greatest size, terms that ignore an input count too, except 0.
        ignoring = {key(value) for value in written_out if constant(value)}
        assert len(expected) <= distinct <= len(expected | ignoring)


def equalities() -> Iterator[tuple[Value, Value]]:
    search = PairSearch(ClassTable(SQUARES, FIELD), SIZE)
    for least, *others in search.groups():
        for other in others:
            (left,), (right,) = search.pair(other, least)
            yield left, right
    for (left,), (right,) in search.mirrored():
        yield left, right


def test_candidates_are_equal_on_other_inputs() -> None:
    fresh = {
        name: np.random.default_rng(100 + i).integers(1, FIELD.prime, (2, 2))
        for i, name in enumerate(NAMES)
    }
    pairs = list(equalities())
    assert pairs
    for left, right in pairs:
        assert hashed(left, fresh) == hashed(right, fresh)


def test_well_known_equalities_are_among_the_candidates() -> None:
    texts = {f"{Graph((a,)).digest}{Graph((b,)).digest}" for a, b in equalities()}
    x, y, z = (tensor(name, 2) for name in NAMES[:3])
    matmul, add = OPERATORS["matmul"](), OPERATORS["add"]()

    def of(call: object, *inputs: Value) -> Value:
        return Value(Node(call, inputs))  # type: ignore[arg-type]

    named = {
        f"{Graph((first,)).digest}{Graph((second,)).digest}"
        for a, b, c in permutations((x, y, z))
        for left, right in [(of(matmul, of(matmul, a, b), c), of(matmul, a, of(matmul, b, c)))]
        for first, second in ((left, right), (right, left))
    }
    assert named & texts
    assert len(list(equalities())) == len(texts)
    assert not any(a == b for a, b in equalities())
    twice = of(OPERATORS["transpose"](dim0=0, dim1=1), x)
    back = of(OPERATORS["transpose"](dim0=0, dim1=1), twice)
    assert f"{Graph((back,)).digest}{Graph((x,)).digest}" in texts
    assert add.operator.commutative


def test_a_world_may_have_no_graphs_of_the_greatest_size() -> None:
    """The shapes of the world leave no room for three concats in a row."""
    world = AlgebraWorld("one", ("concat",), ((1, 4),), ((1, 8),))
    candidates = algebra(world, 3)
    assert candidates.graphs > 0
    assert all(candidate.inputs for candidate in candidates.candidates)
