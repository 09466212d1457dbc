"""Replace uninitialized memory by zeros, if a program sets all of it before reading it.

Problem: a loop fills ``torch.empty_like(x)`` slice by slice, and a graph has no uninitialized
memory. Method: each value that comes from such memory has a mask of the elements that are set.
Views, copies and writes to slices act on masks as on values. Any other operator must read only
elements that are set. If this holds for all uses of a tensor, zeros in its place change no element
that is read. If not, the program stays as it is, and the conversion refuses the function. Exact.
Complexity: linear in the elements of the tensors; those with more than ``MOST`` are not tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pcg.graph.torch_calls import returns_memory
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportedProgram

MOST = 1 << 24
"""The most elements of a tensor that is tried."""
FOLLOWED = frozenset(
    f"aten.{name}"
    for name in (
        *("select.int", "slice.Tensor", "view.default", "reshape.default", "permute.default"),
        *("transpose.int", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "alias.default"),
        *("expand.default", "clone.default", "cat.default", "stack.default", "unbind.int"),
        *("select_scatter.default", "slice_scatter.default", "_unsafe_view.default"),
        *("copy.default", "split.Tensor", "split_with_sizes.default", "t.default"),
    )
)
"""Functions that move elements without reading their values."""
FILLS = frozenset({"aten.fill.Scalar", "aten.zero.default"})
"""Functions that set all elements."""


def set_unset(program: ExportedProgram) -> None:
    """Replace uninitialized memory by zeros if only set elements are read. Changes the program."""
    changed = False
    for node in list(program.graph.nodes):
        if _begins(node) and node.users and _is_set_before_read(node):
            value = node.meta["val"]
            with program.graph.inserting_before(node):
                function = torch.ops.aten.full.default
                made = program.graph.call_function(function, (list(value.shape), 0))
                made.kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            program.graph.erase_node(node)
            changed = True
    if changed:
        program.graph_module.recompile()


def _begins(node: fx.Node) -> bool:
    """Whether a node is uninitialized memory of a known size."""
    value = node.meta.get("val")
    sizes: list[Any] = list(getattr(value, "shape", ()))
    return (
        node.op == "call_function"
        and returns_memory(getattr(node.target, "_opname", ""))
        and isinstance(value, torch.Tensor)
        and all(isinstance(size, int) for size in sizes)
        and 0 < value.numel() <= MOST
    )


def _is_set_before_read(begun: fx.Node) -> bool:
    masks: dict[fx.Node, Any] = {
        begun: torch.zeros(begun.meta["val"].shape, dtype=torch.bool, device="cpu")
    }
    node = begun.next
    while node.op != "root":
        if not masks.keys().isdisjoint(node.all_input_nodes):
            if node.op != "call_function":
                return False
            if (mask := _after(node, masks)) is None:
                return False
            if not _all_set(mask):
                masks[node] = mask
        node = node.next
    return True


def _after(node: fx.Node, masks: dict[fx.Node, Any]) -> Tensor | list[Tensor] | None:
    """Return the mask of set elements of a node's result. None if the node reads others."""
    name, target = str(node.target), node.target
    if name == "<built-in function getitem>":
        source, at = node.args
        return masks[source][at]  # pyright: ignore[reportArgumentType]
    if name in FILLS or (name == "aten.full_like.default"):
        return torch.ones(node.meta["val"].shape, dtype=torch.bool, device="cpu")
    if name not in FOLLOWED or not callable(target):
        return None

    def mask_of(read: fx.Node) -> Any:
        given = masks.get(read)
        if given is not None:
            return given
        return torch.ones(read.meta["val"].shape, dtype=torch.bool, device="cpu")

    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), mask_of)
    return target(*args, **kwargs)


def _all_set(mask: Any) -> bool:
    return all(map(_all_set, mask)) if isinstance(mask, (list, tuple)) else bool(mask.all())
