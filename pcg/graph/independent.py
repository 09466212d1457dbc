"""The table of dimensions along which torch's functions are the same for each slice, by name.

``pcg.graph.independence`` explains the entries. A function without an entry is opaque.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pcg.graph.independence import (
    Along,
    CallFormats,
    Independence,
    Leading,
    Made,
    OperandSlot,
    Proposal,
    Stated,
    proposed_axes,
)
from pcg.graph.slicewise import MOST_SLICED, SharedIndex
from pcg.graph.torch_calls import Format, TorchCall


def independent(
    call: TorchCall, reads: Sequence[Format], writes: Sequence[Format]
) -> tuple[SharedIndex, ...]:
    """Return the axes of a call for operands and results of these formats, () if none is known.

    Raises ValueError if torch has no such function.
    """
    entry = ENTRIES.get(call.name)
    if entry is None or not 0 < len(reads) <= MOST_SLICED or not 0 < len(writes) <= MOST_SLICED:
        return ()
    values = call.bound([OperandSlot(number) for number in range(len(reads))])
    return proposed_axes(entry, CallFormats(values, reads, writes))


def sizes_among_arguments(call: TorchCall, reads: Sequence[Format]) -> dict[str, tuple[int, int]]:
    """Return the arguments of a call that are the size of a dimension, with operand and dimension.

    For a block they are the size of the block. The function has to be in the table.
    """
    values = call.bound([OperandSlot(number) for number in range(len(reads))])
    sized: dict[str, tuple[int, int]] = {}
    for name, tensor, dim in ENTRIES[call.name].counts:
        slot = values[tensor]
        if isinstance(slot, OperandSlot):
            sized[name] = slot.number, dim
    return sized


def _attention(given: CallFormats) -> Iterator[Proposal]:
    """Yield batches and heads, the value's last dimension and, without causality, the queries."""
    rank = given.rank("query")
    if rank != given.rank("key") or rank != given.rank("value"):
        return
    mask = given.shape("attn_mask")
    missing = rank - len(mask)
    if missing < 0:
        return

    def masked(dim: int) -> dict[str, int]:
        at = dim - missing
        return {"attn_mask": at} if mask and at >= 0 and mask[at] > 1 else {}

    for dim in range(rank - 2):
        yield Proposal({"query": dim, "key": dim, "value": dim, **masked(dim)}, dim)
    if not given.values.get("is_causal"):
        yield Proposal({"query": rank - 2, **masked(rank - 2)}, rank - 2)
    yield Proposal({"value": rank - 1}, rank - 1)


def _convolution(given: CallFormats) -> Iterator[Proposal]:
    """Yield the samples of a batch and, without groups, the output channels, each of which has its
    own weights."""
    yield from _convolved(given, is_transposed=bool(given.values.get("transposed")))


def _transposed_convolution(given: CallFormats) -> Iterator[Proposal]:
    yield from _convolved(given, is_transposed=True)


def _convolved(given: CallFormats, *, is_transposed: bool) -> Iterator[Proposal]:
    if given.rank("input") == given.rank("weight"):
        yield Proposal({"input": 0}, 0)
        if given.values.get("groups") == 1:
            yield Proposal({"weight": int(is_transposed), "bias": 0}, 1)


def _repeat(given: CallFormats) -> Iterator[Proposal]:
    """Yield the dimensions that are not repeated, without new ones."""
    times = given.values.get("repeats")
    rank = given.rank("self")
    for dim in range(rank):
        if isinstance(times, list) and times[len(times) - rank + dim] == 1:
            yield Proposal({"self": dim}, len(times) - rank + dim)


def _select_scatter(given: CallFormats) -> Iterator[Proposal]:
    """Yield all dimensions but the selected one, which the source lacks."""
    worked = given.dims("dim") or frozenset(range(given.rank("self")))
    for dim in range(given.rank("self")):
        if dim not in worked:
            yield Proposal({"self": dim, "src": dim - sum(w < dim for w in worked)}, dim)


def _diagonal(given: CallFormats) -> Iterator[Proposal]:
    """Yield all dimensions but those of the diagonal, which comes last in the result."""
    rank = given.rank("self")
    worked = {given.values["dim1"] % rank, given.values["dim2"] % rank}
    for dim in (d for d in range(rank) if d not in worked):
        yield Proposal({"self": dim}, dim - sum(w < dim for w in worked))


