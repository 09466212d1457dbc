"""Ranks as threads: a deadlock is told from a slow rank."""

from __future__ import annotations

import time

import pytest
import torch
from support.runs.simulated import on_ranks


def test_ranks_that_wait_for_each_other_are_a_deadlock():
    """Both ranks receive before they send. The third rank has ended."""

    def work(world):
        if world.rank == 2:
            return
        world.exchange({}, {1 - world.rank: 1}, torch.float64)

    with pytest.raises(AssertionError, match="all ranks wait"):
        on_ranks(3, work)


def test_first_error_of_a_rank_is_raised_before_its_consequences():
    def work(world):
        if world.rank == 1:
            raise ValueError("of rank 1")
        return world.total(1.0)

    with pytest.raises(AssertionError, match="of rank 1"):
        on_ranks(3, work)


def test_a_slow_rank_is_waited_for():
    def work(world):
        if world.rank == 1:
            time.sleep(0.1)
        return world.total(1.0)

    assert on_ranks(3, work) == [3.0] * 3


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_and_sums_have_groups_of_their_own(ordered):
    """A rank may wait for the sum of a number after the others have gone on."""

    def work(world):
        world.prepare([(0, 1)])
        if world.rank == 0:
            total = world.start_total(1.0)
            world.exchange({1: torch.ones(3)}, {}, torch.float32)
            world.exchange({}, {1: 3}, torch.float32, "backward")
            world.settle()
            return total()
        world.exchange({0: torch.ones(3)}, {}, torch.float32, "backward")
        world.exchange({}, {0: 3}, torch.float32)
        world.settle()
        return world.total(1.0)

    assert on_ranks(2, work, ordered=ordered) == [2.0, 2.0]


def test_one_group_executes_its_communication_in_order():
    """One rank sends before it sums, and one sums before it receives."""

    def work(world):
        both = [
            lambda: world.exchange(*ends[world.rank], torch.float32),
            lambda: totals.append(world.start_total(1.0)),
        ]
        ends = [({1: torch.ones(3)}, {}), ({}, {0: 3})]
        totals = []
        # Nothing is prepared, so there is only the default group.
        for call in both if world.rank else both[::-1]:
            call()
        return totals[0]()

    assert on_ranks(2, work) == [2.0, 2.0]
    with pytest.raises(AssertionError, match="all ranks wait"):
        on_ranks(2, work, ordered=True)
