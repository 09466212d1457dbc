"""Halos: the cuts of windows that they allow, what tasks compute with them, and their adjoint."""

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
from strategies import parts_of_leaves, seeds
from torch import Tensor
from torch.nn import functional

from pcg import infer
from pcg.check import Placement, check_graph, check_placement
from pcg.errors import InputError, OperatorError
from pcg.evaluate import evaluate_shards, evaluate_whole, meaning
from pcg.graph import Graph, Leaf, Node, Value, apply
from pcg.layout import spread
from pcg.operator import Operator
from pcg.ops import OPERATORS
from pcg.poly import Poly
from pcg.ring import PrimeField, Reals
from pcg.tensor import Degrees, Halo, ParallelTensor
from pcg.text import parse_graph, parse_values, print_graph
from runtime.kernels import run_equation, whole_task
from search.moves import Moves
from substitutions.match import matches
from substitutions.rule import parse_rule

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
        """What windows read before and after their own steps."""
        last = self.dilation * (self.kernel - 1) - self.padding
        return self.padding, max(0, last - (self.stride - 1))


def random_slide(pick: Callable[[int, int], int], *, pool: bool) -> Slide:
    kernel = pick(1, 3)
    padding = pick(0, kernel - 1 if pool else kernel + 1)
    return Slide(pick(1, 3), pick(1, 3), pick(1, 3), kernel, 1 if pool else pick(1, 2), padding)


def attributes(rows: Slide, columns: Slide, *, pool: bool) -> dict[str, int]:
    found = {"height": rows.count, "width": columns.count}
    found |= {"stride_h": rows.stride, "stride_w": columns.stride}
    found |= {"top": rows.padding, "left": columns.padding}
    if pool:
        return found | {"kernel_h": rows.kernel, "kernel_w": columns.kernel}
    return found | {"dilation_h": rows.dilation, "dilation_w": columns.dilation}


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


@settings(max_examples=150)
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


def typed(text: str) -> ParallelTensor:
    return parse_graph(text).outputs[0].type


ROWS = "height=12, width=10, stride_h=1, stride_w=1, dilation_h=2, dilation_w=1, top=1, left=0"
X, W = "x = input[8, 4, 12/3{}, 10]\n", "w = weight[6, 4, 3, 1] copies=3\n"


@pytest.mark.parametrize("halo", ["(1,3)", "(2,3)", "(1,4)", "(12,20)"])
def test_a_halo_that_reaches_as_far_as_windows_read_is_accepted(halo: str):
    assert str(typed(f"{X.format(halo)}{W}return conv2d(x, w, {ROWS})")) == "[8, 6, 12/3, 10]"


@pytest.mark.parametrize(
    ("halo", "problem"),
    [
        ("", "refuses a cut without a halo: degree 3, expected 1"),
        ("(0,3)", "halo (0,3), but windows read 1 before their block"),
        ("(1,2)", "halo (1,2), but windows read 3 after their block"),
        ("(0,0)", "halo (0,0), but windows read 1 before their block"),
    ],
)
def test_a_halo_that_is_too_small_is_refused(halo: str, problem: str):
    with pytest.raises(OperatorError) as caught:
        typed(f"{X.format(halo)}{W}return conv2d(x, w, {ROWS})")
    error = caught.value
    assert (error.operator, error.operand, error.dimension) == ("conv2d", "x", 2)
    assert problem in error.problem


def pool(size: str, rows: str) -> str:
    x = f"x = input[2, 2, {size}, 4]\n"
    return f"{x}return max_pool2d(x, {rows}, width=4, kernel_w=1, stride_w=1, left=0)"


def test_windows_that_do_not_overlap_need_a_halo_of_nothing():
    rows = "height=6, kernel_h=2, stride_h=2, top=0"
    assert str(typed(pool("12/3(0,0)", rows))) == "[2, 2, 6/3, 4]"
    with pytest.raises(OperatorError, match="without a halo"):
        typed(pool("12/3", rows))


@pytest.mark.parametrize(
    "rows", ["height=5, kernel_h=3, stride_h=2", "height=6, kernel_h=2, stride_h=3"]
)
def test_blocks_of_windows_have_to_be_those_of_the_operand(rows: str):
    with pytest.raises(OperatorError, match=r"windows at steps of \d cover 1\d, expected size 12"):
        typed(pool("12/2(2,2)", f"{rows}, top=0"))


