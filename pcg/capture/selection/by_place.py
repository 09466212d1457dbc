"""Functions that treat each selected element, or each row of selected elements, by itself."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from pcg.capture.regions import changed_by
from pcg.capture.selection.places import AllPlaces, Known, Selected, Several, axis_in
from pcg.graph.torch_calls import UNMARKED
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx

Arguments = Mapping[str, Any]

COPIES = frozenset(
    f"aten.{name}"
    for name in (
        *("to.dtype", "to.dtype_layout", "to.device", "to.other", "clone.default", "alias.default"),
        *("contiguous.default", "detach.default", "lift_fresh_copy.default", "type_as.default"),
        *("where.self", "masked_fill.Scalar", "masked_fill.Tensor", "where.ScalarOther"),
        *("where.ScalarSelf", "where.Scalar", "one_hot.default", "embedding.default"),
        *("unsqueeze.default", "transpose.int", "permute.default", "t.default", "numpy_T.default"),
        *("expand.default", "broadcast_tensors.default", "movedim.int", "mT.default"),
        *("zeros_like.default", "ones_like.default", "full_like.default", "square.default"),
    )
)
"""Functions that treat each element by itself or only move elements, whatever their arguments."""
RESHAPES = frozenset(
    {
        *("aten.view.default", "aten.reshape.default", "aten.flatten.using_ints"),
        *("aten.unflatten.int", "aten._unsafe_view.default"),
    }
)
DIMS = {
    **dict.fromkeys(
        (
            *("aten.softmax.int", "aten.log_softmax.int", "aten.logsumexp.default"),
            *("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default"),
            *("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default"),
            *("aten.cumsum.default", "aten.select.int", "aten.slice.Tensor", "aten.squeeze.dim"),
            *("aten.unbind.int", "aten.split.Tensor", "aten.split_with_sizes.default"),
            *("aten.chunk.default", "aten.glu.default", "aten.topk.default", "aten.sort.default"),
            *("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.prod.dim_int"),
            *("aten.cosine_similarity.default", "aten.var.correction", "aten.var.dim"),
            *("aten.std.correction", "aten.std.dim", "aten.any.dim", "aten.all.dim"),
            *("aten.gather.default", "aten.flip.default", "aten.cat.default"),
        )
    ),
}
"""Functions that treat alike all dimensions but those of their argument ``dim`` or ``dims``."""
TOGETHER = frozenset({"aten.gather.default", "aten.cat.default", "aten.stack.default"})
"""Functions all of whose operands have to be selected by the mask."""
ROWS: Mapping[str, int] = {"aten.linear.default": 1, "aten.matmul.default": 1, "aten.mm.default": 1}
"""Functions whose first operand alone may be selected: the number of its last dimensions that they
mix."""
NORMALIZED = frozenset({"aten.layer_norm.default", "aten.rms_norm.default"})


def by_place(places: AllPlaces, node: fx.Node, given: Arguments) -> Known | None:
    """Return the result of a function that treats each place by itself. None for others."""
    name, found = str(node.target), places.selected_in(tuple(given.values()))
    if not found or not _is_by_place(name, node, given, places, found):
        return None
    function: Any = node.target
    if name in RESHAPES:
        shape = _shape_at_places(places, node, found[0])
        made = places.emit(torch.ops.aten.reshape.default, found[0].node, shape)
    elif name == "aten.expand.default":
        made = places.emit(function, found[0].node, _shape_at_places(places, node, found[0]))
    else:
        made = places.emit(function, *places.given(node.args), **places.given(node.kwargs))
    mask = found[0].mask
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return Several(made, mask)
    return part(places, value, made, mask)


def part(places: AllPlaces, value: Any, made: fx.Node, mask: fx.Node) -> Selected:
    """Return a tensor of all places, given the tensor of selected elements in the program. Refuses
    one whose places cannot be told from its shape."""
    told, size = axis_in(value), made.meta["val"].shape
    if told is None:
        raise places.refuse()
    axis, factor = told
    count = mask.meta["val"].shape[0]
    wanted = [int(n) if isinstance(n, int) else 0 for n in value.shape]
    own = mask
    if wanted[axis] == 0 and size[axis] != count:
        own = _repeated_to(places, mask, size[axis])
    wanted[axis] = size[axis]
    if list(size) != wanted or factor < 1:
        raise places.refuse()
    return Selected(made, axis, own)


def _repeated_to(places: AllPlaces, mask: fx.Node, size: int) -> fx.Node:
    times, rest = divmod(size, mask.meta["val"].shape[0])
    if rest:
        raise places.refuse()
    return places.repeated(mask, times)


def _shape_at_places(places: AllPlaces, node: fx.Node, selected: Selected) -> list[int]:
    """Return the shape of a reshape or an expansion, with the number of places for the length of a
    selection. Refuses a reshape that moves selected elements between places."""
    before, after = axis_in(_original(places, node).meta["val"]), axis_in(node.meta["val"])
    if before is None or after is None:
        raise places.refuse()
    sizes = selected.node.meta["val"].shape
    shape = [*node.meta["val"].shape]
    shape[after[0]] = sizes[selected.axis] * after[1] // before[1]
    is_reshape = str(node.target) in RESHAPES
    if is_reshape and prod(sizes[: selected.axis]) != prod(shape[: after[0]]):
        raise places.refuse()
    return shape


def _original(places: AllPlaces, node: fx.Node) -> fx.Node:
    return next(read for read in node.all_input_nodes if read in places.known)


def _is_by_place(
    name: str, node: fx.Node, given: Arguments, places: AllPlaces, found: list[Selected]
) -> bool:
    target: Any = node.target
    is_pointwise = torch.Tag.pointwise in target.tags or name in UNMARKED
    if target._schema.is_mutable:
        # What selects copies, so the tensor of all places is no other's memory either.
        changed = {places.known.get(read) for read in changed_by(node)}
        return is_pointwise and changed <= set(found)
    if name in TOGETHER and not _all_selected(places, given, found):
        return False
    if name in NORMALIZED:
        return found[0].axis < found[0].rank - len(given["normalized_shape"]) and len(found) == 1
    if name in ROWS:
        alone = len(found) == 1 and places.known.get(node.args[0]) is found[0]  # pyright: ignore[reportArgumentType]
        return alone and found[0].axis < found[0].rank - ROWS[name]
    if name in DIMS:
        dims = given.get("dim", given.get("dims"))
        dims = dims if isinstance(dims, (list, tuple)) else [dims]
        rank = max(one.rank for one in found)
        return bool(dims) and all(
            isinstance(dim, int) and dim % rank != one.axis + rank - one.rank
            for dim in dims
            for one in found
        )
    return is_pointwise or name in COPIES or name in RESHAPES or name == "aten.stack.default"


def _all_selected(places: AllPlaces, given: Arguments, found: list[Selected]) -> bool:
    """Whether all tensors among the arguments are selected, along the same dimension."""
    read: list[Any] = []

    def note(node: fx.Node) -> fx.Node:
        read.append(places.known.get(node))
        return node

    torch.fx.map_arg(tuple(given.values()), note)
    axes = {(one.axis, one.rank) for one in found}
    return len(axes) == 1 and all(isinstance(known, Selected) for known in read)
