"""A memory asks its function once for each question."""

from __future__ import annotations

import pytest

from pcg.memo import Memo


def test_each_question_is_asked_once():
    asked: list[int] = []

    def square(number: int) -> int:
        asked.append(number)
        return number * number

    memo = Memo(square)
    assert [memo[3], memo[4], memo[3]] == [9, 16, 9]
    assert asked == [3, 4]
    memo.clear()
    assert memo[3] == 9
    assert asked == [3, 4, 3]


def test_what_has_no_answer_is_not_remembered():
    memo = Memo[str, int](int)
    with pytest.raises(ValueError, match="invalid literal"):
        memo["x"]
    assert not memo