def _cdist(given: CallFormats) -> Iterator[Proposal]:
    """Yield batch dimensions only: with more rows, torch computes and rounds in another way."""
    if given.have_its_rank(("x2",)):
        for dim in range(given.rank("x1") - 2):
            yield Proposal({"x1": dim, "x2": dim}, dim)


def _isin(given: CallFormats) -> Iterator[Proposal]:
    """Yield all dimensions, since each element is looked up by itself."""
    for dim in range(given.rank("elements")):
        yield Proposal({"elements": dim}, dim)


def _searchsorted(given: CallFormats) -> Iterator[Proposal]:
    """Yield all dimensions: each number is looked up in the one sequence, or in that of its row."""
    rows = given.rank("sorted_sequence") - 1
    for dim in range(given.rank("self")):
        alike = {"sorted_sequence": dim, "sorter": dim} if dim < rows else {}
        yield Proposal({"self": dim, **alike}, dim)


class _Indexing:
    """The dimensions of ``self[indices]``.

    Those of the indices, broadcast, take the place of the dimensions that they index if these are
    adjacent, and come first otherwise.
    """

    def __init__(self, given: CallFormats) -> None:
        listed = given.values["indices"]
        self.given, self.indices = (
            given,
            [i if isinstance(i, OperandSlot) else None for i in listed],
        )
        self.taken = [dim for dim, index in enumerate(self.indices) if index]
        shapes = [given.reads[i.number].shape for i in self.indices if i]
        self.width = max(map(len, shapes), default=0)
        beside = self.taken == list(range(self.taken[0], self.taken[-1] + 1)) if shapes else False
        self.start = self.taken[0] if beside else 0

    @property
    def chooses(self) -> bool:
        """Whether there are indices, and none of them is a mask."""
        formats = [self.given.reads[i.number].dtype for i in self.indices if i]
        return bool(formats) and "bool" not in formats and "uint8" not in formats

    def kept(self) -> Iterator[tuple[int, int]]:
        """Yield the dimensions that are not indexed, each with its position in the result."""
        for dim in (d for d in range(self.given.rank("self")) if d not in self.taken):
            before = dim - sum(t < dim for t in self.taken)
            yield dim, before + self.width * (before >= self.start)

    def chosen(self) -> Iterator[Proposal]:
        """Yield the dimensions of the indices."""
        for at in range(self.width):
            dims: list[int | None] = []
            for index in self.indices:
                shape = self.given.reads[index.number].shape if index else ()
                own = at - (self.width - len(shape))
                dims.append(own if own >= 0 and shape[own] > 1 else None)
            yield Proposal({"indices": dims}, self.start + at)


def _index(given: CallFormats) -> Iterator[Proposal]:
    indexing = _Indexing(given)
    if indexing.chooses:
        for dim, result in indexing.kept():
            yield Proposal({"self": dim}, result)
        yield from indexing.chosen()


def _index_put(given: CallFormats) -> Iterator[Proposal]:
    """Yield the dimensions that are not indexed. Values are broadcast to what they replace."""
    indexing, values = _Indexing(given), given.shape("values")
    if not indexing.chooses:
        return
    rank = given.rank("self") - len(indexing.taken) + indexing.width
    for dim, replaced in indexing.kept():
        own = replaced - (rank - len(values))
        alike = {"values": own} if own >= 0 and values[own] > 1 else {}
        yield Proposal({"self": dim, **alike}, dim)


def _recurrent(given: CallFormats) -> Iterator[Proposal]:
    """Yield the batch dimension, which is the second one of the states."""
    if given.rank("input") == 3:
        batch = 0 if given.values.get("batch_first") else 1
        yield Proposal({"input": batch, "hx": 1}, [batch, *[1] * (len(given.writes) - 1)])


