"""A run of untouched axes is as good as one axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.cases import check_each, each
from support.rules.rule_files import lines, parse

from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.plan.text import parse_values, print_value
from pcg.readings.evaluate import evaluate_whole
from pcg.readings.ring import Array, PrimeField
from pcg.types.operator import Operator
from substitutions.generate.algebra.enumerate import instances
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.runs import Group, free_runs, keeps_runs, widened

SOUND = [line for line in lines("sound") if free_runs(*parse(line))]
FIELD = PrimeField(generic=True)
OUTER, INNER = 2, 3
"""The sizes of the two axes that replace one."""


def test_axes_that_are_read_along_are_not_free():
    left = parse_values("softmax(x, axis=1)", {"x": 3})
    assert free_runs(left, left) == ((("x", 0),), (("x", 2),))


def test_an_axis_that_both_sides_leave_alone_is_one_group():
    sides = ("matmul(add(x, y), w)", "add(matmul(x, w), matmul(y, w))")
    left, right = (parse_values(s, {"x": 2, "y": 2, "w": 2}) for s in sides)
    assert free_runs(left, right) == ((("x", 0), ("y", 0)),)


def test_an_axis_that_one_side_cuts_is_not_free():
    sides = ("relu(x)", "combine(relu(partition(x, dim=0, degree=k)), dim=0, degree=k)")
    left, right = (parse_values(s, {"x": 2}) for s in sides)
    assert free_runs(left, right) == ((("x", 1),),)


def test_an_axis_whose_size_an_attribute_says_is_not_free():
    left = parse_values("scale(x, factor=c)", {"x": 2})
    right = parse_values("divide_by_size(x, size=|x.1|)", {"x": 2})
    assert free_runs(left, left) == ((("x", 0),), (("x", 1),))
    assert free_runs(left, right) == ((("x", 0),),)


@each(
    ("text", "ranks", "free"),
    [
        ("batch_matmul(x, y)", {"x": 3, "y": 3}, ((("x", 0), ("y", 0)),)),
        ("batch_matmul(x, y)", {"x": 2, "y": 2}, ()),
        ("flatten(x, axis=1)", {"x": 4}, ((("x", 0),), (("x", 3),))),
        ("unflatten(x, axis=1, outer=n, inner=m)", {"x": 3}, ((("x", 0),), (("x", 2),))),
        ("expand(x, axis=1, size=n)", {"x": 2}, ((("x", 0),), (("x", 1),))),
        ("stack(x, y, axis=0)", {"x": 1, "y": 1}, ((("x", 0), ("y", 0)),)),
        ("mean_loss(x)", {"x": 2}, ((("x", 0),), (("x", 1),))),
        ("batch_norm(x, w, b, eps=e)", {"x": 4, "w": 1, "b": 1}, ((("x", 2),), (("x", 3),))),
        ("add(x, ones2(size0=n, size1=m))", {"x": 2}, ()),
        ("transpose(x, dim0=0, dim1=1)", {"x": 3}, ((("x", 2),),)),
        ("pipeline(x, dim=1, degree=k)", {"x": 2}, ((("x", 0),),)),
        ("replicate(x, degree=k)", {"x": 1}, ((("x", 0),),)),
    ],
)
def test_free_axes_of_operators(text: str, ranks: dict[str, int], free: tuple[Group, ...]):
    side = parse_values(text, ranks)
    assert free_runs(side, side) == free


def test_positions_move_with_the_axes_before_them():
    left = parse_values("partition(softmax(x, axis=1), dim=2, degree=k)", {"x": 3})
    (first, *_) = free_runs(left, left)
    wide, _ = widened(left, left, {first: 3})
    assert print_value(wide[0]) == "partition(softmax(x, axis=3), dim=4, degree=k)"
    none, _ = widened(left, left, {first: 0})
    assert print_value(none[0]) == "partition(softmax(x, axis=0), dim=1, degree=k)"


def test_sizes_move_with_the_axes_before_them():
    left = parse_values("split(x, axis=1, at=|x.1|).0", {"x": 2})
    wide, _ = widened(left, left, {(("x", 0),): 3})
    assert print_value(wide[0]) == "split(x, axis=3, at=|x.3|).0"


def test_several_runs_change_at_once_as_one_after_the_other():
    left = parse_values("transpose(x, dim0=1, dim1=3)", {"x": 5})
    first, second, third = free_runs(left, left)
    at_once = widened(left, left, {first: 2, second: 0, third: 3})
    assert print_value(at_once[0][0]) == "transpose(x, dim0=2, dim1=3)"
    assert at_once[0][0].rank == 7


@pytest.mark.parametrize(
    "equation",
    [
        "x[i...] -> out[i...] = x[i...] * i0",
        "x[i...] -> out[i...] = x[i...] * |i0|",
        "x[i..., k] -> out[i..., k] = x[k, i...]",
        "x[i..., k] -> let f[i..., k] = x[i..., k]; out[i..., k] = f[k, i...]",
        "x[i..., k] -> out[k] = max i... where k < 3: x[i..., k]",
    ],
)
def test_an_operator_that_looks_into_a_run_has_no_free_axes(equation: str):
    operator = Operator("looks_in", equation)
    assert not keeps_runs(operator)
    side = (Value(Node(operator(), (tensor("x", 3),))),)
    assert free_runs(side, side) == ()


def test_our_operators_look_into_no_run():
    assert all(keeps_runs(o) for o in (*OPERATORS.values(), *STAND_INS.values()))


def test_an_attribute_that_is_called_dim_is_no_dimension():
    operator = Operator("shifted_by", "x[i...] -> out[i...] = x[i...] + dim", sizes=("dim",))
    side = (Value(Node(operator(dim=1), (tensor("x", 3),))),)
    assert free_runs(side, side) == ((("x", 0),), (("x", 1),), (("x", 2),))
    wide, _ = widened(side, side, {(("x", 0),): 4})
    assert wide[0].node.operator_call.values["dim"] == 1


COMPUTING = [o for o in (*OPERATORS.values(), *STAND_INS.values()) if o.runs and not o.parallel]
TWOS = ("size", "times", "outer", "inner", "groups")
SIZES = {"at": 1, "start": 0, "before": 1, "classes": 3, **dict.fromkeys(TWOS, 2)}


@each("operator", COMPUTING, ids=lambda o: o.name)
def test_two_axes_in_the_place_of_one_compute_the_same(operator: Operator):
    """By the reference evaluation: an operator gives the same for two axes as for these merged into
    one, and likewise for an axis of one element left out."""
    checked = 0
    for instance in instances(operator):
        node = Node(instance.call, tuple(tensor(f"x{i}", r) for i, r in enumerate(instance.ranks)))
        side = tuple(node.value(port) for port in range(len(node.ranks)))
        for group in free_runs(side, side):
            assert_same(side, group, axes=(OUTER, INNER))
            assert_same(side, group, axes=())
            checked += 1
    assert checked


def assert_same(side: tuple[Value, ...], group: Group, axes: tuple[int, ...]) -> None:
    """Check that the outputs have the same elements if some axes replace each axis of a group."""
    changed, _ = widened(side, side, {group: len(axes)})
    rng = np.random.default_rng(0)
    attributes = {**dict.fromkeys(side[0].node.operator_call.operator.reals, 3), **SIZES}
    values: dict[str, Array] = {}
    wide: dict[str, Array] = {}
    for leaf in (node.leaf for node in Graph(side).leaves):
        dims = [dim for name, dim in group if name == leaf.name]
        shape = [math.prod(axes) if dim in dims else 4 for dim in range(leaf.rank)]
        values[leaf.name] = rng.integers(0, 5, shape)
        parts = [n for dim, size in enumerate(shape) for n in (axes if dim in dims else (size,))]
        wide[leaf.name] = values[leaf.name].reshape(parts)
    one = evaluate_whole(Graph(side), values, FIELD, attributes)
    many = evaluate_whole(Graph(changed), wide, FIELD, attributes)
    for a, b, value in zip(one, many, changed, strict=True):
        assert b.ndim == value.rank
        assert a.size == b.size
        assert (a.reshape(b.shape) == b).all()


@pytest.mark.parametrize("step", [6, pytest.param(2, marks=pytest.mark.soak)])
@each("count", [0, 2])
def test_rule_proved_for_one_axis_is_proved_for_runs_of_axes(step: int, count: int):
    check_each(SOUND[::step], lambda line: proved_for_runs(line, count))


def proved_for_runs(line: str, count: int) -> None:
    left, right = parse(line)
    for group in free_runs(left, right):
        pair = widened(left, right, {group: count})
        decision = decide(*pair)
        if decision.reason != "no small sizes fit the degrees":
            assert decision.verdict is Verdict.PROVED, [print_value(v) for s in pair for v in s]


def test_more_than_20_sound_rules_have_free_axes():
    assert len(SOUND) > 20