def test_blocks_hold_whole_windows():
    with pytest.raises(OperatorError, match="degree 4 does not divide size 6 of index h"):
        typed(pool("12/4(0,0)", "height=6, kernel_h=2, stride_h=2, top=0"))


def test_slices_in_time_of_windows_are_refused():
    with pytest.raises(OperatorError, match="slices of a window index 2, expected 1"):
        typed(pool("12/2|2(0,0)", "height=12, kernel_h=1, stride_h=1, top=0"))


@pytest.mark.parametrize(
    ("call", "operand", "dimension"),
    [
        ("relu(x)", "x", 0),
        ("add(y, x)", "y", 0),
        ("sum_axis(x, axis=0)", "x", 0),
        ("matmul(x, w)", "x", 0),
        ("softmax(x, axis=0)", "x", 0),
        ("concat(x, x, axis=0)", "x", 0),
    ],
)
def test_other_operators_refuse_a_halo(call: str, operand: str, dimension: int):
    leaves = "x = input[8/2(1,1), 4]\ny = input[8/2, 4]\nw = weight[4, 3] copies=2\n"
    with pytest.raises(OperatorError, match="has a halo") as caught:
        typed(f"{leaves}return {call}")
    assert (caught.value.operand, caught.value.dimension) == (operand, dimension)


@pytest.mark.parametrize(
    ("call", "of", "result"),
    [
        ("partition(x, dim=0, degree=2, before=1, after=2)", "[8, 4]", "[8/2(1,2), 4]"),
        ("partition(x, dim=0, degree=2, before=0, after=0)", "[8/2, 4]", "[8/4(0,0), 4]"),
        ("partition(x, dim=0, degree=1, before=3, after=0)", "[8/2, 4]", "[8/2(3,0), 4]"),
        ("partition(x, dim=1, degree=2)", "[8/2(1,2), 4]", "[8/2(1,2), 4/2]"),
        ("partition(x, dim=1, degree=2, before=1, after=1)", "[8/2(1,2), 4]",
         "[8/2(1,2), 4/2(1,1)]"),
        ("partition(x, dim=0, degree=2, before=1, after=1)", "[8, 4/2(1,2)]",
         "[8/2(1,1), 4/2(1,2)]"),
        ("combine(x, dim=0, degree=2)", "[8/4(1,2), 4]", "[8/2, 4]"),
        ("combine(x, dim=0, degree=1)", "[8/4(1,2), 4]", "[8/4, 4]"),
        ("combine(x, dim=1, degree=2)", "[8/4(1,2), 4/2]", "[8/4(1,2), 4]"),
        ("replicate(x, degree=2)", "[8/4(1,2), 4]", "[8/4(1,2), 4] copies=2"),
        ("reduce(x, degree=2)", "[8/4(1,2), 4] partials=2", "[8/4(1,2), 4]"),
        ("join(x, x)", "[8/4(1,2), 4]", "[8/4(1,2), 4] partials=2"),
        ("pipeline(x, dim=0, degree=2)", "[8/2(1,2), 4]", "[8/2|2(1,2), 4]"),
    ],
)  # fmt: skip
def test_parallel_operators(call: str, of: str, result: str):
    text = f"x = input{of}\nreturn {call}"
    assert str(typed(text)) == result
    assert check_graph(parse_graph(text)) == []


@pytest.mark.parametrize(
    ("call", "of", "problem"),
    [
        ("partition(x, dim=0, degree=2, before=1, after=1)", "[8/2(1,1)]", "has a halo already"),
        ("partition(x, dim=0, degree=2)", "[8/2(1,1)]", "has a halo already"),
        ("partition(x, dim=0, degree=2, before=-1, after=1)", "[8]", "before is -1, expected an"),
        ("partition(x, dim=0, degree=2, before=1, after=0.5)", "[8]", "after is 0.5, expected an"),
        ("partition(x, dim=0, degree=2, before=p, after=1)", "[8]", "halo of p, expected a number"),
        ("partition(x, dim=1, degree=2, before=1, after=1)", "[8]", "no such dimension"),
        ("join(x, y)", "[8/2(1,1)]", "halos differ"),
    ],
)
def test_parallel_operators_refuse(call: str, of: str, problem: str):
    with pytest.raises(OperatorError, match=problem):
        typed(f"x = input{of}\ny = input[8/2(1,2)]\nreturn {call}")


