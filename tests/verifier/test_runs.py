"""A run of untouched axes is as good as one axis."""

from __future__ import annotations

import pytest
from rule_files import lines, parse

from pcg.text import parse_values, print_value
from verifier.decide import Verdict, decide
from verifier.runs import free_runs, widened

SOUND = [line for line in lines("sound") if free_runs(*parse(line))]


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


def test_positions_move_with_the_axes_before_them():
    left = parse_values("partition(softmax(x, axis=1), dim=2, degree=k)", {"x": 3})
    (first, *_) = free_runs(left, left)
    wide, _ = widened(left, left, first, 3)
    assert print_value(wide[0]) == "partition(softmax(x, axis=3), dim=4, degree=k)"
    none, _ = widened(left, left, first, 0)
    assert print_value(none[0]) == "partition(softmax(x, axis=0), dim=1, degree=k)"


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("line", SOUND[::2])
def test_what_is_proved_for_one_axis_is_proved_for_others(line: str, count: int):
    left, right = parse(line)
    for group in free_runs(left, right):
        pair = widened(left, right, group, count)
        decision = decide(*pair)
        if decision.reason != "no small sizes fit the degrees":
            assert decision.verdict is Verdict.PROVED, [print_value(v) for s in pair for v in s]


def test_there_are_such_rules():
    assert len(SOUND) > 20
