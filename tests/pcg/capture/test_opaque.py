"""Functions without an equation: kept whole, declared in the text, and run by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.graphs.capturing import assert_agrees
from support.graphs.torch_functions import default_dtype
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import capture
from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Graph, Node, apply, leaf
from pcg.graph.opaque import (
    Batched,
    Elementwise,
    Opaque,
    TensorType,
    opaque,
    opaque_nodes,
    torch_functions,
)
from pcg.ops.parallel import partition, replicate
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import evaluate_shards, evaluate_whole
from pcg.readings.ring import Reals
from pcg.readings.work import work


class Ranked(nn.Module):
    """Weighs the greatest two of each row, and the rows by their order. One part is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.scales = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        values, order = torch.topk(x @ self.weight, 2)
        late = torch.where(order > 2, values, values.detach())
        picked = x.index_select(0, ids).sum() * self.scales.cumprod(0)[1]
        return (
            (late * self.scales).sum()
            + picked
            + torch.nn.functional.embedding(ids, x @ self.weight).sum()
        )


@pytest.fixture(autouse=True)
def double():
    with default_dtype(torch.float64):
        yield


def ranked() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(3)
    return Ranked(), (torch.randn(4, 6), torch.tensor([0, 3, 1]))


def sorted_rows() -> Opaque:
    types = TensorType((4, 6), "float32"), TensorType((4, 6), "int64")
    return opaque("aten.sort.default(x0, -1, True)", types[:1], types)


def test_functions_without_an_equation_are_kept_and_listed() -> None:
    captured = assert_agrees(*ranked())
    assert captured.opaque == ("aten.cumprod.default",)
    assert len(opaque_nodes(captured.graph)) == 1
    declared = {function.target: function for function in torch_functions(captured.graph)}
    by_slices = {name for name, made in declared.items() if isinstance(made, Batched)}
    assert by_slices == {"aten.topk.default"}
    element_by_element = {"aten.gt.Scalar", "aten.where.self", "aten.detach.default"}
    assert declared.keys() - by_slices - set(captured.opaque) == element_by_element


def test_text_declares_functions_without_an_equation() -> None:
    graph = capture(*ranked()).graph
    text = print_graph(graph)
    assert (
        "= aten.topk.default(x0, 2) : [4, 6] float64 -> [4, 2] float64, [4, 2] int64 along" in text
    )
    parsed = parse_graph(text)
    assert parsed == graph
    assert parsed.digest == graph.digest
    assert print_graph(parsed) == text


def test_opaque_operator_refuses_cuts_and_passes_copies() -> None:
    call = sorted_rows()()
    x = leaf("input", "x", (4, 6))
    for dim in (0, 1):
        cut = apply(call, apply(partition(dim=dim, degree=2), x))
        with pytest.raises(OperatorError, match="degree 2, expected 1"):
            _ = cut.type
    values = Node(call, (apply(replicate(degree=3), x),)).types
    assert [str(t) for t in values] == ["[4, 6] copies=3", "[4, 6] copies=3"]


def test_partial_sums_do_not_pass_an_opaque_operator() -> None:
    text = "x = input[4, 6] partials=2\nreturn x"
    partial = parse_graph(text).outputs[0]
    with pytest.raises(OperatorError, match="partial sums cannot pass"):
        _ = apply(sorted_rows()(), partial).type


def test_cost_of_an_opaque_operator_is_its_reads_and_writes() -> None:
    node = Node(sorted_rows()(), (leaf("weight", "x", (4, 6)),))
    assert work(node, frozenset({0}), 4).bytes_forward == 4 * 3 * 24


def test_reference_evaluation_refuses() -> None:
    graph = Graph((apply(sorted_rows()(), leaf("input", "x", (4, 6))),))
    ring = Reals()
    with pytest.raises(OperatorError, match="has no equation"):
        evaluate_whole(graph, {"x": np.zeros((4, 6))}, ring)
    with pytest.raises(OperatorError, match="has no equation"):
        evaluate_shards(graph, {"x": np.zeros((1, 4, 6))}, ring)


