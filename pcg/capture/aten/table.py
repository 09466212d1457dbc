"""The table of ATen operators that have an index equation, or are made of some that have."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.capture.aten import (
    bags,
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
    **layers.ENTRIES,
    **bags.ENTRIES,
    **scatter.ENTRIES,
    **norms.ENTRIES,
    **losses.ENTRIES,
    **windows.ENTRIES,
    **strided.ENTRIES,
}
"""By torch's name of the operator. What is not here is taken apart by torch's own decompositions,
and what is left then, and what an entry does not support, is opaque."""

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
"""Functions of single elements that torch would take apart into several, which round otherwise, or
choose between numbers of which one has no derivative."""
DOCUMENTED = frozenset(
    {
        *("aten.linalg_det.default", "aten.logdet.default", "aten.linalg_slogdet.default"),
        *("aten.linalg_eigh.default", "aten.linalg_eigvalsh.default", "aten.linalg_svd.default"),
        *("aten.linalg_svdvals.default", "aten.linalg_solve.default"),
        *("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"),
        *("aten.multilabel_margin_loss.default", "aten.multilabel_margin_loss_forward.default"),
    }
)
"""Functions that torch takes apart into ones of its own use, of which no graph knows anything, or
into ones that do not have its own values or derivative, as where an index fills an element twice,
or labels end before the row does."""
KEPT = TABLE.keys() | ELEMENTWISE | DOCUMENTED
"""What a program is not taken apart beyond."""


def entry_of(target: str) -> Entry | None:
    """How a function becomes operators. One that returns a copy, where another returns a view, is
    the other to a graph."""
    return TABLE.get(target) or TABLE.get(target.replace("_copy.", "."))


DRAWING: Mapping[str, random.Drawing] = {**random.DRAWS, ATTENTION: attended_in_parts}
"""Those that draw random numbers, where their arguments let them."""
