"""Blocks of public models without their loops compute the same as with them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from support.blocks import (
    DeepseekV3MoE,
    Expert,
    GptOss,
    MixtralSparseMoeBlock,
    Qwen2MoeSparseMoeBlock,
    Stacked,
    WithLoss,
)
from support.cases import a_third
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError
from pcg.mixtures.blocks import equal_form, limit_capacity, without_loops
from runtime.train.eager import compare_module

BLOCKS: dict[str, Callable[[int, int], nn.Module]] = {
    "mixtral": lambda count, top_k: MixtralSparseMoeBlock(6, 4, count, top_k),
    "with biases": lambda count, top_k: MixtralSparseMoeBlock(6, 4, count, top_k, bias=True),
    "qwen2": lambda count, top_k: Qwen2MoeSparseMoeBlock(6, 4, count, top_k),
    "deepseek-v3": lambda count, top_k: DeepseekV3MoE(6, 4, count, top_k),
    "gpt-oss": lambda count, top_k: GptOss(6, 4, count, top_k),
    "stacked": lambda count, top_k: Stacked(6, 4, count, top_k),
    "stacked with biases": lambda count, top_k: Stacked(
        6, 4, count, top_k, bias=True, transposed=True
    ),
    "stacked without gates": lambda count, top_k: Stacked(6, 4, count, top_k, gated=False),
}


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    of = [x, *module.parameters()]
    loss = module(x)
    return [loss, *torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (4, 2), (5, 5), (7, 1)])
def test_values_and_gradients_are_those_of_the_loop(name: str, count: int, top_k: int):
    torch.manual_seed(count)
    module = WithLoss(BLOCKS[name](count, top_k)).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    expected = gradients(module, x)
    with without_loops(module) as changed:
        actual = gradients(module, x)
    assert sum(changed.values()) == 1
    assert not any("forward" in vars(part) for part in module.modules())
    # Routers compute in float32.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", a_third(BLOCKS))
def test_a_graph_has_experts_as_a_dimension(name: str):
    torch.manual_seed(0)
    module, inputs = WithLoss(BLOCKS[name](4, 2)), (torch.randn(4, 3, 6),)
    captured = capture(module, inputs)
    assert not captured.opaque
    assert "stack" not in {node.name for node in captured.graph.operators}
    experts = [n.leaf.shape for n in captured.graph.leaves if "experts" in n.leaf.name]
    of_each = [shape for shape in experts if shape[0] == 4]
    stacked = {"stacked": 2, "stacked without gates": 2, "stacked with biases": 4}
    assert len(of_each) == {"with biases": 6, "gpt-oss": 4, **stacked}.get(name, 3)
    (note,) = captured.notes
    assert note.startswith("1 x ")
    comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison
    assert comparison.error < 1e-8
    assert comparison.gradients == len(list(module.parameters()))


def test_names_say_which_parameters_lie_side_by_side():
    captured = capture(WithLoss(MixtralSparseMoeBlock(6, 4, 3, 2)), (torch.randn(2, 3, 6),))
    records = {w.record.names[0]: w.record for w in captured.weights}
    together = records["block.experts.*.w1.weight"]
    assert together.stacked == tuple(f"block.experts.{i}.w1.weight" for i in range(3))
    # The graph multiplies by the stored weight, without transposing it in each step.
    assert together.transposed
    assert {n.leaf.shape for n in captured.graph.leaves} == {
        (2, 3, 6),
        (3, 6, 4),
        (3, 4, 6),
        (6, 3),
    }


class Wider(nn.Linear):
    """A replacement of a layer, like an adapter."""


def adapted(block: MixtralSparseMoeBlock) -> None:
    block.experts[1].w1 = Wider(6, 4, bias=False)


def uneven(block: MixtralSparseMoeBlock) -> None:
    block.experts[1].w1, block.experts[1].w3 = nn.Linear(6, 5), nn.Linear(6, 5)


def renamed(block: MixtralSparseMoeBlock) -> None:
    block.__class__ = type("Mine", (MixtralSparseMoeBlock,), {})


def patched(block: MixtralSparseMoeBlock) -> None:
    block.forward = block.forward


def more(block: MixtralSparseMoeBlock) -> None:
    block.experts[0].scale = nn.Parameter(torch.ones(1))


def hooked(block: MixtralSparseMoeBlock) -> None:
    block.experts[2].w2.register_forward_hook(lambda module, args, out: 2.0 * out)


def another(block: MixtralSparseMoeBlock) -> None:
    for expert in block.experts:
        expert.__class__ = type("Mine", (Expert,), {})


def swapped(block: MixtralSparseMoeBlock) -> None:
    block.experts[1].forward = block.experts[0].forward


def gone(block: MixtralSparseMoeBlock) -> None:
    del block.top_k


CHANGES = (adapted, uneven, renamed, patched, more, hooked, another, swapped)


@pytest.mark.parametrize("change", a_third(CHANGES))
def test_unknown_block_is_left_alone_and_refused_by_its_line(change):
    block = MixtralSparseMoeBlock(6, 4, 4, 2)
    change(block)
    assert equal_form(block) is None
    with pytest.raises(InputError, match=r"blocks\.py: line \d+: .*there is unity\.nn"):
        capture(WithLoss(block), (torch.randn(2, 3, 6),))


def test_block_without_an_attribute_of_its_kind_is_unknown():
    block = MixtralSparseMoeBlock(6, 4, 4, 2)
    gone(block)
    assert equal_form(block) is None


@pytest.mark.parametrize("name", a_third(["qwen2", "mixtral", "deepseek-v3"]))
def test_capacity_of_public_blocks(name: str):
    """With places for all tokens it equals the loop. With fewer places, rows of the batch do not
    affect each other, and the graph is what torch runs, under the same names."""
    torch.manual_seed(1)
    block = BLOCKS[name](4, 2)
    module, x = WithLoss(block).double(), torch.randn(4, 3, 6, dtype=torch.float64)
    expected, names = module(x), list(module.state_dict())
    assert limit_capacity(module, 100.0) == 1
    torch.testing.assert_close(module(x), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="has no blocks of experts that are known"):
        limit_capacity(module, 1.0)
    del block.forward
    limit_capacity(module, 0.5)
    assert not torch.allclose(module(x), expected, rtol=1e-3)
    rows = torch.stack([module(row) for row in x.split(1)]).sum()
    torch.testing.assert_close(rows, module(x), rtol=1e-6, atol=1e-6)
    assert list(module.state_dict()) == names
    again = deepcopy(module)
    nn.init.zeros_(next(again.parameters()))
    assert not torch.allclose(again(x), module(x), rtol=1e-3)
    captured = capture(module, (x,))
    assert len([w for w in captured.weights if w.stacked]) == 3
    actual = compare_module(module, (x,), captured, "model")
    assert actual.error is not None, actual
    assert actual.error < 1e-8


def test_capacity_of_stacked_experts():
    torch.manual_seed(1)
    block = Stacked(6, 4, 4, 2)
    module = WithLoss(block).double()
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    expected = module(x)
    assert limit_capacity(module, 100.0) == 1
    torch.testing.assert_close(module(x), expected)
    del block.experts.forward
    limit_capacity(module, 0.5)
    assert not torch.allclose(module(x), expected, rtol=1e-3)
    rows = torch.stack([module(row) for row in x.split(1)]).sum()
    torch.testing.assert_close(rows, module(x))
    again = deepcopy(module)
    nn.init.zeros_(again.get_parameter("block.experts.down_proj"))
    assert not torch.allclose(again(x), module(x), rtol=1e-3)
    actual = compare_module(module, (x,), capture(module, (x,)), "model")
    assert actual.error is not None, actual
    assert actual.error < 1e-8


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_capacity_that_is_not_positive_is_refused(factor: float):
    with pytest.raises(InputError, match="expected a number above 0"):
        limit_capacity(WithLoss(MixtralSparseMoeBlock(6, 4, 4, 2)), factor)


def test_blocks_are_as_they_were_after_an_error():
    module = WithLoss(MixtralSparseMoeBlock(6, 4, 4, 2))
    with pytest.raises(InputError):
        capture(module, (torch.randn(2, 3, 5),))
    assert "forward" not in vars(module.block)
