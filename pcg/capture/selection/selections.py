"""Functions that select elements by a mask, and that put selected elements back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from pcg.capture.selection.by_place import Arguments, part
from pcg.capture.selection.places import AllPlaces, Known, Selected
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx

ADDS = frozenset(
    {
        *("aten.index_add.default", "aten.index_add_.default"),
        *("aten.scatter_add.default", "aten.scatter_add_.default"),
    }
)
"""Functions that add their argument ``source`` or ``src`` up at places."""
PUTS = frozenset({"aten.index_put.default", "aten.index_put_.default"})


def selecting(places: AllPlaces, node: fx.Node, given: Arguments) -> Known | None:
    """Return what a call selects by a mask. None for other functions."""
    match str(node.target):
        case "aten.masked_select.default":
            x, mask = given["self"], given["mask"]
            shape = torch.broadcast_shapes(x.meta["val"].shape, mask.meta["val"].shape)
            x, mask = (places.emit(torch.ops.aten.expand.default, t, shape) for t in (x, mask))
            return _by_mask(places, x, mask, 0)
        case "aten.index.Tensor":
            return _indexed(places, node, given)
        case "aten.nonzero.default":
            mask = places.flat_mask(given["self"])
            rows = _coordinates(places, given["self"])
            made = places.emit(torch.ops.aten.stack.default, rows, 1)
            places.stacks[made] = rows
            return Selected(made, 0, mask)
        case "aten.select.int" | "aten.squeeze.dim":
            return _column(places, given)
        case _:
            return None


def located(places: AllPlaces, node: fx.Node, given: Arguments) -> tuple[Known, ...] | None:
    """Return the positions of a mask's true elements, by dimension, of a call that returns a list
    of them. None for other functions."""
    if str(node.target) not in ("aten.where.default", "aten.nonzero_numpy.default"):
        return None
    read = given.get("condition", given.get("self"))
    mask = places.flat_mask(read)
    return tuple(Selected(row, 0, mask) for row in _coordinates(places, read))


def _column(places: AllPlaces, given: Arguments) -> Selected | None:
    """Return the positions along one dimension, of those of a mask along all. None for others."""
    known = places.known.get(given["self"])
    rows = places.stacks.get(known.node, []) if isinstance(known, Selected) else []
    at = given.get("index", 0)
    if not rows or given["dim"] not in (1, -1) or ("index" not in given and len(rows) > 1):
        return None
    assert isinstance(known, Selected)
    return Selected(rows[at], 0, known.mask)


def _indexed(places: AllPlaces, node: fx.Node, given: Arguments) -> Known | None:
    """Return a tensor indexed by a mask, or by the positions of selected elements."""
    x, indices = given["self"], list(given["indices"])
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if x in places.known or not used or used != list(range(used[0], used[-1] + 1)):
        return None
    first = indices[used[0]]
    if len(used) == 1 and first not in places.known and _is_mask(first):
        return _by_mask(places, x, first, used[0])
    if not all(isinstance(places.known.get(indices[dim]), Selected) for dim in used):
        return None
    selected = places.selected_in(indices)
    if any(one.rank != 1 for one in selected):
        return None
    if (mask := _all_places(places, x, [one.node for one in selected], used[0])) is not None:
        return places.harmless(_merged(places, x, mask, used[0], len(used), selected[0].mask))
    made = places.emit(torch.ops.aten.index.Tensor, x, places.given(indices))
    return places.harmless(part(places, node.meta["val"], made, selected[0].mask))


def _is_mask(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _by_mask(places: AllPlaces, x: fx.Node, mask: fx.Node, first: int) -> Selected:
    """Return a tensor with the dimensions of a mask merged, which begin at ``first``."""
    shape, flat = mask.meta["val"].shape, places.flat_mask(mask)
    return places.harmless(_merged(places, x, shape, first, len(shape), flat))


def _merged(
    places: AllPlaces, x: fx.Node, shape: Sequence[int], first: int, count: int, mask: fx.Node
) -> Selected:
    own = x.meta["val"].shape
    sizes = [*own[:first], prod(shape), *own[first + count :]]
    return Selected(places.emit(torch.ops.aten.reshape.default, x, sizes), first, mask)


def _coordinates(places: AllPlaces, mask: fx.Node) -> list[fx.Node]:
    """Return the position of each place of a mask, one vector for each dimension."""
    shape = tuple(mask.meta["val"].shape)
    if shape not in places.positions:
        device = mask.meta["val"].device
        rows: list[fx.Node] = []
        for dim in range(len(shape)):
            sizes = [1] * len(shape)
            sizes[dim] = shape[dim]
            row = places.emit(torch.ops.aten.arange.default, shape[dim], device=device)
            row = places.emit(torch.ops.aten.reshape.default, row, sizes)
            row = places.emit(torch.ops.aten.expand.default, row, shape)
            rows.append(places.emit(torch.ops.aten.reshape.default, row, [prod(shape)]))
        places.positions[shape] = rows
    return places.positions[shape]


def _all_places(
    places: AllPlaces, x: fx.Node, rows: Sequence[fx.Node], first: int
) -> tuple[int, ...] | None:
    """Return the shape of the mask if these are the positions of all its places, and the tensor has
    this shape from a dimension on. Then each place reads its own element."""
    for shape, known in places.positions.items():
        own = x.meta["val"].shape[first : first + len(shape)]
        if list(rows) == known and tuple(own) == shape:
            return shape
    return None


def putting(places: AllPlaces, node: fx.Node, given: Arguments) -> fx.Node | None:
    """Return a tensor to which selected elements are added, or in which they replace those of a
    mask. None for other functions."""
    name = str(node.target)
    function: Any = node.target
    if name in ADDS:
        key = "source" if "source" in given else "src"
        source = places.known.get(given[key])
        if not isinstance(source, Selected) or given["self"] in places.known:
            return None
        places.selected_in(tuple(given.values()))
        named = {k: places.given(v) for k, v in given.items()}
        return places.emit(function, **{**named, key: places.filled(source, 0.0)})
    if name in PUTS and not given["accumulate"]:
        return _put(places, node, given)
    return None


def _put(places: AllPlaces, node: fx.Node, given: Arguments) -> fx.Node | None:
    """Return ``x`` after ``x[mask] = values``, for values that the same mask has selected."""
    x, values, (first, *others) = given["self"], places.known.get(given["values"]), given["indices"]
    if others or first in places.known or not isinstance(values, Selected) or values.axis:
        return None
    if x in places.known or places.flat_mask(first) is not values.mask:
        return None
    shape, own = x.meta["val"].shape, first.meta["val"].shape
    if values.rank != len(shape) - len(own) + 1:
        return None
    spread = places.emit(torch.ops.aten.reshape.default, values.node, shape)
    wide = places.shaped(values.mask, values.rank, 0)
    sizes = [*own, *(1,) * (len(shape) - len(own))]
    wide = places.emit(torch.ops.aten.reshape.default, wide, sizes)
    made = places.emit(torch.ops.aten.where.self, wide, spread, x)
    if node.target is torch.ops.aten.index_put_.default:
        return places.emit(torch.ops.aten.copy_.default, x, made)
    return made
