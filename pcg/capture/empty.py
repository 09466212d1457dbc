"""Remove tensors without elements from a program, where this changes no result.

Public models create such tensors: a cache begins empty, an attention head that is rotated as a
whole has an empty rest, and a layer without a perceptron splits off none of its columns. A slice
without elements may be replaced. Graphs have no tensors without elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

JOINS, SPLITS = "aten.cat.default", "aten.split_with_sizes.default"
PUTS = "aten.slice_scatter.default"
SUMS = ("aten.sum.default", "aten.sum.dim_IntList")


def leave_out_empty(program: ExportedProgram) -> None:
    """Remove empty parts from concatenations that have other parts, from splits if no node reads
    them, and from slices that are replaced. Sums of nothing become zeros."""
    for node in list(program.graph.nodes):
        if str(node.target) == JOINS:
            parts, *others = node.args
            # Torch accepts empty vectors beside tensors of any rank.
            something = [part for part in parts if not _is_empty(part.meta["val"].shape)]
            if something:
                node.args = (something, *others)
        elif str(node.target) == SPLITS:
            _split_something(node)
        elif str(node.target) == PUTS and _is_empty(node.args[1].meta["val"].shape):
            node.replace_all_uses_with(node.args[0])
        elif str(node.target) in SUMS and _is_empty(node.args[0].meta["val"].shape):
            _make_zeros(node)


def _make_zeros(node: fx.Node) -> None:
    """Replace a sum of nothing by zeros, unless the sum has no elements either."""
    value: Any = node.meta["val"]
    if _is_empty(value.shape):
        return
    # The node itself, because a program knows its outputs by name.
    node.target = torch.ops.aten.full.default
    node.args = (list(value.shape), 0)
    node.kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}


def _split_something(node: fx.Node) -> None:
    x, sizes, *others = node.args
    parts: Any = node.meta["val"]
    full = [at for at, part in enumerate(parts) if not _is_empty(part.shape)]
    read: list[Any] = [(user, user.args[1]) for user in node.users]
    if not full or any(at not in full and user.users for user, at in read):
        return
    given: Any = sizes
    node.args = (x, [given[at] for at in full], *others)
    node.meta["val"] = type(parts)(parts[at] for at in full)
    for user, at in read:
        if at in full:
            user.args = (node, full.index(at))
        else:
            node.graph.erase_node(user)


def _is_empty(shape: Sequence[object]) -> bool:
    """Whether a tensor has no elements. A size that depends on values counts as some."""
    return any(isinstance(size, int) and size == 0 for size in shape)
