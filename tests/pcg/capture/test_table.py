"""Every entry of the table against torch: values and gradients of small modules."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import Any

import pytest
import torch
from support.cases import each
from support.graphs.aten_cases import BY_PLACE, SPREADS, Case, case
from support.graphs.capturing import NEAR, leaves_for
from support.graphs.torch_functions import default_dtype
from support.torch_release import IS_2_11, extremes
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn import functional as f

from pcg.capture import capture
from pcg.capture.apart import returned
from pcg.capture.aten.table import TABLE
from pcg.capture.export import _first_program, export
from pcg.capture.regions import ancestors
from runtime.train.check import evaluate

BUFFERS = {
    "ids": torch.tensor([[1, 0, 3], [2, 2, 4]]),
    "labels": torch.tensor([1, 0, 3]),
    "mean": torch.zeros(4, dtype=torch.float64),
    "variance": torch.ones(4, dtype=torch.float64),
}

X, IMAGE = (4, 6), (2, 4, 7, 9)
WIDE, TALL = (3, 1), (1, 4)

WINDOWS = {
    "overlapping": (lambda x: x.as_strided((3, 2, 6), (6, 6, 1)), X),
    "of parts of rows": (lambda x: x.as_strided((9, 6), (2, 1), 1), X),
    "of dimensions merged": (lambda x: x.as_strided((2, 3, 4, 3), (24, 6, 3, 1)), (2, 2, 4, 3)),
    "a corner": (lambda x: x.as_strided((3, 2), (6, 1), 1), X),
    "of columns": (lambda x: x.t().as_strided((3, 2), (6, 1), 1), X),
    "of what is cut out": (lambda x: x[1:, 1:5].as_strided((3, 2), (6, 2)), X),
    "of what is cut out, from the start": (lambda x: x[1:].as_strided((2, 3), (6, 1), 7), X),
    "turned": (lambda x: x.as_strided((6, 4), (1, 6)), X),
    "a diagonal": (lambda x: x.as_strided((4,), (7,)), X),
    "one element often": (lambda x: x.as_strided((3, 2, 4), (0, 7, 1)), X),
    "in windows": (lambda x: x.as_strided((2, 2, 3, 2), (12, 4, 2, 1)), (4, 8)),
    "one": (lambda x: x.as_strided((1, 1), (99, 99), 7), X),
}
"""Views by strides."""


def batch_normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return f.batch_norm(x, None, None, w, b, training=True)


def with_statistics(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return f.batch_norm(x, mean, variance, w, b, training=True)


def convolved(x: Tensor, k: Tensor, b: Tensor | None = None, **options: object) -> Tensor:
    return f.conv2d(x, k, b, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]


CASES = {
    "relu": case(torch.relu, X),
    "neg": case(torch.neg, X),
    "neg of what is seen so": case(torch.ops.aten._neg_view.default, X),
    "reciprocal": case(torch.reciprocal, X, positive=True),
    "exp": case(torch.exp, X),
    "log": case(torch.log, X, positive=True),
    "sqrt": case(torch.sqrt, X, positive=True),
    "rsqrt": case(torch.rsqrt, X, positive=True),
    "sigmoid": case(torch.sigmoid, X),
    "tanh": case(torch.tanh, X),
    "silu": case(f.silu, X),
    "gelu": case(f.gelu, X),
    "gelu by tanh": case(partial(f.gelu, approximate="tanh"), X),
    "add": case(lambda x, y: torch.add(x, y, alpha=3), X, X),
    "add a number": case(lambda x: x + 0.5, X),
    "subtract": case(lambda x, y: x - y, X, X),
    "subtract from a number": case(lambda x: 2 - x, X),
    "add rows": case(lambda x, y: x + y, X, (6,)),
    "add columns": case(lambda x, y: y + x, X, (4, 1)),
    "add channels": case(lambda x, y: x + y, IMAGE, (4, 1, 1)),
    "add without the batch": case(lambda x, y: x + y, (2, 3, 4), (3, 4)),
    "add outer": case(lambda x, y: x + y, WIDE, TALL),
    "add to two axes": case(lambda x, y: x + y, (2, 3, 4, 5), (2, 1, 1, 5)),
    "add one number to all": case(lambda x, y: x + y, X, ()),
    "multiply": case(lambda x, y: x * y, X, X),
    "multiply by a number": case(lambda x: 3 * x, X),
    "multiply by one element": case(lambda x, y: x * y, (), X),
    "divide": case(lambda x, y: x / y, X, X, positive=True),
    "divide by a number": case(lambda x: x / 3, X),
    "maximum": case(torch.maximum, X, X),
    "minimum": case(torch.minimum, X, (6,)),
    "square": case(lambda x: x**2, X),
    "square by its name": case(torch.square, X),
    "power": case(lambda x: x**2.5, X, positive=True),
    "clamp": case(lambda x: x.clamp(-0.5, 0.7), X),
    "clamp from below": case(lambda x: x.clamp(-0.5, float("inf")), X),
    "clamp from above": case(lambda x: x.clamp(float("-inf"), 0.5), X),
    "infinity where": case(
        lambda x: torch.full_like(x, float("inf")).where(x < -9.0, -x.exp()).neg().exp(), X
    ),
    "minus infinity where": case(
        lambda x: torch.full_like(x, float("-inf")).where(x.sum(1, keepdim=True) > 9, x).exp(), X
    ),
    "clamp nothing": case(lambda x: x.clamp(float("-inf"), float("inf")), X),
    "clone": case(torch.clone, X),
    "alias": case(torch.ops.aten.alias.default, X),
    "cast": case(lambda x: x * x.ge(0).to(x.dtype), X),
    "pad": case(lambda x: f.pad(x, (1, 0, 2, -1), value=0.5), X),
    "dropout of nothing": case(partial(f.dropout, p=0.0), X),
    "split a dimension": case(lambda x: x.unflatten(1, (2, 3)), X),
    "merge dimensions": case(lambda x: x.flatten(1, 2), (2, 3, 4, 5)),
    "merge and split": case(lambda x: x.reshape(4, 6, 5), (2, 3, 4, 5)),
    "merge what was swapped": case(lambda x: x.mT.flatten(), X),
    "reshape around ones": case(lambda x: x.reshape(1, 3, 2, 1, 1), (2, 1, 3)),
    "squeeze": case(lambda x: x.squeeze(1), (3, 1, 4)),
    "squeeze several": case(lambda x: x.squeeze((0, 2)), (1, 3, 1, 4)),
    "squeeze all": case(torch.squeeze, (1, 3, 1, 4)),
    "unsqueeze": case(lambda x: x.unsqueeze(-1), X),
    "transpose": case(lambda x: x.transpose(0, -1), (2, 3, 4)),
    "transpose a matrix": case(torch.t, X),
    "swap in a permutation": case(lambda x: x.permute(0, 2, 1), (2, 3, 4)),
    "permute": case(lambda x: x.permute(1, 2, 0), (2, 3, 4)),
    "expand": case(lambda x: x.expand(2, 3, 4), (3, 1)),
    "concat": case(lambda x, y, z: torch.cat((x, y, z), -1), X, (4, 1), (4, 2)),
    "stack": case(lambda x, y, z: torch.stack((x, y, z), -1), X, X, X),
    "slice": case(lambda x: x[1:3, -4:], X),
    "select": case(lambda x: x[:, -2], (2, 3, 4)),
    "nothing before and after": case(
        lambda x: torch.cat((x.new_zeros(0), x[:, :0], x.exp(), x[:, 6:]), -1), X
    ),
    "split off nothing": case(lambda x: torch.cat(x.split([0, 2, 0, 4], 1)[3:0:-2], 1), X),
    "chunk": case(lambda x: torch.cat(x.chunk(4, 1)[::-1], 1), (2, 7)),
    "split by sizes": case(lambda x: torch.cat(x.split([1, 3, 2], 1)[::-1], 1), X),
    "unbind": case(lambda x: x.unbind(1)[0] * x.unbind(1)[2], (2, 3, 4)),
    "mean": case(torch.mean, X),
    "mean of an axis": case(lambda x: x.mean(1), X),
    "mean kept": case(lambda x: x.mean((0, 2), keepdim=True), (2, 3, 4)),
    "sum": case(torch.sum, X),
    "sum of axes": case(lambda x: x.sum((0, -1)), (2, 3, 4)),
    "greatest": case(lambda x: x.amax(1), X),
    "matmul": case(torch.matmul, (2, 3, 4), (4, 5)),
    "mm": case(torch.mm, X, (6, 3)),
    "matmul in batches": case(torch.matmul, (2, 3, 4), (2, 4, 5)),
    "bmm": case(torch.bmm, (2, 3, 4), (2, 4, 5)),
    "addmm": case(lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3), (3,), X, (6, 3)),
    "linear": case(f.linear, (2, 4, 6), (3, 6), (3,)),
    "linear without bias": case(f.linear, X, (3, 6)),
    "linear by itself": case(lambda x: f.linear(x, x), (3, 3)),
    "matrix read both ways": case(lambda x, w: f.linear(x, w) @ w, X, (5, 6)),
    "softmax": case(partial(f.softmax, dim=1), (2, 3, 4)),
    "log_softmax": case(partial(f.log_softmax, dim=-1), X),
    "layer_norm": case(lambda x, w, b: f.layer_norm(x, (6,), w, b), (2, 4, 6), (6,), (6,)),
    "batch_norm": case(batch_normed, IMAGE, (4,), (4,)),
    "batch_norm with statistics": case(
        with_statistics, IMAGE, (4,), (4,), buffers=("mean", "variance")
    ),
    "batch_norm by statistics": case(
        lambda x, w, b, mean, variance: f.batch_norm(x, mean, variance, w, b),
        *(IMAGE, (4,), (4,)),
        buffers=("mean", "variance"),
    ),
    "batch_norm of rows": case(batch_normed, (5, 4), (4,), (4,)),
    "embedding": case(lambda table, ids: f.embedding(ids, table), (5, 4), buffers=("ids",)),
    "embedding of places": case(lambda table: f.embedding(torch.arange(3), table), (5, 4)),
    "embedding of places in each sample": case(
        lambda table: f.embedding(torch.arange(3).expand(2, 1, 3), table), (5, 4)
    ),
    "numbers of places": case(lambda x: x * torch.arange(6.0), X),
    "rms_norm": case(lambda x, w: f.rms_norm(x, (6,), w), X, (6,)),
    "attention": case(f.scaled_dot_product_attention, *((2, 3, 5, 4),) * 3),
    "attention of another scale": case(
        partial(f.scaled_dot_product_attention, scale=0.3), *((2, 3, 5, 4),) * 3
    ),
    "causal attention": case(
        partial(f.scaled_dot_product_attention, is_causal=True), *((2, 3, 5, 4),) * 3
    ),
    "masked attention": case(f.scaled_dot_product_attention, *((2, 3, 5, 4),) * 3, (2, 1, 1, 5)),
    "mse_loss": case(f.mse_loss, X, X),
    "mse_loss summed": case(partial(f.mse_loss, reduction="sum"), X, X),
    "mse_loss of each": case(partial(f.mse_loss, reduction="none"), X, X),
    "cross_entropy": case(f.cross_entropy, (3, 5), buffers=("labels",)),
    "cross_entropy summed": case(
        partial(f.cross_entropy, reduction="sum"), (3, 5), buffers=("labels",)
    ),
    "cross_entropy of sequences": case(f.cross_entropy, (2, 5, 3), buffers=("ids",)),
    "conv2d": case(
        partial(convolved, stride=(2, 1), padding=(1, 2), dilation=(1, 2)), IMAGE, (3, 4, 3, 2)
    ),
    "conv2d with a bias": case(convolved, IMAGE, (3, 4, 3, 2), (3,)),
    "conv2d in groups": case(partial(convolved, groups=2, padding=1), IMAGE, (6, 2, 3, 3)),
    "conv2d by channel": case(partial(convolved, groups=4), IMAGE, (8, 1, 3, 3)),
    "conv2d, same size": case(partial(convolved, padding="same"), IMAGE, (3, 4, 3, 3), (3,)),
    "max_pool2d": case(partial(f.max_pool2d, kernel_size=3, stride=2, padding=1), IMAGE),
    "max_pool2d, ceiling": case(partial(f.max_pool2d, kernel_size=2, ceil_mode=True), IMAGE),
    "avg_pool2d": case(partial(f.avg_pool2d, kernel_size=3, stride=2, padding=1), IMAGE),
    "avg_pool2d inside": case(
        partial(f.avg_pool2d, kernel_size=3, padding=1, count_include_pad=False), IMAGE
    ),
    "adaptive_avg_pool2d": case(partial(f.adaptive_avg_pool2d, output_size=(2, 3)), (2, 4, 6, 9)),
    "adaptive to one": case(partial(f.adaptive_avg_pool2d, output_size=1), IMAGE),
    "conv1d": case(partial(f.conv1d, padding=1, stride=2), (2, 4, 9), (3, 4, 3), (3,)),
    "conv1d by channel": case(partial(f.conv1d, groups=4), (2, 4, 9), (4, 1, 3)),
    "pad by constant": case(lambda x: torch.constant_pad_nd(x, (1, 2), 0.5), X),
    "pad around": case(partial(f.pad, pad=(2, 1), mode="circular"), (2, 4, 6)),
    "pad by reflection": case(partial(f.pad, pad=(2, 1), mode="reflect"), (2, 4, 6)),
    "pad by the last": case(partial(f.pad, pad=(2, -1), mode="replicate"), (2, 4, 6)),
    "repeat": case(lambda x: x.repeat(2, 1, 3), X),
    "roll": case(lambda x: x.roll((1, -2), (0, 1)), X),
    "roll all": case(lambda x: x.roll(5), X),
    "flip": case(lambda x: x.flip(0, -1), X),
    "every second": case(lambda x: x[:, 1::2] * x[::3, :1].sum(), (4, 7)),
    "a slice of another": case(lambda x, y: torch.slice_scatter(x, y, 1, 2, 4), X, (4, 2)),
    "a row of another": case(lambda x, y: torch.select_scatter(x, y, 0, -1), X, (6,)),
    "copied": case(lambda x, y: torch.zeros_like(x).copy_(y) * x, X, (6,)),
    "filled": case(lambda x: x * torch.full_like(x, 3.0), X),
    "layer_norm over two axes": case(lambda x, w: f.layer_norm(x, (3, 4), w), (2, 3, 4), (3, 4)),
    "layer_norm without weights": case(lambda x: f.layer_norm(x, (6,)), X),
    "group_norm": case(lambda x, w, b: f.group_norm(x, 2, w, b), IMAGE, (4,), (4,)),
    **SPREADS,
    "running sum": case(lambda x: x.cumsum(0), X),
    "rows": case(lambda x, ids: x[ids], (5, 2, 3), buffers=("ids",)),
    "rows selected": case(lambda x, y: x.index_select(0, y), (5, 3), buffers=("labels",)),
    "gather": case(lambda x, ids: x.gather(0, ids), (5, 4), buffers=("ids",)),
    **BY_PLACE,
    "embedding_bag": case(lambda t, ids: f.embedding_bag(ids, t), (5, 4), buffers=("ids",)),
    "nll_loss": case(f.nll_loss, (3, 5), buffers=("labels",)),
    "cross_entropy with weights": case(
        lambda x, w, y: f.cross_entropy(x, y, w.detach(), label_smoothing=0.1) * w.sum(),
        *((3, 5), (5,)),
        buffers=("labels",),
        positive=True,
    ),
    "cross_entropy of rows": case(
        partial(f.cross_entropy, reduction="none"), (2, 5, 3), buffers=("ids",)
    ),
    "cross_entropy of probabilities": case(
        lambda x, y: f.cross_entropy(x, y.softmax(1), label_smoothing=0.2), (3, 5), (3, 5)
    ),
    "matrix and vector": case(torch.matmul, (2, 3, 4), (4,)),
    "matrices of fewer axes": case(torch.matmul, (2, 3, 4, 5), (3, 5, 2)),
    "addmv": case(torch.addmv, (4,), X, (6,)),
    "addbmm": case(torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "bilinear": case(f.bilinear, (2, 4, 3), (2, 4, 5), (6, 3, 5), (6,)),
    "softmax of what may be nothing": case(
        lambda x: torch.ops.aten._safe_softmax.default(x, -1), X
    ),
    "least": case(lambda x: x.amin(1), X),
    "greatest of all": case(lambda x: x.max() * x.min(), X),
    "least and greatest": case(lambda x: torch.mul(*extremes(x)), X),
    "unfold": case(lambda x: x.unfold(1, 3, 2), (2, 8, 3)),
    "unfold the last": case(lambda x: x.unfold(-1, 4, 1), X),
    "unfold with gaps": case(lambda x: x.unfold(0, 2, 3), (8, 3)),
    **{f"windows: {name}": case(*given) for name, given in WINDOWS.items()},
    "diagonal": case(lambda x: x.diagonal(1, 0, 2), (3, 4, 5)),
    "a written diagonal": case(lambda x, y: x.diagonal_scatter(y, 1, 0, 2), (3, 4, 5), (4, 3)),
    "length": case(lambda x: x.norm(dim=0), X),
    "filled in place": case(lambda x, y: x * (y * 1).fill_(2.0) + (y * 1).zero_() + y, X, X),
    "bags of what is computed": case(
        lambda t, ids: f.embedding_bag(ids, t * 2, mode="mean"), (5, 4), buffers=("ids",)
    ),
    # Decomposed by torch itself.
    "root of squares": case(lambda x: x.square().sum().sqrt(), X),
    "einsum": case(partial(torch.einsum, "bij,bjk->bik"), (2, 3, 4), (2, 4, 5)),
    "in place": case(lambda x: (x * 1).mul_(2).add_(1).relu_(), X),
}


class Applied(nn.Module):
    """A case on parameters, and the sum of its result under random weights."""

    def __init__(self, given: Case) -> None:
        super().__init__()
        self.function = given.function
        values = [torch.randn(shape) for shape in given.shapes]
        values = [value.abs() + 0.1 if given.positive else value for value in values]
        self.operands = nn.ParameterList(values)
        for name in given.buffers:
            self.register_buffer(name, BUFFERS[name].clone())
        self.weights = nn.Parameter(torch.randn(self.result().shape))

    def result(self) -> Tensor:
        buffers = {n: b for n, b in self.named_buffers() if n != "weights"}
        return self.function(*self.operands, *buffers.values())

    def forward(self) -> Tensor:
        return (self.result() * self.weights).sum()


class Several(nn.Module):
    """Many cases, because torch takes long to begin an export, and little for each operator."""

    def __init__(self, cases: Iterable[Applied]) -> None:
        super().__init__()
        self.cases = nn.ModuleList(cases)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(each() for each in self.cases)


@dataclass(frozen=True)
class Results:
    """The results of torch and of the graphs, by case."""

    cases: dict[str, Applied]
    expected: dict[str, Tensor]
    whole: dict[str, Tensor]
    """The results of the graph of the cases that need no decomposition."""
    apart: dict[str, Tensor]
    """The results of the graph of all cases, with torch's decompositions."""
    opaque: tuple[str, ...]
    targets: set[str]
    """The ATen operators of both graphs."""


