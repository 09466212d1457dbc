"""The table of ATen operators that have an index equation or are composed of some that have."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.capture.aten import (
    bags,
    diagonals,
    layers,
    losses,
    norms,
    pointwise,
    random,
    reindexing,
    scatter,
    strided,
    windows,
)
from pcg.capture.aten.attention import attended_in_parts
from pcg.capture.aten.call import Entry
from pcg.graph.torch_calls import ATTENTION

TABLE: Mapping[str, Entry] = {
    **pointwise.ENTRIES,
    **reindexing.ENTRIES,
    **diagonals.ENTRIES,
    **layers.ENTRIES,
    **bags.ENTRIES,
    **scatter.ENTRIES,
    **norms.ENTRIES,
    **losses.ENTRIES,
    **windows.ENTRIES,
    **strided.ENTRIES,
}
"""Entries by torch's name of the operator. Operators without an entry are decomposed by torch. What
is then still without an entry, and calls that an entry does not support, are opaque operators."""

ELEMENTWISE = frozenset(
    {
        *("aten.celu.default", "aten.selu.default", "aten.mish.default", "aten.softplus.default"),
        *("aten.hardsigmoid.default", "aten.hardshrink.default", "aten.softshrink.default"),
        *("aten.hardswish.default", "aten.logit.default", "aten.threshold.default"),
        *("aten.log_sigmoid.default", "aten.relu6.default", "aten.lerp.Tensor", "aten.lerp.Scalar"),
        *("aten.logaddexp.default", "aten.logaddexp2.default", "aten.nan_to_num.default"),
        *("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other"),
        *("aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar"),
        *("aten.special_xlog1py.other_scalar", "aten.special_entr.default"),
        *("aten.special_log_ndtr.default", "aten.sinc.default", "aten.frac.default"),
    }
)
"""Element-wise functions that torch would decompose into several. Those would round differently, or
choose between numbers of which one has no derivative."""
DOCUMENTED = frozenset(
    {
        *("aten.linalg_det.default", "aten.logdet.default", "aten.linalg_slogdet.default"),
        *("aten.linalg_eigh.default", "aten.linalg_eigvalsh.default", "aten.linalg_svd.default"),
        *("aten.linalg_svdvals.default", "aten.linalg_solve.default"),
        *("aten.linalg_inv.default", "aten.linalg_cholesky.default"),
        *("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"),
        *("aten.multilabel_margin_loss.default", "aten.multilabel_margin_loss_forward.default"),
        *("aten.max_unpool2d.default", "aten.max_unpool3d.default"),
    }
)
"""Functions that torch would decompose into internal functions, unknown to graphs, or into ones
with other values or derivatives. Examples are an index that fills an element twice, and labels that
end before the row does. Unpooling would become one write into all images, which is not cut."""
KEPT = TABLE.keys() | ELEMENTWISE | DOCUMENTED
"""Functions that the decomposition of a program leaves as they are."""


def entry_of(target: str) -> Entry | None:
    """Return the entry of a function. A function that returns a copy in the place of a view has the
    entry of the view."""
    return TABLE.get(target) or TABLE.get(target.replace("_copy.", "."))


DRAWING: Mapping[str, random.Drawing] = {**random.DRAWS, ATTENTION: attended_in_parts}
"""Entries of functions that draw random numbers, for calls whose arguments make them draw."""
