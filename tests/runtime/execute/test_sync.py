"""Gradients that share buffers: complete, and in one order on all ranks."""

from __future__ import annotations

import torch
from support.runs.simulated import on_ranks

from pcg.graph.graph import Leaf
from pcg.types.tensor import ParallelTensor
from runtime.execute.sync import GradientSync
from runtime.program import buckets as sharing
from runtime.program.buckets import buckets
from runtime.program.program import Weight

GROUP = (0, 1)


def weight(name: str, position: int, group=GROUP, length: int = 4) -> Weight:
    leaf = Leaf("weight", name, 1, ParallelTensor.whole((length,)), None)
    return Weight(name, leaf, ((0, length),), group, position)


def sizes(weights) -> dict[str, int]:
    return {w.register: 8 * w.region[0][1] for w in weights}


def test_buckets_fill_from_the_end_of_the_program(monkeypatch):
    monkeypatch.setattr(sharing, "FIRST_BYTES", 1)
    monkeypatch.setattr(sharing, "BUCKET_BYTES", 64)
    weights = [weight(f"w{i}", i) for i in range(6)]
    filled = buckets(weights, sizes(weights))
    assert [[w.register for w in b.weights] for b in filled] == [
        ["w5"],
        ["w4", "w3"],
        ["w2", "w1"],
        ["w0"],
    ]
    assert [b.position for b in filled] == [5, 3, 1, 0]


def test_weights_of_different_groups_share_nothing():
    weights = [weight("a", 3), weight("b", 2, (0, 2)), weight("c", 1), weight("d", 0, (0,))]
    filled = buckets(weights, sizes(weights))
    assert [(b.group, [w.register for w in b.weights]) for b in filled] == [
        ((0, 2), ["b"]),
        ((0, 1), ["a", "c"]),
        ((0,), ["d"]),
    ]


def synced(world, order) -> tuple[dict[str, list[float]], list[str]]:
    """The synchronized gradients, which are complete in some order, and those that were asked
    for."""
    weights = [weight("a", 2), weight("b", 1), weight("alone", 1, (world.rank,)), weight("c", 0)]
    taken: list[str] = []
    world.prepare([GROUP])

    def take(register: str) -> torch.Tensor:
        taken.append(register)
        return torch.full((4,), float(world.rank + 1), dtype=torch.float64)

    both = GradientSync(buckets(weights, sizes(weights)), world, take)
    for register in order[world.rank]:
        both.complete(register)
    both.flush(1)
    gradients = both.finish()
    again = both.finish()
    assert {n: g.tolist() for n, g in again.items()} == {
        n: g.tolist() for n, g in gradients.items()
    }
    return {name: gradient.tolist() for name, gradient in gradients.items()}, taken


def test_the_order_of_completion_may_differ_between_ranks():
    order = [["c", "a", "b"], ["b"]]
    for rank, (gradients, taken) in enumerate(on_ranks(2, lambda world: synced(world, order))):
        shared = [3.0] * 4
        assert gradients == {"a": shared, "b": shared, "c": shared, "alone": [rank + 1.0] * 4}
        # Once in each of two steps.
        assert sorted(taken) == sorted(["a", "b", "c", "alone"] * 2)
