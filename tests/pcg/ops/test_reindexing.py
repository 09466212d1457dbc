"""Elements beyond the ends of a slice, and permutations made of transposes."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from support.cases import each
from support.graphs.differential import assert_means

from pcg.graph.graph import Leaf, Node, Value
from pcg.ops import reindexing
from pcg.ops.reindexing import cut_out, permute
from runtime.execute.kernels import run_whole


@each("axis", [0, 1, -1])
@each("start", [-7, -2, 0, 1, 4, 9])
@each("size", [1, 3, 8])
def test_a_part_of_an_axis_that_may_lie_beyond(axis: int, start: int, size: int):
    x = torch.arange(24.0).reshape(2, 4, 3)
    have = x.shape[axis]
    parts = [
        x.select(axis, at) if 0 <= at < have else torch.full_like(x.select(axis, 0), 5.0)
        for at in range(start, start + size)
    ]
    assert cut_out(x, axis, start, size, 5.0).equal(torch.stack(parts, axis))


@pytest.mark.parametrize(("start", "size"), [(0, 4), (1, 2), (3, 4), (5, 2)])
def test_slice_reads_0_beyond_the_end(start: int, size: int):
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    wide = torch.nn.functional.pad
    call = reindexing.slice(axis=1, start=start, size=size)
    assert_means(call, (x,), lambda x: wide(x, (0, 0, 0, 9))[:, start : start + size])


@pytest.mark.parametrize(("before", "size"), [(0, 4), (2, 7), (2, 3), (0, 2), (5, 3)])
def test_pad_may_cut_off_the_end(before: int, size: int):
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    wide = torch.nn.functional.pad
    call = reindexing.pad(axis=1, before=before, size=size)
    assert_means(call, (x,), lambda x: wide(x, (0, 0, before, 9))[:, :size])


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_every_permutation_takes_the_fewest_transposes(rank: int):
    x = torch.randn(tuple(range(2, 2 + rank)))
    leaf = Value(Node(Leaf("tensor", "x", rank)))
    for order in permutations(range(rank)):
        result, swaps = x, 0
        for call in calls(permute(leaf, order)):
            (result,), swaps = run_whole(call, [result]), swaps + 1
        assert result.equal(x.permute(order))
        assert swaps == rank - cycles(order)


def calls(value: Value) -> list:
    """The operators that a chain applies, first to last."""
    if value.node.is_leaf:
        return []
    return [*calls(value.node.inputs[0]), value.node.operator_call]


def cycles(order: tuple[int, ...]) -> int:
    """The number of cycles of a permutation. One of n elements with c cycles is n - c swaps, and
    never fewer."""
    left, count = set(range(len(order))), 0
    while left:
        at, count = left.pop(), count + 1
        while (at := order[at]) in left:
            left.remove(at)
    return count


@pytest.mark.parametrize("order", [(0, 0), (1, 2), (-1, 0)])
def test_no_permutation(order: tuple[int, ...]):
    with pytest.raises(ValueError, match="does not name each of 2 dimensions once"):
        permute(Value(Node(Leaf("tensor", "x", 2))), order)
