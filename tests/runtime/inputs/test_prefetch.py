"""A user's data, read one batch ahead: the same values, in order, and no batch too many."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from pcg.graph.graph import Leaf
from pcg.types.tensor import ParallelTensor
from runtime.inputs.prefetch import Prefetcher

X = Leaf("input", "x", 1, ParallelTensor.whole((4,)), None)
LEFT, RIGHT = ((0, 2),), ((2, 4),)


class Read:
    """Records which data were read, and by which thread."""

    counts = True

    def __init__(self, bad=None):
        self.steps, self.threads, self.bad = [], set(), bad

    def piece(self, leaf, region, step):
        self.steps.append(step)
        self.threads.add(threading.get_ident())
        if step == self.bad:
            raise ValueError(f"no step {step}")
        return torch.arange(*region[0]) + 10 * step


def ahead(source, end):
    made = Prefetcher(source, [(X, LEFT), (X, RIGHT)], torch.float64, torch.device("cpu"))
    made.end = end
    return made


def test_next_batch_is_read_while_the_current_batch_is_used():
    source = Read()
    made = ahead(source, 3)
    for step in (0, 1, 2, 2):
        for region in (LEFT, RIGHT):
            expected = torch.arange(*region[0]).double() + 10 * step
            assert torch.equal(made.piece(X, region, step), expected)
    assert source.steps == [0, 0, 1, 1, 2, 2]
    assert source.threads.isdisjoint({threading.get_ident()})
    assert len(source.threads) == 1


def test_without_an_end_nothing_is_read_ahead():
    source = Read()
    made = ahead(source, None)
    made.piece(X, LEFT, 5)
    made.piece(X, LEFT, 3)
    assert source.steps == [5, 5, 3, 3]


def test_an_error_comes_when_its_batch_is_asked_for():
    made = ahead(Read(bad=1), 9)
    made.piece(X, LEFT, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="no step 1"):
            made.piece(X, LEFT, 1)


def test_inputs_that_are_not_finite_are_listed_by_step():
    class Bad(Read):
        def piece(self, leaf, region, step):
            value = super().piece(leaf, region, step).double()
            return value / 0 if region == RIGHT and step == 1 else value

    made = ahead(Bad(), 9)
    made.piece(X, LEFT, 0)
    assert made.bad(0) == []
    made.piece(X, LEFT, 1)
    assert made.bad(1) == ["input x"]
    assert made.bad(7) == []


def test_the_thread_ends_with_its_prefetcher():
    source = Read()
    made = ahead(source, 3)
    made.piece(X, LEFT, 0)
    (reading,) = (t for t in threading.enumerate() if t.ident in source.threads)
    del made
    gc.collect()
    reading.join(timeout=60)
    assert not reading.is_alive()
