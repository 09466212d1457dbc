"""From modules to graphs: the map of parameters, leaves, and functions that cannot be captured."""

from __future__ import annotations

import random
import re

import pytest
import torch
from support.graphs.capturing import assert_agrees
from torch import Tensor, nn
from torch.export import ExportedProgram

from pcg.capture import CapturedWeight, apart, capture
from pcg.errors import InputError
from pcg.models import capture_model
from pcg.plan.text import print_graph
from runtime.train.eager import compare_module

ROWS = torch.empty(4, 6)


class Tied(nn.Module):
    """A table that is also the weight of the last layer, under two names, and an unused
    parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.randn(3))
        self.hidden = nn.Linear(6, 6)
        self.table = nn.Embedding(10, 6)
        self.last = nn.Linear(6, 10, bias=False)
        self.last.weight = self.table.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.hidden(self.table(ids))), labels)


def test_weights_are_named_after_parameters() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([3, 0, 9, 9])
    captured = assert_agrees(Tied(), (ids, ids.flip(0)))
    assert captured.weights == (
        CapturedWeight("hidden_weight", "hidden.weight", transposed=True),
        CapturedWeight("hidden_bias", "hidden.bias", transposed=False),
        CapturedWeight("table_weight", "table.weight", transposed=False, aliases=("last.weight",)),
    )
    assert captured.inputs == ("ids", "labels")
    assert print_graph(captured.graph).splitlines()[:3] == [
        "ids = input[4] below 10",
        "table_weight = weight[10, 6]",
        "t0 = embedding(ids, table_weight)",
    ]


class Leaves(nn.Module):
    """Names that collide without dots, a buffer that is read, and inputs in a list."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.x_weight = nn.Parameter(torch.randn(6))
        self.x = nn.Linear(6, 6)
        self.register_buffer("scale", torch.tensor(2.0))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: list[Tensor], unread: Tensor) -> Tensor:
        return (self.norm(self.x(x[1])) * self.x_weight * self.scale).square().sum()


def test_leaves_have_names_of_their_own() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4, 6, dtype=torch.float64)
    captured = assert_agrees(Leaves(), ([rows, rows + 1], rows))
    names = {weight.parameter: weight.leaf for weight in captured.weights}
    assert names == {
        "x_weight": "x_weight",
        "x.weight": "x_weight_2",
        "x.bias": "x_bias",
        "norm.weight": "norm_weight",
        "norm.bias": "norm_bias",
    }
    assert captured.inputs == (None, "x_1", None)
    assert captured.buffers == {"scale": "scale"}