def test_a_halo_is_stated_whole_or_not_at_all():
    partition = OPERATORS["partition"]
    assert str(partition(dim=0, degree=2)) == "partition(dim=0, degree=2)"
    stated = partition(dim=0, degree=2, before=1, after=0)
    assert str(stated) == "partition(dim=0, degree=2, before=1, after=0)"
    with pytest.raises(OperatorError, match="expected dim, degree, before, after"):
        partition(dim=0, degree=2, before=1)
    with pytest.raises(OperatorError, match="attributes dim, degree, after, before, expected dim"):
        OPERATORS["combine"](dim=0, degree=2, after=1, before=1)


@pytest.mark.parametrize("entry", ["12/3(1)", "12/3(1,)", "12/3(-1,1)", "12/3(1,1", "12/3(a,1)"])
def test_text_that_is_no_halo(entry: str):
    with pytest.raises(InputError, match="expected SIZE or SIZE/DEGREE"):
        parse_graph(f"x = input[2, {entry}]\nreturn x")


@pytest.mark.parametrize(
    ("call", "of"),
    [
        ("partition(x, dim=0, degree=1)", "[8/2]"),
        ("partition(x, dim=0, degree=1, before=1, after=1)", "[8]"),
        ("combine(x, dim=0, degree=1)", "[8/2]"),
    ],
)
def test_a_degree_of_one_moves_a_halo_or_is_wrong(call: str, of: str):
    (problem,) = check_graph(parse_graph(f"x = input{of}\nreturn {call}"))
    assert "degree 1, expected a whole number from 2 on" in problem.what


def test_a_halo_is_part_of_the_type():
    plain, haloed = (ParallelTensor((8,), Degrees((2,), (1,), 1, 1, h)) for h in ((), (HALO,)))
    assert plain != haloed
    assert (str(plain), str(haloed)) == ("[8/2]", "[8/2(1,2)]")
    assert haloed.block == plain.block
    assert haloed.degrees.halo(0) == HALO
    assert haloed.degrees.halo(1) is None


HALO = Halo(0, Poly.of(1), Poly.of(2))


@pytest.mark.parametrize("halo", ["(0,1)", "(1,0)"])
def test_a_task_sees_nothing_beyond_its_halo(halo: str, monkeypatch: pytest.MonkeyPatch):
    """With the check of the type rule out of the way, a halo too small gives another value."""
    rows = "height=12, kernel_h=3, stride_h=1, top=1"
    monkeypatch.setattr(infer, "check_halos", lambda *_: None)
    for held, right in (("(1,1)", True), (halo, False)):
        graph = parse_graph(pool(f"12/2{held}", rows))
        parts = parts_of_leaves(graph, 1, Reals())
        whole = evaluate_whole(graph, {n: v[0] for n, v in parts.items()}, Reals())[0]
        assert np.array_equal(evaluate_shards(graph, parts, Reals())[0][0], whole) == right


@pytest.mark.parametrize(
    ("equation", "reaches"),
    [
        # Neighbours on both sides, each of which has to lie in the halo.
        ("x[i, j] -> out[i, j] = x[i, j] + x[i, j + 1]", [("1", "0", "0"), ("1", "-1", "1")]),
        ("x[i] -> out[h < n] = sum a < r: x[2*h - a]", [("2", "r - 1", "-1")]),
        ("x[i] -> out[h < n] = max a < 3 where 0 <= h + a - 1 < |i|: x[h + a - 1]",
         [("1", "1", "1")]),
        ("x[i], k[a, b] -> out[h < n] = sum a, b: x[h - 2*a + 3*b] * k[a, b]",
         [("1", "2*|a| - 2", "3*|b| - 3")]),
        # Reversed, of two output indices, of two strides, or squared: no blocks correspond.
        ("x[i, j] -> out[i, j] = x[i, |j| - 1 - j]", []),
        ("x[i] -> out[h < n, w < r] = x[h + w]", []),
        ("x[i] -> out[h < n] = x[h] + x[2*h]", []),
        ("x[i] -> out[h < n] = x[h*h]", []),
        ("x[i] -> out[h < n] = sum a < r: x[h + a*a]", []),
        ("x[i] -> out[h < n] = sum a < r: x[h*a]", []),
        ("x[i, j] -> out[h < n] = x[h + 1, h]", []),
        ("x[i] -> out[h < n] = sum h2 < r: x[h2]", []),
    ],
)  # fmt: skip
def test_windows_are_derived_from_the_equation(equation: str, reaches: list[tuple[str, ...]]):
    operator = Operator("other", equation, sizes=tuple(n for n in "nr" if f"< {n}" in equation))
    ranks = tuple(len(operand.dims) for operand in operator._expand(()).operands)
    windows = operator.typing(ranks, ()).windows
    found = [(str(r.stride), str(r.before), str(r.after)) for w in windows for r in w.reaches]
    assert found == reaches


