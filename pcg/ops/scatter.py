"""Sums by place: what a graph network adds up at the ends of edges, and what a look-up's gradient
is. Each element of the source is added to that of the result which its id names.

``like`` says how many places there are, and how they are cut: its elements do not matter. A cut of
the places leaves each task with all of the source, of which it adds up what is its own; one of the
source leaves partial sums. Kernels are as torch is: an id that names no place at all is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


def _own_places(task: KernelTask, ids: Tensor, held: int) -> tuple[Tensor, int]:
    """Where in this task's block of ``held`` places each id lies, and how many places that takes:
    one more than it has, if others do, for what is theirs. An id that names none lies outside."""
    places, everywhere = ids.long(), task.sizes["n"]
    if held == everywhere:
        return places, held
    own = places - task.start("n")
    is_own = (own >= 0) & (own < held)
    is_any = (places >= 0) & (places < everywhere)
    return torch.where(is_own, own, torch.where(is_any, held, held + 1)), held + 1


def _index_add(task: KernelTask, like: Tensor, ids: Tensor, source: Tensor) -> Tensor:
    held, axis = like.shape[0], task.attributes["axis"]
    places, wanted = _own_places(task, ids, held)
    shape = (*source.shape[:axis], wanted, *source.shape[axis + 1 :])
    return source.new_zeros(shape).index_add(axis, places, source).narrow(axis, 0, held)


def _scatter_add(task: KernelTask, like: Tensor, ids: Tensor, source: Tensor) -> Tensor:
    held, axis = like.shape[0], task.attributes["axis"]
    places, wanted = _own_places(task, ids, held)
    shape = (*source.shape[:axis], wanted, *source.shape[axis + 1 :])
    return source.new_zeros(shape).scatter_add(axis, places, source).narrow(axis, 0, held)


# Whole slices of the source, such as the messages along edges.
index_add = Operator(
    "index_add",
    "like[n], ids[e], source[a..., e@axis, b...]"
    " -> out[a..., n, b...]"
    " = (sum e: (ids[e] == n) * source[a..., e, b...]) + 0 * like[n]",
    kernel=_index_add,
)

# Each element of the source by an id of its own.
scatter_add = Operator(
    "scatter_add",
    "like[n], ids[a..., e@axis, b...], source[a..., e, b...]"
    " -> out[a..., n, b...]"
    " = (sum e: (ids[a..., e, b...] == n) * source[a..., e, b...]) + 0 * like[n]",
    kernel=_scatter_add,
)

OPERATORS = (index_add, scatter_add)