_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "topk")
_SOFTMAXES = ("softmax", "log_softmax", "_softmax", "_log_softmax")
_REDUCTIONS = (
    *("max", "min", "argmax", "argmin", "amax", "amin", "aminmax", "any", "all"),
    *("sum", "nansum", "mean", "nanmean", "prod", "logsumexp", "count_nonzero"),
    *("var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm"),
    *("kthvalue", "mode", "median", "nanmedian", "select"),
)
_POOLS = (
    *("max_pool{}d", "max_pool{}d_with_indices", "avg_pool{}d"),
    *("adaptive_avg_pool{}d", "adaptive_max_pool{}d"),
    *("reflection_pad{}d", "replication_pad{}d"),
    *("upsample_nearest{}d", "_upsample_nearest_exact{}d"),
)
_RESIZED = {
    "upsample_linear1d": 1,
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d"), 2),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), 2),
    "upsample_trilinear3d": 3,
}
_MATRICES = (
    *("inverse", "linalg_inv", "linalg_inv_ex", "det", "linalg_det", "logdet", "linalg_slogdet"),
    *("cholesky", "linalg_cholesky", "linalg_cholesky_ex", "matrix_exp", "linalg_matrix_exp"),
    *("linalg_matrix_power", "linalg_eigh", "linalg_eigvalsh", "linalg_svdvals"),
    *("linalg_qr", "linalg_svd", "cholesky_inverse", "tril", "triu"),
)
_SAMPLES = (
    *(Proposal({"input": 0, "grid": 0}, 0), Proposal({"input": 1}, 1)),
    *(Proposal({"grid": place}, place + 1) for place in (1, 2, 3)),
)
_FIRST = (Proposal({"self": 0, "input": 0}, 0),)

ENTRIES: Mapping[str, Independence] = {
    **dict.fromkeys((*_SCANS, *_SOFTMAXES), Along()),
    **dict.fromkeys(("flip", "roll", "rot90"), Along("dims")),
    **dict.fromkeys(("index_fill", "glu", "repeat_interleave"), Along()),
    "index_select": Along(index="index"),
    "diff": Along(alike=("prepend", "append")),
    "gather": Along(alike=("index",), index="index"),
    "take_along_dim": Along(alike=("indices",), index="indices"),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), Along(alike=("index", "src"))),
    "index_add": Along(alike=("source",)),
    "index_copy": Along(alike=("source",)),
    "index_reduce": Along(alike=("source",)),
    "slice_scatter": Along(alike=("src",)),
    "linalg_cross": Along(alike=("other",)),
    "slice": Along(),
    **dict.fromkeys(_REDUCTIONS, Along(reduces=True)),
    "unfold": Along("dimension"),
    "unfold_copy": Along("dimension"),
    **{pool.format(n): Leading(n) for pool in _POOLS for n in (1, 2, 3)},
    **{name: Leading(n) for name, n in _RESIZED.items()},
    **{f"_adaptive_avg_pool{n}d": Leading(n) for n in (2, 3)},
    **{f"max_unpool{n}d": Leading(n, alike=("indices",)) for n in (2, 3)},
    "constant_pad_nd": Leading("pad", each=2),
    "pad": Leading("pad", each=2),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm"), Leading("normalized_shape")),
    **dict.fromkeys(_MATRICES, Leading(2)),
    "linalg_solve_triangular": Leading(2, alike=("B",)),
    "linalg_solve": Leading(2, alike=("B",)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), Leading(3)),
    "channel_shuffle": Along(always=(1,)),
    "group_norm": Stated(_FIRST),
    "native_group_norm": Stated(_FIRST, counts=(("N", "input", 0),)),
    "im2col": Stated(_FIRST, rank=4),
    "col2im": Stated(_FIRST, rank=3),
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d", "grid_sampler"), Stated(_SAMPLES)),
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), Made(_convolution)),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        Made(_transposed_convolution),
    ),
    "scaled_dot_product_attention": Made(_attention),
    "repeat": Made(_repeat),
    "select_scatter": Made(_select_scatter),
    "diagonal": Made(_diagonal),
    "diagonal_copy": Made(_diagonal),
    "_cdist_forward": Made(_cdist),
    "cdist": Made(_cdist),
    "isin": Made(_isin),
    "searchsorted": Made(_searchsorted),
    "index": Made(_index),
    "index_put": Made(_index_put),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), Made(_recurrent)),
}
"""Entries by torch's names of functions, for all of their overloads."""
