"""Weights in a narrow format collect gradients in the wide one."""

from __future__ import annotations

import pytest
import torch
from support.plans.by_hand import make_plan

from pcg.plan.text import parse_graph
from runtime.execute import narrow
from runtime.execute.executor import Executor
from runtime.execute.narrow import NarrowWeights
from runtime.program.lower import Lowering
from runtime.world.collectives import World


def weights_of(called: list[str] | None = None) -> NarrowWeights:
    """Weights whose gradients are added at once, with a call for each, or after a backward pass."""
    sizes = {"a": (3,), "b": (2, 3), "c": (4, 5)}
    leaves = {name: torch.randn(size, requires_grad=True) for name, size in sizes.items()}
    leaves["c"] = leaves["c"].detach().mT.requires_grad_()
    leaves["fixed"] = torch.ones(2)
    hook = None if called is None else lambda name: lambda leaf: called.append(name)
    return NarrowWeights(leaves, torch.bfloat16, hook)


def differentiate(weights: NarrowWeights, factor: float) -> None:
    """Add gradients of a factor to those of two weights."""
    read = weights.read(["a", "c", "fixed"])
    (factor * read["a"].sum() + factor * read["c"].sum() + read["fixed"].sum()).backward()
    weights.add_gradients()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_gradients_add_up_in_the_wide_format(monkeypatch, waits, chunk):
    """257 is no number of bf16."""
    monkeypatch.setattr(narrow, "CHUNK", chunk)
    called: list[str] = []
    weights = weights_of(called if waits else None)
    differentiate(weights, 256.0)
    differentiate(weights, 1.0)
    for name in ("a", "c"):
        leaf = weights.leaves[name]
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.float32
        assert leaf.grad.stride() == leaf.stride()
        assert (leaf.grad == 257.0).all()
        assert weights.copies[name].grad is None
    assert weights.leaves["b"].grad is None
    assert weights.leaves["fixed"].grad is None
    assert sorted(called) == (["a", "a", "c", "c"] if waits else [])


def test_copies_are_made_once_until_weights_change():
    weights = weights_of()
    first = weights.read(["a", "b"])
    assert weights.read(["b", "a"])["a"] is first["a"]
    assert torch.equal(first["b"], weights.leaves["b"].bfloat16())
    with torch.no_grad():
        weights.leaves["a"].fill_(2.0)
    assert (weights.read(["a"])["a"] != 2.0).any()
    weights.forget()
    assert (weights.read(["a"])["a"] == 2.0).all()


def test_batches_under_way_together_have_gradients_of_their_own():
    """As in a user's loop: two forward passes, then two backward passes."""
    graph = parse_graph("x = input[4, 3]\nw = weight[3, 2]\nreturn mean_loss(matmul(x, w))")
    program = Lowering(make_plan(graph, graph, 1, {})).program(0)

    def gradients(together: bool) -> list[torch.Tensor]:
        executor = Executor(program, World(), "bf16")
        scale = torch.ones(())
        if together:
            batches = [executor.forward(n, executor.formats, trains=True) for n in (0, 1)]
            results = [executor.backward(batch, scale) for batch in batches]
        else:
            results = [
                executor.backward(executor.forward(n, executor.formats, trains=True), scale)
                for n in (0, 1)
            ]
        return [gradient.clone() for result in results for gradient in result.values()]

    for one, other in zip(gradients(together=True), gradients(together=False), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
