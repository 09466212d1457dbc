"""Cases that share a test: all are tried, and those that fail are named."""

from __future__ import annotations

import inspect

import pytest
from support.cases import check_each, each


def test_all_cases_are_tried_and_those_that_fail_are_named():
    tried: list[int] = []

    @each("number", range(4), ids=lambda number: f"case {number}")
    def odd_fail(number: int, fixture: str) -> None:
        tried.append(number)
        assert fixture == "given"
        if number == 3:
            pytest.fail("three")
        assert number != 1, "one"

    assert list(inspect.signature(odd_fail).parameters) == ["fixture"]
    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases: case 1; case 3") as raised:
        odd_fail(fixture="given")
    assert tried == [0, 1, 2, 3]
    notes = [error.__notes__ for error in raised.value.exceptions]
    assert notes == [["in the case case 1"], ["in the case case 3"]]


def test_several_parameters_multiply():
    tried: list[tuple[int, int, str]] = []

    @each("letter", "ab")
    @each(("n", "m"), [(1, 2), (3, 4)], ids=["low", "high"])
    def all_are(n: int, m: int, letter: str) -> None:
        tried.append((n, m, letter))

    all_are()
    assert sorted(tried) == [(1, 2, "a"), (1, 2, "b"), (3, 4, "a"), (3, 4, "b")]


def test_no_cases_are_no_success():
    with pytest.raises(AssertionError, match="there are no cases"):
        check_each([], lambda case: None)
