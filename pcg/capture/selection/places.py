"""Replace tensors whose size depends on a mask by tensors of all places, beside the mask.

Problem: ``loss[mask].mean()`` has as many elements as the mask is true, and a graph has sizes that
are known. Method: a tensor of *selected* elements is represented by one with a place for each
element of the mask. At places that the mask leaves out it has a harmless number, another one for
each selection. Functions that treat each place by itself apply to all places
(``by_place``). Sums, means, extremes and losses leave out the places where the mask is false
(``reductions``). The length of a selection is the number of true elements. Any other function of
selected elements is refused by the user's line.

Exact: the elements at the mask's places are those of the selection, in order, and no result or
gradient depends on the others. A harmless number is finite, between 0 and 1 for real numbers, and
0 for integers. A function that has no derivative there, such as the square root of a difference of
two selections that the same number would fill, is the reason that the numbers differ. Complexity:
linear in the size of the program; the functions compute all places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pcg.capture.regions import OFF, hand_on, place_of
from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

FILLS = (0.5, 0.375, 0.625, 0.4375, 0.5625, 0.3125, 0.6875)
"""The numbers at places that a mask leaves out, one for each selection, in turn."""
REFUSED = (
    "has a size that depends on values, those of a mask, which no graph can follow, "
    "expected where() or padding"
)


@dataclass(frozen=True)
class Selected:
    """A tensor of selected elements, at all places.

    ``axis``: the dimension of the places. ``mask``: a vector of truth values, one for each place.
    """

    node: fx.Node
    axis: int
    mask: fx.Node

    @property
    def rank(self) -> int:
        return self.node.meta["val"].dim()


@dataclass(frozen=True)
class Several:
    """The results of a function that returns several tensors of selected elements."""

    node: fx.Node
    mask: fx.Node


@dataclass(frozen=True)
class Length:
    """The number of selected elements, times ``factor``."""

    mask: fx.Node
    factor: int


Known = Selected | Several | Length


@dataclass
class AllPlaces:
    """The values of a program that depend on the size of a selection, by their nodes.

    ``at`` is the node that is being replaced. New nodes are inserted before it.
    """

    program: ExportedProgram
    where: str
    known: dict[fx.Node, Known] = field(default_factory=dict["fx.Node", Known])
    at: Any = None
    masks: dict[Any, fx.Node] = field(default_factory=dict[Any, "fx.Node"])
    """Masks as vectors, by the calls that make them."""
    wide: dict[Any, fx.Node] = field(default_factory=dict[Any, "fx.Node"])
    """Masks whose places are repeated, by the mask and the number of times."""
    counts: dict[Any, fx.Node] = field(default_factory=dict[Any, "fx.Node"])
    positions: dict[tuple[int, ...], list[fx.Node]] = field(
        default_factory=dict[tuple[int, ...], list["fx.Node"]]
    )
    """The positions of all places of masks of a shape, by dimension."""
    stacks: dict[fx.Node, list[fx.Node]] = field(default_factory=dict["fx.Node", list["fx.Node"]])
    """Tensors of such positions, [places, dimensions], with their columns."""
    fills: int = 0

    def refuse(self) -> InputError:
        """Return the error that refuses the current node."""
        return InputError(place_of(self.at, self.where), f"{self.at.target} {REFUSED}")

    def emit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> fx.Node:
        """Insert a call before the current node. Its value follows from those of its operands."""
        graph = self.program.graph
        with graph.inserting_before(self.at):
            node = graph.call_function(function, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), lambda read: read.meta["val"])
        mode = next(iter(_fake_modes(self.program)))
        with mode:
            node.meta["val"] = function(*values[0], **values[1])
        node.meta.update({k: self.at.meta[k] for k in ("stack_trace", OFF) if k in self.at.meta})
        return node

    def flat_mask(self, mask: fx.Node) -> fx.Node:
        """Return a mask as a vector of truth values: the same node for masks of equal calls."""
        key = _meaning(mask)
        if key not in self.masks:
            value = mask.meta["val"]
            made = mask
            if value.dtype != torch.bool:
                made = self.emit(torch.ops.aten.ne.Scalar, made, 0)
            # A copy: the program may change the mask later.
            made = self.emit(torch.ops.aten.clone.default, made)
            self.masks[key] = self.emit(torch.ops.aten.reshape.default, made, [value.numel()])
        return self.masks[key]

    def forget(self) -> None:
        """Forget which masks are equal, since a tensor changes in place."""
        self.masks.clear()

    def repeated(self, mask: fx.Node, times: int) -> fx.Node:
        """Return a mask with each place ``times`` times in a row."""
        if times == 1:
            return mask
        key = mask, times
        if key not in self.wide:
            size = mask.meta["val"].shape[0]
            wide = self.emit(torch.ops.aten.unsqueeze.default, mask, 1)
            wide = self.emit(torch.ops.aten.expand.default, wide, [size, times])
            self.wide[key] = self.emit(torch.ops.aten.reshape.default, wide, [size * times])
        return self.wide[key]

    def shaped(self, mask: fx.Node, rank: int, axis: int) -> fx.Node:
        """Return a mask with dimensions of one element around the dimension of the places."""
        shape = [1] * rank
        shape[axis] = mask.meta["val"].shape[0]
        return self.emit(torch.ops.aten.reshape.default, mask, shape)

    def filled(self, selected: Selected, number: float) -> fx.Node:
        """Return a tensor with a number at the places that its mask leaves out."""
        out = self.emit(torch.ops.aten.logical_not.default, selected.mask)
        out = self.shaped(out, selected.rank, selected.axis)
        return self.emit(torch.ops.aten.masked_fill.Scalar, selected.node, out, number)

    def harmless(self, selected: Selected) -> Selected:
        """Return a selection with a harmless number at the places that its mask leaves out."""
        dtype = selected.node.meta["val"].dtype
        if dtype == torch.bool:
            copied = self.emit(torch.ops.aten.clone.default, selected.node)
            return Selected(copied, selected.axis, selected.mask)
        number: float = 0
        if dtype.is_floating_point:
            number = FILLS[self.fills % len(FILLS)]
            self.fills += 1
        return Selected(self.filled(selected, number), selected.axis, selected.mask)

    def count(self, length: Length) -> fx.Node:
        """Return the length of a selection, as an integer tensor."""
        key = length.mask, length.factor
        if key not in self.counts:
            total = self.emit(torch.ops.aten.sum.default, length.mask)
            if length.factor != 1:
                total = self.emit(torch.ops.aten.mul.Tensor, total, length.factor)
            self.counts[key] = total
        return self.counts[key]

    def replace(self, made: fx.Node) -> None:
        """Let all readers of the current node read another, which has no selected elements."""
        hand_on(self.program, self.at, made)

    def selected_in(self, value: Any) -> list[Selected]:
        """Return the tensors of selected elements among arguments. Refuses those of two masks."""
        found: list[Selected] = []

        def note(read: fx.Node) -> fx.Node:
            if isinstance(known := self.known.get(read), Selected):
                found.append(known)
            return read

        torch.fx.map_arg(value, note)
        if len({selected.mask for selected in found}) > 1:
            raise self.refuse()
        return found

    def given(self, value: Any) -> Any:
        """Return arguments with tensors of all places for selected elements, and with counts."""
        return torch.fx.map_arg(value, self._given)

    def _given(self, read: fx.Node) -> fx.Node:
        match self.known.get(read):
            case None:
                return read
            case Length() as length:
                return self.count(length)
            case Selected(node) | Several(node):
                return node


def axis_in(value: Any) -> tuple[int, int] | None:
    """Return the dimension of a tensor whose size depends on values, and the factor of its size: 2
    for twice as many as are selected. None if there is not one such dimension."""
    if not isinstance(value, torch.Tensor):
        return None
    sizes: list[object] = list(value.shape)
    found = [dim for dim, size in enumerate(sizes) if not isinstance(size, int)]
    if len(found) != 1:
        return None
    factor = length_of(sizes[found[0]])
    return None if factor is None else (found[0], factor)


def length_of(size: Any) -> int | None:
    """Return the factor of a size that is a multiple of an unknown one. None for another size."""
    factor, symbol = size.node.expr.as_coeff_Mul()
    return int(factor) if symbol.is_Symbol and factor.is_Integer else None


def depends(node: fx.Node) -> bool:
    """Whether a result of a node has, or is, a size that depends on values."""
    return any(map(_is_unknown, _parts(node.meta.get("val"))))


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _is_unknown(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(size, int) for size in list[object](value.shape))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _fake_modes(program: ExportedProgram) -> Iterable[Any]:
    """Yield the modes of the tensors without elements of a program."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and hasattr(value, "fake_mode"):
            yield value.fake_mode  # pyright: ignore[reportAttributeAccessIssue]


def _meaning(node: Any) -> Any:
    """Return a key that is equal for equal calls of the same tensors."""
    if isinstance(node, (list, tuple)):
        return tuple(map(_meaning, node))
    if not isinstance(node, torch.fx.Node):
        return repr(node)
    schema = getattr(node.target, "_schema", None)
    is_pure = schema is not None and not schema.is_mutable
    if node.op != "call_function" or not (is_pure or node.target is operator.getitem):
        return node
    named = tuple((key, _meaning(value)) for key, value in node.kwargs.items())
    return str(node.target), _meaning(node.args), named
