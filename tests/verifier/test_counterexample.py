"""The concrete types at which pairs are tried, and the content of a counterexample."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from support.cases import check_each
from support.graphs.operators import known_within
from support.rules.refuted import Outputs, first, lines, refute
from support.rules.rule_files import parse

from pcg.graph.graph import Graph, Node, Value
from pcg.language.poly import Poly
from pcg.types.operator import Operator
from verifier.counterexample import difference, input_values, replay, replayable
from verifier.decide import Verdict, decide
from verifier.instances import Instance, instances
from verifier.trusted.sizes.sizes import Sizes

MOVED = (
    "x:2 | combine(combine(x, dim=0, degree=j), dim=1, degree=k)"
    " == combine(combine(x, dim=1, degree=k), dim=0, degree=j)"
)


def tried(
    line: str, degrees: Mapping[str, int], fixed: Mapping[str, int] | None = None
) -> Iterator[Instance]:
    left, right = parse(line)
    return instances(left, right, sizes_of(left, right), degrees, fixed)


def sizes_of(left: Outputs, right: Outputs) -> Sizes:
    sizes = Sizes()
    for node in Graph((*left, *right)).nodes:
        sizes.visit(node)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(sizes.shape(a), sizes.shape(b), strict=True):
            sizes.equal(x, y)
    return sizes


def shapes(instance: Instance) -> dict[str, tuple[int, ...]]:
    types = {name: leaf.type for name, leaf in instance.leaves.items()}
    return {name: type_.shape for name, type_ in types.items() if type_ is not None}


@pytest.mark.parametrize("step", [9, pytest.param(3, marks=pytest.mark.soak)])
def test_counterexample_replays_from_its_own_data(step: int):
    def check(line: str) -> None:
        _, counterexample = first(line)
        again = difference(*replayable(counterexample))
        assert again is not None
        assert again.text == counterexample.difference
        types = {name: leaf.type for name, leaf in replayable(counterexample)[0].leaves.items()}
        for name, values in input_values(counterexample).items():
            type_ = types[name]
            assert type_ is not None
            assert values.shape == (type_.degrees.partials, *type_.shape)
        assert "\n" not in str(counterexample)
        assert hash(counterexample) == hash(pickle.loads(pickle.dumps(counterexample)))

    check_each(lines()[1::step], check)


def test_sizes_are_pairwise_different_where_they_may():
    line = "x:3 y:3 z:2 | add(x, y), relu(z) == add(y, x), relu(z)"
    instance = next(tried(line, {}))
    sizes = [*shapes(instance)["x"], *shapes(instance)["z"]]
    assert len(set(sizes)) == 5
    wide = " ".join(f"{name}:3" for name in "uvwx")
    sides = ", ".join(f"relu({name})" for name in "uvwx")
    sizes = [
        s
        for shape in shapes(next(tried(f"{wide} | {sides} == {sides}", {}))).values()
        for s in shape
    ]
    assert len(set(sizes)) == 12


def test_degrees_are_pairwise_different_after_the_first_try():
    given = {"j": 2, "k": 2, "x.d0": 2, "x.d1": 2, "x.t0": 1, "x.t1": 1, "x.c": 1, "x.p": 1}
    met = [i.symbols for i in tried(MOVED, given)]
    degrees = [(tried_at["j"], tried_at["k"]) for tried_at in met]
    assert degrees[0] == (2, 2)
    assert {(3, 2), (2, 3)} <= set(degrees[:9])
    for instance in tried(MOVED, given):
        assert instance.left.outputs[0].type == instance.right.outputs[0].type
        assert replay(instance) is None


def test_degrees_stay_such_that_types_agree():
    line = "x:2 | combine(x, dim=0, degree=j) == combine(x, dim=0, degree=k)"
    given = {"j": 2, "k": 2, "x.d0": 2, "x.d1": 1, "x.t0": 1, "x.t1": 1, "x.c": 1, "x.p": 1}
    met = {(instance.symbols["j"], instance.symbols["k"]) for instance in tried(line, given)}
    assert met == {(2, 2), (3, 3)}


def test_fixed_sizes_hold_in_every_instance():
    line = "x:2 w:2 | matmul(x, w) == matmul(x, w)"
    met = [shapes(i) for i in tried(line, {}, {"|x.1|": 6})]
    assert met
    assert all(instance["x"][1] == instance["w"][0] == 6 for instance in met)
    assert len({instance["x"][0] for instance in met}) > 1
    assert not list(tried(line, {}, {"|x.1|": 6, "|w.0|": 5}))


@pytest.mark.parametrize(
    "line",
    [
        "x:2 | scale(scale(x, factor=a), factor=b) == scale(x, factor=a*b)",
        pytest.param(
            "x:2 | add(scale(x, factor=a), scale(x, factor=b)) == scale(x, factor=a+b)",
            marks=pytest.mark.soak,
        ),
        "x:2 | add(scale(x, factor=a), scale(x, factor=a)) == scale(x, factor=2*a)",
    ],
)
def test_sums_and_products_of_real_attributes_are_those_of_their_values(line):
    met = [replay(instance) for instance in tried(line, {})]
    assert met
    assert set(met) == {None}
    assert decide(*parse(line)).verdict is not Verdict.REFUTED


def test_real_attributes_may_be_negative():
    _, counterexample = refute(*parse("x:2 | relu(scale(x, factor=a)) == scale(relu(x), factor=a)"))
    assert dict(counterexample.symbols)["a"] < 0


def test_inputs_are_not_needed():
    counted = Operator("counted", "out[i < size] = i", sizes=("size",))
    ones = Operator("all_ones", "out[i < size] = 1", sizes=("size",))
    size = Poly.of("n")
    sides = [(Value(Node(operator(size=size))),) for operator in (counted, ones)]
    with known_within(counted, ones):
        _, counterexample = refute(*sides)
        assert counterexample.inputs == counterexample.values == ()
        assert str(counterexample).startswith("n = ")
        assert difference(*replayable(counterexample)) is not None
    assert all(replay(i) is None for i in instances(sides[0], sides[0], sizes_of(*sides), {}))


def test_values_are_exact():
    instance, counterexample = first(lines()[-1])
    again = replay(instance)
    assert again == counterexample
    assert all(np.isfinite(values).all() for values in input_values(counterexample).values())
