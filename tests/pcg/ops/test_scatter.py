"""Sums by place: kernels on blocks against torch on the whole, and ids that name no place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.differential import assert_means, with_gradients
from support.graphs.torch_functions import TORCH
from torch import Tensor

from pcg.ops import OPERATORS
from pcg.types.infer import index_sizes
from pcg.types.local import Axis
from pcg.types.operator import Call
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor
from runtime.execute.kernels import run_task, run_whole

NAMES = ("index_add", "scatter_add")


@dataclass(frozen=True)
class Sample:
    """A call and whole operands: the number of places, ids of these, and a source."""

    call: Call
    like: Tensor
    ids: Tensor
    source: Tensor

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self.like, self.ids, self.source

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(x.dim() for x in self.operands)


@st.composite
def samples(draw: st.DrawFn, least: int = 0) -> Sample:
    """Samples with sizes of at least ``least``, except the places, of which there is at least
    one."""
    name = draw(st.sampled_from(NAMES))
    shape = tuple(draw(st.lists(st.integers(least, 4), min_size=1, max_size=3)))
    axis, places = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    wanted = shape if name == "scatter_add" else shape[axis : axis + 1]
    ids = torch.randint(places, wanted, generator=generator)
    source = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Sample(OPERATORS[name](axis=axis), torch.zeros(places), ids, source)


def of_torch(sample: Sample, source: Tensor) -> Tensor:
    return TORCH[sample.call.name](sample.call.values, sample.like, sample.ids, source)


@given(samples())
def test_kernel_equals_torch(sample: Sample) -> None:
    """Also for no elements, and backward."""
    theirs = with_gradients(lambda x: of_torch(sample, x), [sample.source], torch.float64)
    ours = with_gradients(
        lambda x: run_whole(sample.call, [sample.like, sample.ids, x])[0],
        [sample.source],
        torch.float64,
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@given(samples(least=1))
def test_equation_equals_torch(sample: Sample) -> None:
    operands = (sample.ids, sample.source)
    assert_means(
        sample.call,
        (sample.like.long(), *operands),
        lambda like, ids, x: of_torch(sample, x),
    )


@given(samples(least=1), st.data())
def test_blocks_are_parts_of_the_whole(sample: Sample, data: st.DataObject) -> None:
    """Cut along any index at any places, in blocks of any sizes. A summed index leaves partial
    sums, another one gives parts side by side. The same holds for gradients."""
    axis = data.draw(st.sampled_from(sample.call.typing(sample.ranks).axes))
    sizes = index_sizes(
        sample.call, [ParallelTensor.whole(tuple(x.shape)) for x in sample.operands]
    )
    inner = (
        st.sets(st.integers(1, sizes[axis.name] - 1)) if sizes[axis.name] > 1 else st.just(set())
    )
    ends = [0, *sorted(data.draw(inner)), sizes[axis.name]]

    def in_blocks(source: Tensor) -> Tensor:
        parts = [block(sample, source, axis, sizes, span) for span in pairwise(ends)]
        (at,) = axis.outputs
        return torch.stack(parts).sum(0) if at is None else torch.cat(parts, at)

    theirs = with_gradients(lambda x: of_torch(sample, x), [sample.source], torch.float64)
    ours = with_gradients(in_blocks, [sample.source], torch.float64)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def block(
    sample: Sample, source: Tensor, axis: Axis, sizes: dict[str, int], span: tuple[int, int]
) -> Tensor:
    """The result of a task with a part of an index."""
    start, stop = span
    blocks: list[Tensor] = []
    starts: list[tuple[int, ...]] = []
    operands = (sample.like, sample.ids, source)
    for whole, dim in zip(operands, axis.operands, strict=True):
        blocks.append(whole if dim is None else whole.narrow(dim, start, stop - start))
        starts.append(tuple(start if at == dim else 0 for at in range(whole.dim())))
    task = KernelTask(sample.call.values, sizes, {axis.name: span})
    return run_task(sample.call, task, blocks, starts)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_sums_by_place_keep_other_formats(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    wanted = source.shape if name == "scatter_add" else (4,)
    ids = torch.randint(5, wanted, generator=generator)
    call = OPERATORS[name](axis=1)
    operands = (torch.zeros(5).long(), ids, source)
    assert_means(call, operands, lambda *x: TORCH[name](call.values, *x), dtype)


@pytest.mark.parametrize("bad", [-1, 4, 5, 1000])
@pytest.mark.parametrize("held", [(0, 4), (0, 2), (2, 4)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_an_id_of_no_place_is_an_error(
    name: str, shape: tuple[int, ...], held: tuple[int, int], bad: int
) -> None:
    """On any task, as in torch. An id of another task's places is no error."""
    source = torch.ones(shape)
    ids = torch.full(shape if name == "scatter_add" else shape[:1], 3)
    call, (start, stop) = OPERATORS[name](axis=0), held
    sizes = {"n": 4, "e": 3} | ({"b0": 2} if len(shape) > 1 else {})
    ranges = {} if held == (0, 4) else {"n": held}
    task = KernelTask(call.values, sizes, ranges)
    starts = [(start,), (0,) * ids.dim(), (0,) * source.dim()]
    (output,) = run_task(call, task, [torch.zeros(stop - start), ids, source], starts)
    assert float(output.sum()) == (source.numel() if stop == 4 else 0)
    ids[1] = bad
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        run_task(call, task, [torch.zeros(stop - start), ids, source], starts)