# The adjoint: what back-propagation makes of blocks with halos.


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
    """The whole operator by torch, on just what the windows read."""
    far = 20
    x = functional.pad(x, (far,) * 4, value=float("-inf") if name == "max_pool2d" else 0.0)
    for dim, s in ((2, rows), (3, columns)):
        read = s.dilation * (s.kernel - 1) + 1 + (s.count - 1) * s.stride
        x = x.narrow(dim, far - s.padding, read)
    steps = (rows.stride, columns.stride)
    if name == "max_pool2d":
        return functional.max_pool2d(x, (rows.kernel, columns.kernel), steps)
    return functional.conv2d(x, *k, stride=steps, dilation=(rows.dilation, columns.dilation))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", ["conv2d", "max_pool2d"])
def test_gradients_of_blocks_with_halos_add_up(name: str, seed: int):
    """Each task back-propagates to its own block and halo; where blocks overlap, the sum of their
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
    found: Any = [torch.zeros_like(t) for t in (x, *k)]
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
        found[0][:, :, first:last, start:stop] += gradients[0]
        for total, gradient in zip(found[1:], gradients[1:], strict=True):
            total += gradient
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


# Neither the search nor the runtime executes halos yet.


def test_a_tensor_with_a_halo_has_no_layout():
    kind = typed("x = input[8, 12/3(1,3)]\nreturn x")
    with pytest.raises(InputError, match=r"\[8, 12/3\(1,3\)\].* not executed yet"):
        spread(kind)


def test_a_graph_with_halos_has_no_placement():
    graph = parse_graph(f"{X.format('(1,3)')}{W}return conv2d(x, w, {ROWS})")
    assert check_graph(graph) == []
    (problem,) = check_placement(Placement(graph, {}, 4))
    assert (problem.check, problem.node) == ("halos", "x")
    assert "not executed yet" in problem.what


WINDOWS = "height=n, width=m, kernel_h=2, kernel_w=1, stride_h=1, stride_w=1, top=1, left=0"
RULE = parse_rule(
    "rows",
    {"x": 4},
    f"max_pool2d(x, {WINDOWS})",
    f"combine(max_pool2d(partition(x, dim=2, degree=k, before=1, after=0), {WINDOWS}),"
    " dim=2, degree=k)",
)


def test_rules_with_halos_are_not_applied_by_the_search():
    text = pool("12", "height=12, kernel_h=2, stride_h=1, top=1")
    graph = parse_graph(text)
    assert list(matches(RULE, graph))
    assert not list(Moves([RULE], 2).applications(graph))
    assert not Moves([RULE], 2).options(graph.leaves[0].value())[1:]


def test_a_rule_about_partitions_does_not_match_one_with_a_halo():
    rule = parse_rule(
        "twice", {"x": 1}, "combine(partition(x, dim=0, degree=k), dim=0, degree=k)", "x"
    )
    for halo, found in (("", 1), (", before=1, after=1", 0)):
        text = f"x = input[8]\nreturn combine(partition(x, dim=0, degree=2{halo}), dim=0, degree=2)"
        assert len(list(matches(rule, parse_graph(text)))) == found


def test_halos_may_be_symbols_in_a_rule():
    (value,) = parse_values("partition(x, dim=0, degree=k, before=p, after=2*q + 1)", {"x": 1})
    assert value.node.operator_call.values["after"] == Poly.of("q") * 2 + 1
