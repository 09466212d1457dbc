"""Sums by place as torch writes them: their operators in a graph, and their errors as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.cases import a_third
from support.graphs.capturing import leaves_for
from support.graphs.torch_functions import default_dtype
from torch import Tensor, nn

from pcg.capture import Captured, capture
from runtime.train.check import evaluate
from runtime.train.eager import compare_module

NODES, EDGES, WIDTH = 5, 6, 2
Sum = Callable[[Tensor, Tensor, Tensor], Tensor]
NEAR = 1e-12


class Placed(nn.Module):
    """A sum of a source at places of weights. The loss weighs its elements."""

    def __init__(self, function: Sum, *shape: int) -> None:
        super().__init__()
        self.function = function
        self.x = nn.Parameter(torch.randn(NODES, WIDTH, dtype=torch.float64))
        self.source = nn.Parameter(torch.randn(shape or (EDGES, WIDTH), dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        placed = self.function(self.x, ids, self.source)
        return (placed * torch.arange(1, placed.numel() + 1).view(placed.shape).cos()).sum()


def captured_of(module: nn.Module, *inputs: Tensor) -> Captured:
    """The graph of a module. It agrees with the module on other ids too."""
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        captured = capture(module, inputs)
        comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR
    return captured


def names(captured: Captured) -> set[str]:
    return {node.name for node in captured.graph.nodes if not node.is_leaf}


EDGE_IDS = torch.tensor([0, 2, 2, 4, 1, 0])

OF_SLICES: dict[str, Sum] = {
    "index_add": lambda x, ids, y: x.index_add(0, ids, y),
    "expanded": lambda x, ids, y: x.scatter_add(0, ids[:, None].expand(-1, WIDTH), y),
    "viewed": lambda x, ids, y: x.scatter_add(0, ids.view(-1, 1).expand_as(y), y),
    "repeated": lambda x, ids, y: x.scatter_add(0, ids[:, None].repeat(1, WIDTH), y),
    "of columns": lambda x, ids, y: x.mT.scatter_add(1, ids.expand(WIDTH, -1), y.mT),
    "of heads": lambda x, ids, y: (
        x[:, None]
        .repeat(1, 3, 1)
        .scatter_add(0, ids.view(-1, 1, 1).expand(-1, 3, WIDTH), y[:, None].repeat(1, 3, 1))
    ),
    "one dimension": lambda x, ids, y: x[:, 0].scatter_add(0, ids, y[:, 1]),
    "index_put": lambda x, ids, y: x.index_put((ids,), y, accumulate=True),
    "in place": lambda x, ids, y: torch.zeros_like(x).index_add_(0, ids, y),
    "a table of ids": lambda x, ids, y: x.index_put(
        (ids.view(2, 3),), y.view(2, 3, WIDTH), accumulate=True
    ),
    "a mean": lambda x, ids, y: torch.zeros_like(x).scatter_reduce(
        0, ids[:, None].expand_as(y), y, "mean", include_self=False
    ),
    "numbers of edges": lambda x, ids, y: (
        x * torch.zeros(NODES).scatter_add_(0, ids, torch.ones(EDGES))[:, None] + y.sum()
    ),
    "whole numbers of edges": lambda x, ids, y: (
        x * torch.zeros(NODES, dtype=torch.long).index_add(0, ids, torch.ones_like(ids))[:, None]
        + y.sum()
    ),
}


@pytest.mark.parametrize("name", a_third(OF_SLICES))
def test_sums_of_slices(name: str) -> None:
    captured = captured_of(Placed(OF_SLICES[name]), EDGE_IDS)
    assert "index_add" in names(captured)
    assert captured.opaque == ()


def test_ids_of_each_element() -> None:
    ids = torch.tensor([[0, 1], [1, 1], [4, 3], [2, 0], [0, 0], [1, 2]])
    captured = captured_of(Placed(lambda x, ids, y: x.scatter_add(0, ids, y)), ids)
    assert "scatter_add" in names(captured)
    # The ids are equal along one of the two axes, and that is not the axis along which they are
    # ids.
    alike = Placed(lambda x, ids, y: x.scatter_add(0, ids.expand(EDGES, -1), y))
    assert "scatter_add" in names(captured_of(alike, torch.tensor([3, 1])))


def test_ids_of_one_edge_and_one_node_are_below_1() -> None:
    """There is only one place, so the ids are below 1, whatever the example has."""
    module = Placed(lambda x, ids, y: x[:1].index_add(0, ids, y), 1, WIDTH)
    captured = captured_of(module, torch.tensor([0]))
    (below,) = (node.leaf.below for node in captured.graph.leaves if node.leaf.below)
    assert below == 1


def test_ids_are_below_the_number_of_places_not_below_those_of_the_example() -> None:
    module = Placed(lambda x, edges, y: x.index_add(0, edges[1], y * x[edges[0]]))
    captured = captured_of(module, torch.zeros(2, EDGES, dtype=torch.long))
    assert [node.leaf.below for node in captured.graph.leaves if node.leaf.below] == [NODES]


def test_ids_of_two_kinds_in_one_tensor_are_below_the_larger_number() -> None:
    def messages(x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        return torch.zeros(3, WIDTH).index_add(0, edges[1] % 3, y * x[edges[0]]) * x[:3]

    captured = captured_of(Placed(messages), torch.zeros(2, EDGES, dtype=torch.long))
    assert [node.leaf.below for node in captured.graph.leaves if node.leaf.below] == [NODES]


KEPT: dict[str, Sum] = {
    "as many rows as a mask has": lambda x, ids, y: x.index_put(
        (torch.arange(NODES) != ids[0] % 1,), y[:4]
    ),
    "small numbers, which wrap around": lambda x, ids, y: (
        x * torch.full((NODES,), 250, dtype=torch.uint8)
        .index_add(0, ids, torch.full_like(ids, 7).to(torch.uint8))[:, None]
        + y.sum()
    ),
    "truth values": lambda x, ids, y: (
        x * torch.zeros(NODES, dtype=torch.bool)
        .index_put((ids,), torch.ones(EDGES, dtype=torch.bool), accumulate=True)[:, None]
        + y.sum()
    ),
    "the greatest": lambda x, ids, y: x.scatter_reduce(0, ids[:, None].expand_as(y), y, "amax"),
    "indices apart": lambda x, ids, y: torch.ops.aten.index_put.default(
        x[:, None].repeat(1, 3, 1), [ids, None, ids % 2], y[:, :1].expand(-1, 3), True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", a_third(KEPT))
def test_scatters_without_an_equation_stay_functions_of_torch(name: str) -> None:
    captured = captured_of(Placed(KEPT[name]), EDGE_IDS)
    assert not names(captured) & {"index_add", "scatter_add"}


def put(x: Tensor, where: Any, values: Any) -> Tensor:
    x = x.clone()
    x[where] = values
    return x


MASKED: dict[str, Sum] = {
    "a number": lambda x, ids, y: put(x, x > 0, 0.5),
    "a number in rows": lambda x, ids, y: put(x, torch.arange(NODES) < ids[:NODES], 0.0),
    "a row": lambda x, ids, y: put(x, torch.arange(NODES) < ids[:NODES], y[0]),
    "one row of a matrix": lambda x, ids, y: put(x, torch.arange(NODES) < ids[:NODES], y[:1]),
    "columns": lambda x, ids, y: put(x.mT, (slice(None), ids[:NODES] > 0), y[0, 0]),
    "a column": lambda x, ids, y: put(x.mT, (slice(None), ids[:NODES] > 0), y[0, :, None]),
    "of a batch": lambda x, ids, y: put(x[None] * y[:3, None], (slice(None), x > 0), y[:3, :1]),
    "added": lambda x, ids, y: x.index_put((ids[:NODES] > 1,), y[0], accumulate=True),
    "added to nothing": lambda x, ids, y: (
        torch.zeros_like(x).index_put((x > 0,), y[0, 0], accumulate=True)
    ),
    "labels": lambda x, ids, y: (
        x * put(ids[:NODES], ids[:NODES] > 2, -100).clamp(min=0)[:, None] + y.sum()
    ),
    "rows one after the other": lambda x, ids, y: (
        x.masked_scatter((torch.arange(NODES) < ids[:NODES])[:, None], y)
    ),
    "rows of several dimensions": lambda x, ids, y: (
        x.view(NODES, 2, 1).expand(-1, -1, 3).masked_scatter(
            (ids[:NODES] > 1)[:, None, None].expand(-1, 2, 3), y.view(2, 6).tile(3, 1)
        )
    ),
    "elements one after the other": lambda x, ids, y: x.masked_scatter(x > 0, y),
}  # fmt: skip


@pytest.mark.parametrize("name", a_third(MASKED))
def test_masked_writes_are_not_opaque(name: str) -> None:
    assert captured_of(Placed(MASKED[name]), EDGE_IDS).opaque == ()


def test_too_few_rows_for_a_mask_do_not_go_unseen() -> None:
    """Torch refuses them. Here the missing elements are infinite."""
    module = Placed(lambda x, ids, y: x.masked_scatter((ids[:NODES] > 0)[:, None], y[:2]))
    with default_dtype(torch.float64):
        good, bad = torch.tensor([0, 1, 0, 2, 0, 0]), torch.tensor([0, 1, 1, 2, 0, 0])
        captured = capture(module, (good,))
        (output,) = evaluate(captured.graph, leaves_for(captured, module, (good,)))
        torch.testing.assert_close(output, module(good))
        with pytest.raises(RuntimeError):
            module(bad)
        (output,) = evaluate(captured.graph, leaves_for(captured, module, (bad,)))
        assert not output.isfinite()


FROM_THE_END: dict[str, Sum] = {
    "rows": lambda x, ids, y: x.index_put((ids,), y, accumulate=True),
    "elements": lambda x, ids, y: x.index_put((ids, ids % 2 - 2), y[:, 0], accumulate=True),
    "columns": lambda x, ids, y: torch.ops.aten.index_put.default(
        x, [None, ids % 2], y[:5, :1], True
    ),
}


@pytest.mark.parametrize("name", a_third(FROM_THE_END))
def test_negative_ids_count_from_the_end(name: str) -> None:
    ids = torch.tensor([0, -1, -5, 4, 1, -2])
    module = Placed(FROM_THE_END[name])
    with default_dtype(torch.float64):
        captured = capture(module, (ids,))
        (output,) = evaluate(captured.graph, leaves_for(captured, module, (ids,)))
        torch.testing.assert_close(output, module(ids))
    assert names(captured) & {"index_add", "scatter_add"}


def second_row(x: Tensor, ids: Tensor, y: Tensor) -> Tensor:
    return x.index_put((ids * 0 + 1, ids), y[:, 0], accumulate=True)


WRONG: dict[str, tuple[Sum, int, int]] = {
    # The function, the least id of the example, and an id out of range.
    "beyond the last": (OF_SLICES["index_add"], 0, NODES),
    "negative to index_add": (OF_SLICES["index_add"], 0, -1),
    "negative to scatter_add": (OF_SLICES["expanded"], 0, -1),
    "beyond the first": (OF_SLICES["index_put"], -1, -NODES - 1),
    "beyond the last, put": (OF_SLICES["index_put"], -1, NODES),
    "beyond the last column": (second_row, 0, WIDTH),
    "beyond the last column, from the end": (second_row, -1, WIDTH),
    "beyond the first column": (second_row, -1, -WIDTH - 1),
    "far before the first column": (second_row, -1, -1000),
}


@pytest.mark.parametrize("name", a_third(WRONG))
def test_an_id_of_no_place_is_an_error_as_in_torch(name: str) -> None:
    function, least, wrong = WRONG[name]
    module = Placed(function)
    good, bad = torch.full((EDGES,), least), torch.tensor([0, wrong, 0, 0, 0, 0])
    with default_dtype(torch.float64):
        captured = capture(module, (good,))
        (output,) = evaluate(captured.graph, leaves_for(captured, module, (good,)))
        torch.testing.assert_close(output, module(good))
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            module(bad)
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            evaluate(captured.graph, leaves_for(captured, module, (bad,)))