@dataclass(frozen=True)
class Exports:
    """What captures read of torch's exports. Exporting again would take as long."""

    known: list[list[bool]]
    """For each capture and each of its outputs, whether the output needs no decomposition."""
    programs: list[ExportedProgram]
    """The program that each capture converts."""


@contextmanager
def recorded_exports() -> Generator[Exports]:
    exports = Exports([], [])

    def first(*given: Any) -> ExportedProgram:
        program = _first_program(*given)
        exports.known.append([is_known(out) for out in returned(program)])
        return program

    def last(*given: Any) -> tuple[ExportedProgram, tuple[str, ...]]:
        program, checks = export(*given)
        exports.programs.append(program)
        return program, checks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pcg.capture.export._first_program", first)
        patch.setattr("pcg.capture.convert.export", last)
        yield exports


@pytest.fixture(scope="module")
def results() -> Results:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        cases = {name: Applied(given) for name, given in CASES.items()}
        every = Several(cases.values())
        with recorded_exports() as exports:
            captured = {every: capture(every, ())}
            known = [n for n, one in zip(cases, exports.known[0], strict=True) if one]
            some = Several(cases[name] for name in known)
            captured[some] = capture(some, ())
        apart, whole = (evaluate(c.graph, leaves_for(c, m, ())) for m, c in captured.items())
    return Results(
        cases,
        dict(zip(cases, every(), strict=True)),
        dict(zip(known, whole, strict=True)),
        dict(zip(cases, apart, strict=True)),
        tuple(name for c in captured.values() for name in c.opaque),
        {str(node.target) for program in exports.programs for node in program.graph.nodes},
    )


def is_known(out: fx.Node) -> bool:
    """Whether a case consists of operators in the table."""
    calls = [node for node in ancestors([out]) if node.op == "call_function"]
    return all(str(node.target) in TABLE or node.target is getitem for node in calls)


@each("name", CASES)
def test_agrees_with_torch(results: Results, name: str) -> None:
    expected, parameters = results.expected[name], list(results.cases[name].parameters())
    gradients = torch.autograd.grad(expected, parameters, retain_graph=True)
    for actual in (by[name] for by in (results.whole, results.apart) if name in by):
        torch.testing.assert_close(actual, expected, rtol=NEAR, atol=NEAR)
        for a, b in zip(
            torch.autograd.grad(actual, parameters, retain_graph=True), gradients, strict=True
        ):
            torch.testing.assert_close(a, b, rtol=NEAR, atol=NEAR)


def test_no_case_of_the_table_is_opaque(results: Results) -> None:
    assert results.opaque == ()


def test_every_entry_is_tried(results: Results) -> None:
    lacking = {"aten.aminmax.default"} if IS_2_11 else set[str]()
    assert set(TABLE) - results.targets == lacking
