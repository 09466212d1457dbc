"""Sums by index, as for messages along the edges of a graph, or for the gradient of a look-up. Each
element of the source is added to the element of the result that its id names.

``like`` gives the number of places and their cut. Its elements are not used. If the places are cut,
each task has all of the source and adds up the elements for its own places. If the source is cut,
results are partial sums. As in torch, an id that names no place is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


def _local_places(task: KernelTask, ids: Tensor, held: int) -> tuple[Tensor, int]:
    """Return the position of each id in this task's block of ``held`` places, and the number of
    places to allocate. If other tasks have places too, there is one additional place for their
    ids. An id that names no place at all gets a position out of range."""
    places, total = ids.long(), task.sizes["n"]
    if held == total:
        return places, held
    local = places - task.start("n")
    is_local = (local >= 0) & (local < held)
    is_valid = (places >= 0) & (places < total)
    return torch.where(is_local, local, torch.where(is_valid, held, held + 1)), held + 1


def _index_add(task: KernelTask, like: Tensor, ids: Tensor, source: Tensor) -> Tensor:
    held, axis = like.shape[0], task.attributes["axis"]
    places, wanted = _local_places(task, ids, held)
    shape = (*source.shape[:axis], wanted, *source.shape[axis + 1 :])
    return source.new_zeros(shape).index_add(axis, places, source).narrow(axis, 0, held)


def _scatter_add(task: KernelTask, like: Tensor, ids: Tensor, source: Tensor) -> Tensor:
    held, axis = like.shape[0], task.attributes["axis"]
    places, wanted = _local_places(task, ids, held)
    shape = (*source.shape[:axis], wanted, *source.shape[axis + 1 :])
    return source.new_zeros(shape).scatter_add(axis, places, source).narrow(axis, 0, held)


# Sums of whole slices of the source, such as the messages along edges.
index_add = Operator(
    "index_add",
    "like[n], ids[e], source[a..., e@axis, b...]"
    " -> out[a..., n, b...]"
    " = (sum e: (ids[e] == n) * source[a..., e, b...]) + 0 * like[n]",
    kernel=_index_add,
)

# Sums of elements of the source, each with an id of its own.
scatter_add = Operator(
    "scatter_add",
    "like[n], ids[a..., e@axis, b...], source[a..., e, b...]"
    " -> out[a..., n, b...]"
    " = (sum e: (ids[a..., e, b...] == n) * source[a..., e, b...]) + 0 * like[n]",
    kernel=_scatter_add,
)

OPERATORS = (index_add, scatter_add)
