"""Reductions and losses of selected elements, which leave out the places that a mask leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pcg.capture.selection.by_place import Arguments, part
from pcg.capture.selection.places import AllPlaces, Length, Selected, axis_in
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx

MEAN, SUM = 1, 2
"""Torch's numbers for the reduction of a loss."""
BY_LABEL = frozenset(
    {"aten.cross_entropy_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss.default"}
)
NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys(("aten.amax", "aten.max", "aten.logsumexp"), float("-inf")),
    **dict.fromkeys(("aten.amin", "aten.min"), float("inf")),
    **dict.fromkeys(("aten.sum", "aten.any", "aten.linalg_vector_norm", "aten.count_nonzero"), 0.0),
    **dict.fromkeys(("aten.prod", "aten.all"), 1.0),
}
"""The number that changes no result of a reduction."""
OF_VALUES = frozenset({"default", "dim_IntList", "dim", "correction"})
SPREADS = frozenset({"aten.var", "aten.std"})


def reduced(places: AllPlaces, node: fx.Node, given: Arguments) -> fx.Node | None:
    """Return a reduction over the places of a mask. None for other functions."""
    name, _, overload = str(node.target).rpartition(".")
    known = places.known.get(given.get("self", given.get("input")))
    if not isinstance(known, Selected) or not _reduces(known, given):
        return None
    if overload not in OF_VALUES:
        return None
    if name == "aten.mean":
        return _mean(places, node, known)
    if name in SPREADS:
        return _spread(places, node, known, given)
    if name not in NEUTRAL or overload == "dim":
        return None
    if name == "aten.linalg_vector_norm" and not 0 < float(given["ord"]) < float("inf"):
        return None
    filled = places.filled(known, NEUTRAL[name])
    function: Any = node.target
    return places.emit(function, filled, *node.args[1:], **node.kwargs)


def _reduces(selected: Selected, given: Arguments) -> bool:
    """Whether a call with these arguments reduces the dimension of the places."""
    dims = given.get("dim")
    if dims is None or dims == []:
        return True
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    return any(dim % selected.rank == selected.axis for dim in dims)


def _mean(places: AllPlaces, node: fx.Node, selected: Selected) -> fx.Node:
    """Return a mean over places and possibly other dimensions."""
    filled = places.filled(selected, 0.0)
    sums = {"default": torch.ops.aten.sum.default, "dim": torch.ops.aten.sum.dim_IntList}
    overload = str(node.target).rpartition(".")[2]
    total = places.emit(sums[overload], filled, *node.args[1:], **node.kwargs)
    shape = filled.meta["val"].shape
    elements = filled.meta["val"].numel() // max(1, total.meta["val"].numel())
    length = Length(selected.mask, elements // shape[selected.axis])
    return places.emit(torch.ops.aten.div.Tensor, total, places.count(length))


def _spread(places: AllPlaces, node: fx.Node, selected: Selected, given: Arguments) -> fx.Node:
    """Return a variance of all elements, or its square root."""
    if given.get("dim"):
        raise places.refuse()
    aten, value = torch.ops.aten, selected.node.meta["val"]
    count = places.count(Length(selected.mask, value.numel() // value.shape[selected.axis]))
    total = places.emit(aten.sum.default, places.filled(selected, 0.0))
    middle = places.emit(aten.div.Tensor, total, count)
    away = places.emit(aten.sub.Tensor, selected.node, middle)
    square = places.emit(aten.mul.Tensor, away, away)
    within = Selected(square, selected.axis, selected.mask)
    total = places.emit(aten.sum.default, places.filled(within, 0.0))
    correction = given.get("correction")
    if correction is None:
        correction = int(given.get("unbiased", True))
    made = places.emit(aten.div.Tensor, total, places.emit(aten.sub.Tensor, count, correction))
    if "std" in str(node.target):
        made = places.emit(aten.sqrt.default, made)
    if given.get("keepdim"):
        made = places.emit(aten.reshape.default, made, [1] * selected.rank)
    return made


def lost(places: AllPlaces, node: fx.Node, given: Arguments) -> fx.Node | None:
    """Return the mean or sum of a loss of selected elements. None for other functions."""
    if given.get("reduction") not in (MEAN, SUM) or not places.selected_in(tuple(given.values())):
        return None
    if _is_by_label(node, given):
        return _by_label(places, node, given)
    function: Any = node.target
    named = {**given, "reduction": 0}
    every = places.emit(function, **places.given(named))
    selected = _elements(places, function, named, every)
    filled = places.filled(selected, 0.0)
    total = places.emit(torch.ops.aten.sum.default, filled)
    if given["reduction"] == SUM:
        return total
    value = filled.meta["val"]
    length = Length(selected.mask, value.numel() // value.shape[selected.axis])
    return places.emit(torch.ops.aten.div.Tensor, total, places.count(length))


def lost_by_row(places: AllPlaces, node: fx.Node, given: Arguments) -> Selected | None:
    """Return the losses of selected rows by labels. None for other functions."""
    if given.get("reduction") != 0 or not _is_by_label(node, given):
        return None
    if not places.selected_in(tuple(given.values())):
        return None
    return part(places, node.meta["val"], *_by_label_and_mask(places, node, given))


def _is_by_label(node: fx.Node, given: Arguments) -> bool:
    is_loss = str(node.target) in BY_LABEL
    return is_loss and not given["target"].meta["val"].is_floating_point()


def _by_label(places: AllPlaces, node: fx.Node, given: Arguments) -> fx.Node:
    return _by_label_and_mask(places, node, given)[0]


def _by_label_and_mask(
    places: AllPlaces, node: fx.Node, given: Arguments
) -> tuple[fx.Node, fx.Node]:
    """Return a loss by labels that ignores the labels at the places that a mask leaves out, and
    this mask."""
    target = places.known.get(given["target"])
    if not isinstance(target, Selected) or given["ignore_index"] is None:
        raise places.refuse()
    labels = places.filled(target, given["ignore_index"])
    named = {key: places.given(value) for key, value in given.items()}
    function: Any = node.target
    return places.emit(function, **{**named, "target": labels}), target.mask


def _elements(places: AllPlaces, function: Any, named: Arguments, every: fx.Node) -> Selected:
    """Return the elements of a loss as selected elements. Their dimension of places is that of
    unknown size in the program."""
    read = next(one for one in _reads(named) if one in places.known)
    with read.meta["val"].fake_mode:
        value = function(**torch.fx.map_arg(dict(named), lambda one: one.meta["val"]))
    told = axis_in(value)
    mask = places.selected_in(tuple(named.values()))[0].mask
    if told is None or every.meta["val"].shape[told[0]] != mask.meta["val"].shape[0]:
        raise places.refuse()
    return Selected(every, told[0], mask)


def _reads(named: Arguments) -> list[fx.Node]:
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    torch.fx.map_arg(dict(named), note)
    return found
