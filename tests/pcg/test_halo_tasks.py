"""Tasks on blocks with halos: their values, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support.cases import each
from support.graphs.strategies import parts_of_leaves, seeds
from torch import Tensor
from torch.nn import functional

from pcg.graph.graph import Graph, Leaf, Node, Value, apply
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import evaluate_shards, evaluate_whole, meaning
from pcg.readings.ring import PrimeField, Reals
from pcg.types import infer
from pcg.types.tensor import Degrees, ParallelTensor
from runtime.execute.kernels import run_equation, whole_task

CONVOLUTIONS = ("conv2d", "grouped_conv2d", "depthwise_conv2d")
POOLS = ("max_pool2d", "avg_pool2d", "avg_pool2d_inside")


@dataclass(frozen=True)
class Slide:
    """Windows along one dimension that is cut: ``blocks`` blocks of ``windows`` windows each."""

    blocks: int
    windows: int
    stride: int
    kernel: int
    dilation: int
    padding: int

    @property
    def count(self) -> int:
        return self.blocks * self.windows

    @property
    def size(self) -> int:
        return self.count * self.stride

    @property
    def halo(self) -> tuple[int, int]:
        """The elements that windows read before and after their own steps."""
        last = self.dilation * (self.kernel - 1) - self.padding
        return self.padding, max(0, last - (self.stride - 1))


def random_slide(pick: Callable[[int, int], int], *, pool: bool) -> Slide:
    kernel = pick(1, 3)
    padding = pick(0, kernel - 1 if pool else kernel + 1)
    return Slide(pick(1, 3), pick(1, 3), pick(1, 3), kernel, 1 if pool else pick(1, 2), padding)


def attributes(rows: Slide, columns: Slide, *, pool: bool) -> dict[str, int]:
    counts = {"height": rows.count, "width": columns.count}
    counts |= {"stride_h": rows.stride, "stride_w": columns.stride}
    counts |= {"top": rows.padding, "left": columns.padding}
    if pool:
        return counts | {"kernel_h": rows.kernel, "kernel_w": columns.kernel}
    return counts | {"dilation_h": rows.dilation, "dilation_w": columns.dilation}


def tensor(name: str, shape: tuple[int, ...], dims: tuple[int, ...] = (), copies: int = 1) -> Value:
    ones = (1,) * len(shape)
    kind = ParallelTensor(shape, Degrees(dims or ones, ones, copies, 1))
    return Value(Node(Leaf("input", name, len(shape), kind)))


def cut(x: Value, dim: int, slide: Slide, wider: tuple[int, int] = (0, 0)) -> Value:
    before, after = (halo + more for halo, more in zip(slide.halo, wider, strict=True))
    call = OPERATORS["partition"](dim=dim, degree=slide.blocks, before=before, after=after)
    return apply(call, x)


@st.composite
def windows_cut(draw: DrawFn) -> Graph:
    """A convolution or pool with its rows, columns and batch cut, with halos as wide as needed or
    wider."""

    def pick(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    name = draw(st.sampled_from((*CONVOLUTIONS, *POOLS)))
    pool = name in POOLS
    rows, columns = random_slide(pick, pool=pool), random_slide(pick, pool=pool)
    batch, channels = pick(1, 2), pick(1, 2)
    x = tensor("x", (2 * batch, 2 * channels, rows.size, columns.size), (batch, 1, 1, 1))
    x = cut(x, 2, rows, (pick(0, 2), pick(0, 2)))
    x = cut(x, 3, columns, (pick(0, 1), pick(0, 1)))
    call = OPERATORS[name](**attributes(rows, columns, pool=pool))
    if pool:
        return Graph((apply(call, x),))
    inner = {"conv2d": 2 * channels, "grouped_conv2d": channels, "depthwise_conv2d": 1}[name]
    kernels = (2 * channels, inner, rows.kernel, columns.kernel)
    k = tensor("k", kernels, copies=batch * rows.blocks * columns.blocks)
    return Graph((apply(call, x, k),))


@settings(max_examples=50)
@given(graph=windows_cut(), seed=seeds, exact=st.booleans())
def test_tasks_on_blocks_with_halos_compute_the_whole(graph: Graph, seed: int, exact: bool):
    ring = PrimeField() if exact else Reals()
    parts = parts_of_leaves(graph, seed, ring)
    (whole,) = evaluate_whole(graph, {n: meaning(v, ring) for n, v in parts.items()}, ring)
    (shards,) = evaluate_shards(graph, parts, ring)
    assert shards.shape == (1, *graph.outputs[0].type.shape)
    np.testing.assert_allclose(meaning(shards, ring), whole, rtol=1e-9, atol=1e-9)


@given(graph=windows_cut())
def test_round_trip(graph: Graph):
    parsed = parse_graph(print_graph(graph))
    assert parsed == graph
    assert parsed.digest == graph.digest
    haloed = graph.outputs[0].node.inputs[0].type
    line = f"x = input{haloed}\nreturn x\n"
    assert parse_graph(line).outputs[0].type == haloed
    assert print_graph(parse_graph(line)) == line


@pytest.mark.parametrize("halo", ["(0,1)", "(1,0)"])
def test_a_task_sees_nothing_beyond_its_halo(halo: str, monkeypatch: pytest.MonkeyPatch):
    """Without the check of the type rule, a halo that is too small gives another value."""
    rows = "height=12, kernel_h=3, stride_h=1, top=1"
    text = "x = input[2, 2, 12/2{}, 4]\nreturn max_pool2d(x, {}, width=4, {})"
    columns = "kernel_w=1, stride_w=1, left=0"
    monkeypatch.setattr(infer, "check_halos", lambda *_: None)
    for held, right in (("(1,1)", True), (halo, False)):
        graph = parse_graph(text.format(held, rows, columns))
        parts = parts_of_leaves(graph, 1, Reals())
        whole = evaluate_whole(graph, {n: v[0] for n, v in parts.items()}, Reals())[0]
        assert np.array_equal(evaluate_shards(graph, parts, Reals())[0][0], whole) == right


# The adjoint: the gradients of blocks with halos.


def blocks(slide: Slide) -> Iterator[tuple[int, int, int, int]]:
    """(first window, last, first element, last) of each block, with its halo."""
    before, after = slide.halo
    own = slide.windows * slide.stride
    for block in range(slide.blocks):
        start, stop = block * own - before, (block + 1) * own + after
        yield (
            *(block * slide.windows, (block + 1) * slide.windows),
            *(max(0, start), min(slide.size, stop)),
        )


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_torch(name: str, rows: Slide, columns: Slide, x: Tensor, *k: Tensor) -> Tensor:
    """The whole operator by torch, on exactly the elements that the windows read."""
    far = 20
    x = functional.pad(x, (far,) * 4, value=float("-inf") if name == "max_pool2d" else 0.0)
    for dim, s in ((2, rows), (3, columns)):
        read = s.dilation * (s.kernel - 1) + 1 + (s.count - 1) * s.stride
        x = x.narrow(dim, far - s.padding, read)
    steps = (rows.stride, columns.stride)
    if name == "max_pool2d":
        return functional.max_pool2d(x, (rows.kernel, columns.kernel), steps)
    return functional.conv2d(x, *k, stride=steps, dilation=(rows.dilation, columns.dilation))


@each("seed", range(25))
@each("name", ["conv2d", "max_pool2d"])
def test_gradients_of_blocks_with_halos_add_up(name: str, seed: int):
    """Each task has gradients for its own block and halo. If blocks overlap, the sum of these
    gradients is the gradient of the whole."""
    random, pooled = Random(f"{name} {seed}"), name == "max_pool2d"
    rows, columns = (random_slide(random.randint, pool=pooled) for _ in "hw")
    x = numbers(seed, 2, 2, rows.size, columns.size)
    k = () if pooled else (numbers(seed + 1, 3, 2, rows.kernel, columns.kernel),)
    given = [t.clone().requires_grad_() for t in (x, *k)]
    whole = of_torch(name, rows, columns, *given)
    weight = numbers(seed + 2, *whole.shape)
    wanted = torch.autograd.grad(whole, given, weight)

    call = OPERATORS[name](**attributes(rows, columns, pool=pooled))
    task = whole_task(call, [tuple(t.shape) for t in (x, *k)])
    summed: Any = [torch.zeros_like(t) for t in (x, *k)]
    for (top, bottom, first, last), (left, right, start, stop) in product(
        blocks(rows), blocks(columns)
    ):
        part = x[:, :, first:last, start:stop].clone().requires_grad_()
        own = [part, *(t.clone().requires_grad_() for t in k)]
        ranges = {"h": (top, bottom), "w": (left, right)}
        starts = [(0, 0, first, start), *((0,) * t.dim() for t in k)]
        (out,) = run_equation(call, type(task)(task.attributes, task.sizes, ranges), own, starts)
        torch.testing.assert_close(out, whole[:, :, top:bottom, left:right])
        gradients = torch.autograd.grad(out, own, weight[:, :, top:bottom, left:right])
        summed[0][:, :, first:last, start:stop] += gradients[0]
        for total, gradient in zip(summed[1:], gradients[1:], strict=True):
            total += gradient
    for ours, theirs in zip(summed, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