class Given(nn.Module):
    """A parameter and a function of it and the inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: Tensor):
        return self.function(x, self.weight)


def doubled_in_place(x: Tensor, w: Tensor) -> Tensor:
    """A tensor is changed through a view of it, and read afterwards."""
    twice = x * w
    twice.view(24).mul_(2)
    return twice.relu().sum()


def test_tensor_changed_in_place_is_read_with_its_new_values() -> None:
    captured = assert_agrees(Given(doubled_in_place), (torch.randn(4, 6, dtype=torch.float64),))
    assert "scale(" in print_graph(captured.graph)


def left_whole(x: Tensor, w: Tensor) -> Tensor:
    """Functions with and without an equation, constants, and a gradient that stops."""
    places = torch.arange(4).unsqueeze(1) * torch.ones(4, 6) + torch.arange(2, 8)
    best = (w * x).topk(3, 1).values.sum() + w.argmax(1).sin().sum()
    chosen = torch.where(x > 0, w.square(), torch.full((4, 6), 2.0)).abs().detach()
    return best + (chosen * w.round() * places.cos()).square().mean() + torch.zeros(()) * w.sum()


def test_program_that_torch_would_not_decompose_needs_no_second_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = Given(left_whole), (torch.randn(4, 6),)
    with monkeypatch.context() as patch:
        patch.setattr(ExportedProgram, "run_decompositions", None)
        as_it_is = capture(*given)
    monkeypatch.setattr(apart, "needs_nothing", lambda program, stays: False)
    assert capture(*given) == as_it_is


@pytest.mark.parametrize("name", ["resnext50-tiny", "bert-large-tiny"])
def test_skipping_the_second_trace_gives_the_same_graph(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = capture_model(name, None, 2)
    monkeypatch.setattr(apart, "needs_nothing", lambda program, stays: False)
    assert capture_model(name, None, 2) == as_it_is


def fails(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sum() if x.sum() > 0 else w.sum()


@pytest.mark.parametrize(
    ("function", "x", "problem"),
    [
        (lambda x, w: x * w, ROWS, "expected a scalar, got shape [4, 6]"),
        (lambda x, w: x.sum(), ROWS, "the loss depends on no weight"),
        (lambda x, w: 3, ROWS, "its first output is no tensor"),
        (lambda x, w: (x @ w).sum(), ROWS, "torch.export: "),
        (fails, ROWS, "branches on the values of a tensor, which no graph can follow"),
        (lambda x, w: (torch.poisson(x.abs()) * w).sum(), ROWS, "draws random numbers"),
        (lambda x, w: (x * random.random() * w).sum(), ROWS, "a random number by random.random"),
        (lambda x, w: (x * w * x.max().item()).sum(), ROWS, "takes a number out of a tensor"),
    ],
)
def test_function_that_cannot_be_captured_is_refused_by_its_line(
    function, x: Tensor, problem: str
) -> None:
    with pytest.raises(InputError) as raised:
        capture(Given(function), (x,), "model my.py:make")
    assert re.match(r"model my\.py:make: |.*test_capture\.py: line \d+: ", str(raised.value))
    assert problem in str(raised.value)


def test_values_are_not_computed() -> None:
    """Parameters and inputs without memory give the same graph."""
    ids = torch.tensor([3, 0, 9, 9])
    with torch.device("meta"):
        shapes = Tied()
    graph = capture(shapes, (ids.to("meta"), ids.to("meta"))).graph
    assert graph == capture(Tied(), (ids, ids.clone())).graph


@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
def test_casts_between_wide_formats_are_dropped(kept: torch.dtype) -> None:
    """Losses of ``transformers`` ask for float32. A graph in float64 is not rounded for that. A
    narrow format rounds."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).float().logsumexp(1).double().sum()

    def rounded(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).bfloat16().float().sum()

    rows = ROWS.to(kept)
    assert "_to_copy" not in print_graph(capture(Given(function).to(kept), (rows,)).graph)
    assert "_to_copy" in print_graph(capture(Given(rounded).to(kept), (rows,)).graph)


@pytest.mark.parametrize("own", [torch.bfloat16, torch.float16])
def test_a_cast_to_the_format_of_the_module_does_not_round(own: torch.dtype) -> None:
    """As norms of ``transformers`` are, which compute in float32: a plan chooses the format."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        wide = (x * w).float()
        return (wide * wide.square().mean(1, keepdim=True).rsqrt()).to(x.dtype).sum()

    module, inputs = Given(function).to(own), (ROWS.to(own),)
    captured = capture(module, inputs)
    assert "_to_copy" not in print_graph(captured.graph)
    comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-12


class Returning(nn.Module):
    """A layer that returns its loss with something else, or only that."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(3, 3), kind

    def forward(self, x: Tensor) -> object:
        rows = self.layer(x)
        loss = rows.sum()
        return {
            "nothing": (loss, None, rows),
            "a number": {"loss": loss, "count": 3, "name": "x", "rows": (rows, None)},
            "no loss": (None, rows),
            "no tensor": None,
        }[self.kind]


@pytest.mark.parametrize("kind", ["nothing", "a number"])
def test_outputs_that_are_no_tensors_are_left_out(kind: str) -> None:
    module, inputs = Returning(kind), (torch.randn(2, 3),)
    captured = capture(module, inputs)
    assert [value.type.shape for value in captured.graph.outputs] == [(), (2, 3)]
    assert compare_module(module, inputs, captured, "model").error == 0.0


@pytest.mark.parametrize("kind", ["no loss", "no tensor"])
def test_the_first_output_has_to_be_the_loss(kind: str) -> None:
    with pytest.raises(InputError, match="model: its first output is no tensor, expected the loss"):
        capture(Returning(kind), (torch.randn(2, 3),))
