"""Calls of torch's functions that work slice by slice, one or more for each entry of the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from pcg.errors import OperatorError
from pcg.graph.opaque import TensorType
from pcg.graph.slicewise import SharedIndex
from pcg.graph.torch_calls import parse_call

OPERAND = re.compile(r"(f|[id](\d+)|b)\[([\d,]*)\]")


@dataclass(frozen=True)
class TorchCase:
    """A call and its operands, such as ``f[4,6] i3[4] d9[2,2,5]``: real numbers, integers below
    three, and integers below nine, all different beyond the first two dimensions."""

    function: str
    operands: str

    def __str__(self) -> str:
        return f"{self.function} of {self.operands}"

    @property
    def name(self) -> str:
        return parse_call(self.function).name

    def drawn(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(len(self.function))
        return [self._drawn(part, generator) for part in self.operands.split()]

    def _drawn(self, text: str, generator: torch.Generator) -> Tensor:
        match = OPERAND.fullmatch(text)
        assert match is not None, text
        shape = [int(size) for size in match[3].split(",") if size]
        if match[1][0] == "d":
            orders = torch.rand(*shape[:2], int(match[2]), generator=generator).argsort(-1)
            return orders[..., : prod(shape[2:])].reshape(shape)
        if match[2]:
            return torch.randint(int(match[2]), shape, generator=generator)
        if match[1] == "b":
            return torch.rand(shape, generator=generator) < 0.7
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if POSITIVE.search(self.function) and shape[-1:] == shape[-2:-1]:
            drawn = drawn @ drawn.mT + torch.eye(shape[-1], dtype=torch.float64)
        return drawn

    def run(self, operands: list[Tensor]) -> tuple[Tensor, ...]:
        return parse_call(self.function).run(operands)

    def types(self) -> tuple[list[TensorType], list[TensorType]]:
        """The formats of operands and results."""
        operands = self.drawn()
        return [_type(t) for t in operands], [_type(t) for t in self.run(operands)]


POSITIVE = re.compile(r"linalg|cholesky|logdet|inverse")


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def conceivable_axes(reads: list[TensorType], writes: list[TensorType]) -> Iterator[SharedIndex]:
    """All possible axes: dimensions of one size, one in each result, and one or none in each
    operand."""
    for size in sorted({size for tensor in writes for size in tensor.shape}):
        at = [[d for d, n in enumerate(tensor.shape) if n == size] for tensor in (*reads, *writes)]
        operands = product(*([None, *dims] for dims in at[: len(reads)]))
        for places in operands:
            if any(dim is not None for dim in places):
                for ends in product(*at[len(reads) :]):
                    yield SharedIndex(places, ends)


Run = Callable[[list[Tensor]], Sequence[Tensor]]


def works_in_blocks(case: TorchCase, axis: SharedIndex, run: Run) -> bool:
    """Whether blocks along an index, of different sizes, give blocks of the results and the
    gradients of the whole. ``run``: the function."""
    operands = [t.requires_grad_(t.is_floating_point()) for t in case.drawn()]
    whole = run(operands)
    size = next(
        t.shape[dim] for t, dim in zip(operands, axis.operands, strict=True) if dim is not None
    )
    parts: list[Sequence[Tensor]] = []
    for start, end in ((0, 1), (1, size)):
        block = [
            t if dim is None else t.narrow(dim, start, end - start)
            for t, dim in zip(operands, axis.operands, strict=True)
        ]
        try:
            parts.append(run(block))
        except (RuntimeError, IndexError, ValueError, TypeError, OperatorError):
            return False
    try:
        joined = [torch.cat(p, dim) for p, dim in zip(zip(*parts, strict=True), axis.results)]  # noqa: B905
    except (RuntimeError, IndexError):
        return False
    same = len(joined) == len(whole) and all(map(_close, joined, whole))
    return same and all(map(_close, _slopes(joined, operands), _slopes(whole, operands)))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-10, equal_nan=True)


def _slopes(results: Sequence[Tensor], operands: list[Tensor]) -> list[Tensor]:
    """The gradients of a weighted sum of the results. Empty if torch has no derivative."""
    smooth = [t for t in results if t.requires_grad]
    wanted = [t for t in operands if t.requires_grad]
    if not smooth or not wanted:
        return []
    generator = torch.Generator().manual_seed(1)
    total = sum(
        (t * torch.randn(t.shape, generator=generator, dtype=t.dtype)).sum() for t in smooth
    )
    assert isinstance(total, Tensor)
    return list(torch.autograd.grad(total, wanted, materialize_grads=True))


CASES = tuple(
    TorchCase(function, operands)
    for function, operands in (
        ("aten.cumsum.default(x0, 1)", "f[3,4,5]"),
        ("aten.cumsum.default(x0, -1)", "f[4]"),
        ("aten.cumprod.default(x0, 0)", "f[3,4]"),
        ("aten.logcumsumexp.default(x0, 1)", "f[3,4]"),
        ("aten.cummax.default(x0, 1)", "f[3,4]"),
        ("aten.cummin.default(x0, -1)", "f[3,4,5]"),
        ("aten.sort.default(x0, 1, True)", "f[3,4,5]"),
        ("aten.sort.stable(x0, stable=True, dim=0)", "f[3,4]"),
        ("aten.argsort.default(x0, 1)", "f[3,4]"),
        ("aten.topk.default(x0, 2)", "f[3,4,5]"),
        ("aten.topk.default(x0, 2, 0, False)", "f[4,5]"),
        ("aten.softmax.int(x0, 1)", "f[3,4,5]"),
        ("aten.log_softmax.int(x0, -1)", "f[3,4]"),
        ("aten._softmax.default(x0, 1, False)", "f[3,4]"),
        ("aten._log_softmax.default(x0, 0, False)", "f[3,4]"),
        ("aten.flip.default(x0, [0, -1])", "f[3,4,5]"),
        ("aten.roll.default(x0, [1], [1])", "f[3,4,5]"),
        ("aten.roll.default(x0, [1])", "f[3,4]"),
        ("aten.rot90.default(x0, 1, [0, 2])", "f[3,4,5]"),
        ("aten.index_select.default(x0, 1, x1)", "f[3,4,5] i4[6]"),
        ("aten.index_fill.int_Scalar(x0, 1, x1, 2.0)", "f[3,4] i4[2]"),
        ("aten.glu.default(x0, 1)", "f[3,4,5]"),
        ("aten.repeat_interleave.self_int(x0, 2, 1)", "f[3,4,5]"),
        ("aten.diff.default(x0, 1, 1)", "f[3,5]"),
        ("aten.diff.default(x0, 1, 1, x1)", "f[3,5] f[3,2]"),
        ("aten.gather.default(x0, 1, x1)", "f[3,4,5] i4[3,2,5]"),
        ("aten.gather.default(x0, 0, x1)", "f[3,5] i3[2,4]"),
        ("aten.take_along_dim.default(x0, x1, 1)", "f[3,4] i4[3,2]"),
        ("aten.scatter.src(x0, 1, x1, x2)", "f[3,4,5] i4[3,2,5] f[3,2,5]"),
        ("aten.scatter.src(x0, 1, x1, x2)", "f[3,5] i5[2,4] f[3,5]"),
        ("aten.scatter.value(x0, 1, x1, 2.0)", "f[3,4] i4[3,2]"),
        ("aten.scatter_add.default(x0, 0, x1, x2)", "f[3,4] i3[2,4] f[2,4]"),
        ("aten.scatter_reduce.two(x0, 1, x1, x2, 'amax')", "f[3,4] i4[3,2] f[3,2]"),
        ("aten.index_add.default(x0, 1, x1, x2)", "f[3,4,5] i4[2] f[3,2,5]"),
        ("aten.index_copy.default(x0, 0, x1, x2)", "f[6,4] i1[1] f[1,4]"),
        ("aten.index_reduce.default(x0, 0, x1, x2, 'mean')", "f[6,4] i6[2] f[2,4]"),
        ("aten.slice_scatter.default(x0, x1, 1, 0, 2)", "f[3,4,5] f[3,2,5]"),
        ("aten.linalg_cross.default(x0, x1)", "f[4,5,3] f[4,5,3]"),
        ("aten.linalg_cross.default(x0, x1)", "f[4,4,3] f[1,4,3]"),
        ("aten.slice.Tensor(x0, 1, 1, 9, 2)", "f[3,6,5]"),
        ("aten.max.dim(x0, 1)", "f[3,4,5]"),
        ("aten.max.default(x0)", "f[3,4]"),
        ("aten.min.dim(x0, -1, True)", "f[3,4,5]"),
        ("aten.argmax.default(x0, 1)", "f[3,4,5]"),
        ("aten.argmin.default(x0)", "f[3,4]"),
        ("aten.amax.default(x0, [0, 2])", "f[3,4,5]"),
        ("aten.amin.default(x0, [1], True)", "f[3,4,5]"),
        ("aten.aminmax.default(x0, dim=1)", "f[3,4]"),
        ("aten.any.dim(x0, 1)", "b[3,4]"),
        ("aten.any.dims(x0, [0, 1])", "b[3,4,5]"),
        ("aten.all.dim(x0, 0)", "b[3,4]"),
        ("aten.sum.dim_IntList(x0, [1])", "f[3,4,5]"),
        ("aten.nansum.default(x0, [1])", "f[3,4]"),
        ("aten.mean.dim(x0, [0], True)", "f[3,4]"),
        ("aten.nanmean.default(x0, [1])", "f[3,4]"),
        ("aten.prod.dim_int(x0, 1)", "f[3,4]"),
        ("aten.logsumexp.default(x0, [1])", "f[3,4,5]"),
        ("aten.count_nonzero.dim_IntList(x0, [1])", "b[3,4]"),
        ("aten.var.correction(x0, [1], correction=0)", "f[3,4,5]"),
        ("aten.var.dim(x0, [0, 1])", "f[3,4,5]"),
        ("aten.std.correction(x0, [1])", "f[3,4]"),
        ("aten.var_mean.correction(x0, [1], keepdim=True)", "f[3,4,5]"),
        ("aten.std_mean.correction(x0, [0])", "f[3,4]"),
        ("aten.linalg_vector_norm.default(x0, 2, [1])", "f[3,4,5]"),
        ("aten.linalg_vector_norm.default(x0)", "f[3,4]"),
        ("aten.norm.ScalarOpt_dim(x0, 2, [0])", "f[3,4]"),
        ("aten.kthvalue.default(x0, 2)", "f[3,4]"),
        ("aten.mode.default(x0, 1)", "f[3,4]"),
        ("aten.median.dim(x0, 1, True)", "f[3,4,5]"),
        ("aten.nanmedian.dim(x0, 0)", "f[3,4]"),
        ("aten.select.int(x0, 1, 2)", "f[3,4,5]"),
        ("aten.unfold.default(x0, 1, 2, 1)", "f[3,6,7]"),
        ("aten.unfold_copy.default(x0, 0, 2, 2)", "f[6,7]"),
        ("aten.max_pool1d.default(x0, [2])", "f[3,4,8]"),
        ("aten.max_pool1d_with_indices.default(x0, [2])", "f[3,4,8]"),
        ("aten.max_pool2d.default(x0, [2, 2])", "f[3,4,6,8]"),
        (
            "aten.max_pool2d_with_indices.default(x0, [3, 2], [2, 2], [1, 1], [1, 1], True)",
            "f[3,4,6,8]",
        ),
        ("aten.max_pool2d_with_indices.default(x0, [2, 2])", "f[3,6,8]"),
        ("aten.max_pool3d.default(x0, [2, 2, 2])", "f[3,5,4,6,8]"),
        ("aten.max_pool3d_with_indices.default(x0, [2, 2, 2])", "f[3,5,4,6,8]"),
        ("aten.avg_pool1d.default(x0, [2])", "f[3,4,6]"),
        ("aten.avg_pool2d.default(x0, [2, 2], ceil_mode=True)", "f[3,4,7,9]"),
        ("aten.avg_pool3d.default(x0, [2, 2, 2])", "f[3,5,4,6,8]"),
        ("aten.adaptive_avg_pool1d.default(x0, [2])", "f[3,4,5]"),
        ("aten.adaptive_avg_pool2d.default(x0, [2, 3])", "f[4,5,7,8]"),
        ("aten.adaptive_avg_pool3d.default(x0, [2, 2, 2])", "f[3,4,5,6,7]"),
        ("aten._adaptive_avg_pool2d.default(x0, [2, 3])", "f[4,5,7,8]"),
        ("aten._adaptive_avg_pool3d.default(x0, [2, 2, 2])", "f[3,4,5,6,7]"),
        ("aten.adaptive_max_pool1d.default(x0, [2])", "f[3,4,5]"),
        ("aten.adaptive_max_pool2d.default(x0, [2, 3])", "f[4,5,7,8]"),
        ("aten.adaptive_max_pool3d.default(x0, [2, 2, 2])", "f[3,4,5,6,7]"),
        ("aten.reflection_pad1d.default(x0, [1, 2])", "f[3,4,5]"),
        ("aten.reflection_pad2d.default(x0, [1, 1, 2, 0])", "f[3,4,6,7]"),
        ("aten.reflection_pad3d.default(x0, [1, 1, 1, 1, 1, 1])", "f[3,4,5,6,7]"),
        ("aten.replication_pad1d.default(x0, [1, 2])", "f[3,4,5]"),
        ("aten.replication_pad2d.default(x0, [1, 1, 2, 0])", "f[3,4,6,7]"),
        ("aten.replication_pad3d.default(x0, [1, 1, 1, 1, 1, 1])", "f[3,4,5,6,7]"),
        ("aten.upsample_nearest1d.default(x0, [10])", "f[3,4,5]"),
        ("aten.upsample_nearest2d.vec(x0, [10, 12], None)", "f[3,4,5,6]"),
        ("aten.upsample_nearest3d.default(x0, [8, 9, 10])", "f[3,2,4,5,6]"),
        ("aten._upsample_nearest_exact1d.default(x0, [10])", "f[3,4,5]"),
        ("aten._upsample_nearest_exact2d.vec(x0, [10, 12], None)", "f[3,4,5,6]"),
        ("aten._upsample_nearest_exact3d.default(x0, [8, 9, 10])", "f[3,2,4,5,6]"),
        ("aten._upsample_bilinear2d_aa.vec(x0, [3, 4], False, None)", "f[3,4,5,6]"),
        ("aten._upsample_bicubic2d_aa.default(x0, [3, 4], False)", "f[3,4,5,6]"),
        ("aten.upsample_linear1d.default(x0, [10], False)", "f[3,4,5]"),
        ("aten.upsample_bilinear2d.vec(x0, None, True, [2.0, 2.0])", "f[3,4,5,6]"),
        ("aten.upsample_bicubic2d.default(x0, [10, 12], False)", "f[3,4,5,6]"),
        ("aten.upsample_trilinear3d.default(x0, [8, 9, 10], False)", "f[3,2,4,5,6]"),
        ("aten.constant_pad_nd.default(x0, [1, 2], 0.5)", "f[3,4,5]"),
        ("aten.constant_pad_nd.default(x0, [1, 2, 0, -1])", "f[3,4,5]"),
        ("aten.pad.default(x0, [1, 1], 'circular')", "f[3,4,5]"),
        ("aten.layer_norm.default(x0, [5], x1, x2)", "f[3,4,5] f[5] f[5]"),
        ("aten.native_layer_norm.default(x0, [4, 5], x1, None, 1e-05)", "f[3,4,5] f[4,5]"),
        ("aten.rms_norm.default(x0, [5], x1)", "f[3,4,5] f[5]"),
        ("aten.inverse.default(x0)", "f[3,4,4]"),
        ("aten.linalg_inv.default(x0)", "f[3,4,4]"),
        ("aten.linalg_inv_ex.default(x0)", "f[3,4,4]"),
        ("aten.det.default(x0)", "f[3,4,4]"),
        ("aten.linalg_det.default(x0)", "f[3,4,4]"),
        ("aten.logdet.default(x0)", "f[3,4,4]"),
        ("aten.linalg_slogdet.default(x0)", "f[3,4,4]"),
        ("aten.cholesky.default(x0)", "f[3,4,4]"),
        ("aten.linalg_cholesky.default(x0)", "f[3,4,4]"),
        ("aten.linalg_cholesky_ex.default(x0)", "f[3,4,4]"),
        ("aten.matrix_exp.default(x0)", "f[3,4,4]"),
        ("aten.linalg_matrix_exp.default(x0)", "f[3,4,4]"),
        ("aten.linalg_matrix_power.default(x0, 3)", "f[3,4,4]"),
        ("aten.linalg_eigh.default(x0)", "f[3,4,4]"),
        ("aten.linalg_eigvalsh.default(x0)", "f[3,4,4]"),
        ("aten.linalg_svdvals.default(x0)", "f[3,4,5]"),
        ("aten.linalg_qr.default(x0)", "f[3,5,4]"),
        ("aten.linalg_svd.default(x0, False)", "f[3,5,4]"),
        ("aten.cholesky_inverse.default(x0)", "f[3,4,4]"),
        ("aten.tril.default(x0)", "f[3,4,5]"),
        ("aten.triu.default(x0, 1)", "f[3,4,5]"),
        ("aten.linalg_solve_triangular.default(x0, x1, upper=True)", "f[3,4,4] f[3,4,5]"),
        ("aten.linalg_solve.default(x0, x1)", "f[3,4,4] f[3,4,5]"),
        ("aten.max_unpool2d.default(x0, x1, [4, 6])", "f[3,2,2,3] d24[3,2,2,3]"),
        (
            "aten.max_unpool3d.default(x0, x1, [2, 4, 6], [2, 2, 2], [0, 0, 0])",
            "f[3,2,1,2,3] d48[3,2,1,2,3]",
        ),
        ("aten.pixel_shuffle.default(x0, 2)", "f[3,8,5,6]"),
        ("aten.pixel_unshuffle.default(x0, 2)", "f[3,5,4,6]"),
        ("aten.channel_shuffle.default(x0, 2)", "f[3,8,5,6]"),
        ("aten.group_norm.default(x0, 2, x1, x2)", "f[3,4,5] f[4] f[4]"),
        (
            "aten.native_group_norm.default(x0, x1, None, 3, 4, 5, 2, 1e-05)",
            "f[3,4,5] f[4]",
        ),
        ("aten.im2col.default(x0, [2, 2], [1, 1], [0, 0], [2, 2])", "f[3,5,4,6]"),
        ("aten.im2col.default(x0, [2, 2], [1, 1], [0, 0], [2, 2])", "f[5,4,6]"),
        ("aten.col2im.default(x0, [4, 6], [2, 2], [1, 1], [0, 0], [2, 2])", "f[3,20,6]"),
        ("aten.grid_sampler.default(x0, x1, 0, 0, False)", "f[3,4,5,6] f[3,7,8,2]"),
        ("aten.grid_sampler_2d.default(x0, x1, 0, 0, False)", "f[3,4,5,6] f[3,7,8,2]"),
        ("aten.grid_sampler_3d.default(x0, x1, 0, 0, False)", "f[3,4,5,6,7] f[3,8,9,10,3]"),
        (
            "aten.convolution.default(x0, x1, x2, [2], [1], [1], False, [0], 1)",
            "f[3,4,9] f[5,4,3] f[5]",
        ),
        (
            "aten.convolution.default(x0, x1, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)",
            "f[3,4,6,7] f[4,5,2,2]",
        ),
        (
            "aten.convolution.default(x0, x1, None, [1], [0], [1], False, [0], 2)",
            "f[3,4,9] f[6,2,3]",
        ),
        ("aten.conv1d.default(x0, x1, x2)", "f[3,4,9] f[5,4,3] f[5]"),
        ("aten.conv1d.default(x0, x1)", "f[4,9] f[5,4,3]"),
        ("aten.conv2d.default(x0, x1, None, [1, 1], [0, 0], [2, 2])", "f[3,4,9,8] f[5,4,2,2]"),
        ("aten.conv3d.default(x0, x1)", "f[3,4,6,7,8] f[5,4,2,2,2]"),
        ("aten.conv_transpose1d.default(x0, x1, x2)", "f[3,4,7] f[4,5,2] f[5]"),
        ("aten.conv_transpose2d.input(x0, x1)", "f[3,4,6,7] f[4,5,2,2]"),
        ("aten.conv_transpose3d.input(x0, x1)", "f[2,4,3,6,7] f[4,5,2,2,2]"),
        (
            "aten.scaled_dot_product_attention.default(x0, x1, x2)",
            "f[3,4,5,6] f[3,4,7,6] f[3,4,7,8]",
        ),
        (
            "aten.scaled_dot_product_attention.default(x0, x1, x2, None, 0.0, True)",
            "f[3,4,5,6] f[3,4,5,6] f[3,4,5,8]",
        ),
        (
            "aten.scaled_dot_product_attention.default(x0, x1, x2, x3)",
            "f[3,4,5,6] f[3,4,7,6] f[3,4,7,8] b[3,1,5,7]",
        ),
        (
            "aten.scaled_dot_product_attention.default(x0, x1, x2, x3)",
            "f[3,4,5,6] f[3,4,7,6] f[3,4,7,8] f[5,7]",
        ),
        (
            "aten.scaled_dot_product_attention.default(x0, x1, x2, enable_gqa=True)",
            "f[3,4,5,6] f[3,2,7,6] f[3,2,7,8]",
        ),
        ("aten.scaled_dot_product_attention.default(x0, x0, x0)", "f[3,4,5,6]"),
        (
            "aten.lstm.input(x0, [x1, x2], [x3, x4, x5, x6], True, 1, 0.0, True, False, True)",
            "f[3,5,4] f[1,3,6] f[1,3,6] f[24,4] f[24,6] f[24] f[24]",
        ),
        (
            "aten.gru.input(x0, x1, [x2, x3], False, 1, 0.0, True, False, False)",
            "f[5,3,4] f[1,3,6] f[18,4] f[18,6]",
        ),
        (
            "aten.rnn_tanh.input(x0, x1, [x2, x3], False, 1, 0.0, True, False, True)",
            "f[3,5,4] f[1,3,6] f[6,4] f[6,6]",
        ),
        (
            "aten.rnn_relu.input(x0, x1, [x2, x3], False, 1, 0.0, True, False, True)",
            "f[3,5,4] f[1,3,6] f[6,4] f[6,6]",
        ),
        ("aten.repeat.default(x0, [2, 1, 3, 1])", "f[3,4,5]"),
        ("aten.select_scatter.default(x0, x1, 1, 0)", "f[3,4,5] f[3,5]"),
        ("aten.diagonal.default(x0, 0, 0, 2)", "f[3,4,5]"),
        ("aten.diagonal_copy.default(x0, 1, 1, 2)", "f[3,4,5]"),
        ("aten._cdist_forward.default(x0, x1, 2.0, None)", "f[3,4,6] f[3,5,6]"),
        ("aten.cdist.default(x0, x1)", "f[3,4,6] f[3,5,6]"),
        ("aten.isin.Tensor_Tensor(x0, x1)", "i9[3,4] i9[5]"),
        ("aten.isin.Scalar_Tensor(2, x0)", "i9[5]"),
        ("aten.searchsorted.Tensor(x0, x1)", "f[9] f[3,4]"),
        ("aten.searchsorted.Tensor(x0, x1)", "f[3,9] f[3,4]"),
        ("aten.index.Tensor(x0, [None, x1])", "f[3,4,5] i4[6,7]"),
        ("aten.index.Tensor(x0, [x1, None, x2])", "f[3,4,5] i3[6] i5[6]"),
        ("aten.index.Tensor(x0, [x1, x2])", "f[3,4,5] i3[7,1] i4[6]"),
        ("aten.index_put.default(x0, [None, x1], x2)", "f[3,4,5] i1[1] f[3,1,5]"),
        ("aten.index_put.default(x0, [x1], x2, True)", "f[3,4,5] i3[6] f[4,5]"),
        ("aten.index_put.default(x0, [x1, None, x2], x3, True)", "f[3,4,5] i3[6] i5[6] f[6,4]"),
    )
)