def test_different_functions_are_different_operators() -> None:
    types = (TensorType((4, 6), "float32"),)
    up, down = (opaque(f"aten.tril.default(x0, {k})", types, types) for k in (0, 1))
    assert up.name != down.name
    x = leaf("input", "x", (4, 6))
    assert apply(up(), x) != apply(down(), x)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("opaque f = aten.relu.default(x0) : [4] float32 -> [4] float32", "does not name"),
        ("opaque f = os.system.default(x0) : [4] float32 -> [4] float32", "expected aten.NAME"),
        ("opaque f = aten.tril : [4] float32 -> [4] float32", "expected aten.NAME"),
        ("opaque f = ) : [4] float32 -> [4] float32", "is no call"),
        ("opaque f = aten.tril.default(x0) : 4 -> [4] float32", "expected SHAPE"),
    ],
)
def test_wrong_declarations(line: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"graph: line 1: .*{problem}"):
        parse_graph(f"{line}\nx = input[4]\nreturn x")


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.poisson(x) * self.weight).sum()


def test_random_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"py: line \d+: aten.poisson.default draws"):
        capture(Random(), (torch.ones(4),))


class Complex(nn.Module):
    """A format that graphs do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.polar(self.weight.abs(), x).sqrt().abs().sum()


class Unset(nn.Module):
    """Reads memory that was never written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x * torch.empty(4)).sum()


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Complex, "of complex numbers cannot be captured"),
        (Unset, "returns uninitialized memory"),
    ],
)
def test_functions_that_no_operator_can_hold_are_refused_by_their_line(
    module: type[nn.Module], problem: str
) -> None:
    with pytest.raises(InputError, match=rf"test_opaque\.py: line \d+: aten.*{problem}"):
        capture(module(), (torch.ones(4),))


class Given(nn.Module):
    """A function of a parameter and an input of labels, summed under weights."""

    def __init__(self, function: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.operand = nn.Parameter(torch.randn(shape))
        self.slope = nn.Parameter(torch.randn(()))

    def forward(self, labels: Tensor) -> Tensor:
        table = torch.nn.functional.embedding(labels, self.slope.expand(5, 1))
        result = self.function(self.operand, labels)
        return (result * result * self.slope).sum() + table.sum()


BEYOND: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "avg_pool2d.default": (
        lambda x, y: f.avg_pool2d(x, 2, 2, 1, ceil_mode=True),
        (2, 4, 5, 5),
    ),
    "adaptive_avg_pool2d.default": (lambda x, y: f.adaptive_avg_pool2d(x, 2), (2, 4, 5, 5)),
    "max_pool2d.default": (lambda x, y: f.max_pool2d(x, 2, dilation=2), (2, 4, 5, 5)),
    "flip.default": (lambda x, y: x.flip(0), (50, 2)),
    "index.Tensor": (lambda x, y: x[y - 1], (5, 3)),
}
"""Arguments that the equations of an operator do not cover, by the operator's name."""


@pytest.mark.parametrize("name", BEYOND)
def test_arguments_that_no_equation_covers(name: str) -> None:
    torch.manual_seed(0)
    module = Given(*BEYOND[name])
    captured = assert_agrees(module, (torch.tensor([1, 0, 4]),))
    kept = [made for made in torch_functions(captured.graph) if not isinstance(made, Elementwise)]
    assert [made.target for made in kept] == [f"aten.{name}"]


def test_constants_may_be_opaque() -> None:
    torch.manual_seed(0)
    module = Given(lambda x, _: x * (torch.arange(80) * 0.001 + 1).cumprod(0), (2, 80))
    captured = assert_agrees(module, (torch.tensor([1, 0, 4]),))
    assert captured.opaque == ("aten.cumprod.default",)
    assert parse_graph(print_graph(captured.graph)) == captured.graph
