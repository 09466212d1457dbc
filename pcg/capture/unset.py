"""Let memory that a program sets before it reads it begin as zeros.

Problem: a loop fills ``torch.empty_like(x)`` place by place, and a graph has no memory that holds
nothing yet. Method: beside each value that comes from such memory goes a mask of the elements that
are set. Views, copies and writes to slices make of masks what they make of values; anything else
has to read what is all set. Where that holds for all that comes from a tensor, zeros in its place
change nothing that is read. Where it does not, the program stays as it is, and is refused when the
function is met. Exact. Linear in the elements of the tensors; those of more than ``MOST`` are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pcg.graph.torch_calls import returns_memory
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportedProgram

MOST = 1 << 24
"""Elements of a tensor of which it is followed which are set."""
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
"""Functions that bring elements to other places, and know nothing of what they are."""
FILLS = frozenset({"aten.fill.Scalar", "aten.zero.default"})
"""Functions that set all elements."""


def set_unset(program: ExportedProgram) -> None:
    """Put zeros where memory begins, in the program itself, if all that is read of it is set."""
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
    """Whether a node is memory of a known size that holds nothing yet."""
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
    """What is set of a node's result; None where it reads what is not set."""
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
