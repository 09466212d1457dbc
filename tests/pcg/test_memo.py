"""Results are computed once for each key, and at most the allowed number is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.memo import Answers, Memo, remembered


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_results_are_those_of_the_function_within_the_bound(keys: list[int], most: int) -> None:
    memo = Memo[int, int](most)
    made: list[int] = []
    for key in keys:

        def square(key: int = key) -> int:
            made.append(key)
            return key * key

        assert memo.get(key, square) == key * key
        assert len(memo) <= most
    assert memo.hits == len(keys) - len(made)
    if len(set(keys)) <= most:
        assert sorted(made) == sorted(set(keys))


def test_memo_remembers_none_as_a_result() -> None:
    memo = Memo[str, int | None]()
    assert memo.get("key", lambda: None) is None
    assert memo.get("key", lambda: 1) is None
    assert memo.hits == 1


def test_an_error_is_not_remembered() -> None:
    memo = Memo[str, float]()
    with pytest.raises(ZeroDivisionError):
        memo.get("key", lambda: 1 / 0)
    assert memo.get("key", lambda: 2.0) == 2.0
    memo.clear()
    assert len(memo) == 0


class Counter:
    """Counts how often its method runs."""

    def __init__(self) -> None:
        self.runs = 0

    @remembered
    def total(self, first: int, second: int) -> int:
        self.runs += 1
        return first + second


def test_a_method_is_remembered_in_its_own_object() -> None:
    one, other = Counter(), Counter()
    assert [one.total(1, 2), one.total(1, 2), one.total(2, 1)] == [3, 3, 3]
    assert other.total(1, 2) == 3
    assert (one.runs, other.runs) == (2, 1)


def test_each_question_is_asked_once():
    asked: list[int] = []

    def square(number: int) -> int:
        asked.append(number)
        return number * number

    memo = Answers(square)
    assert [memo[3], memo[4], memo[3]] == [9, 16, 9]
    assert asked == [3, 4]
    memo.clear()
    assert memo[3] == 9
    assert asked == [3, 4, 3]


def test_question_that_raises_is_not_remembered():
    memo = Answers[str, int](int)
    with pytest.raises(ValueError, match="invalid literal"):
        memo["x"]
    assert not memo
