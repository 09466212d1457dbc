"""Ranks as threads tell a deadlock from a slow rank."""

from __future__ import annotations

import time

import pytest
import torch
from simulated import on_ranks


def test_ranks_that_wait_for_each_other_are_a_deadlock():
    """Both receive before they send; the third rank has ended."""

    def work(world):
        if world.rank == 2:
            return
        world.exchange({}, {1 - world.rank: 1}, torch.float64)

    with pytest.raises(AssertionError, match="all ranks wait"):
        on_ranks(3, work)


def test_an_error_of_one_rank_comes_before_what_follows_from_it():
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
