"""Work within a budget: an item that exceeds the budget loses its own answer, and no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import active_children
from time import process_time

import pytest

from pcg.budget import Budget, BudgetSpent
from pcg.errors import InputError
from substitutions.rules.limited import LostItem, limited_map

SMALL = Budget(seconds=1, memory=256)


def _spin() -> None:
    while True:
        pass


def _one_operation() -> int:
    """Python handles no signal during this operation."""
    return 10 ** (10**9) // 7


def _fill() -> None:
    kept: list[bytearray] = []
    while True:
        kept.append(bytearray(8 << 20))


def _recurse() -> None:
    _recurse()


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


BAD: dict[int, tuple[Callable[[], object], BudgetSpent]] = {
    2: (_spin, BudgetSpent.TIME),
    5: (_fill, BudgetSpent.MEMORY),
    6: (_recurse, BudgetSpent.DEPTH),
    7: (_crash, BudgetSpent.MEMORY),
    9: (_one_operation, BudgetSpent.TIME),
}


def _work(number: int) -> int:
    if number in BAD:
        BAD[number][0]()
    return number * number


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_each_item_has_its_answer_or_the_budget_it_spent(jobs: int):
    answers = list(limited_map(_work, range(12), jobs, SMALL))
    shown = [result.spent if isinstance(result, LostItem) else result for result in answers]
    assert shown == [BAD[i][1] if i in BAD else i * i for i in range(12)]
    assert all(result.seconds >= 0 for result in answers if isinstance(result, LostItem))
    assert not active_children()


def test_a_budget_is_for_each_item_and_not_for_all():
    def work(_: int) -> None:
        end = process_time() + 0.4
        while process_time() < end:
            pass

    assert list(limited_map(work, range(3), 1, SMALL)) == [None] * 3


def test_errors_are_raised_here():
    def work(number: int) -> None:
        raise InputError("here", f"number {number}")

    with pytest.raises(InputError, match="here: number 0"):
        list(limited_map(work, range(3), 1, SMALL))
    assert not active_children()


def test_a_map_that_is_left_ends_its_workers():
    answers = limited_map(_work, range(12), 2, SMALL)
    assert next(answers) == 0
    answers.close()  # type: ignore[attr-defined]
    assert not active_children()


def test_empty_list_of_items_has_no_answers():
    assert not list(limited_map(_work, (), 2, SMALL))
