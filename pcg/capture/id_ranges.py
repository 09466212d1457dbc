"""Find the bound that integers stay below as indices, whatever an example holds.

The edges of a graph, for example, name nodes, and a batch may name more of them than the example
does. Method: the operators that read the integers give the bound, such as a look-up of rows. The
integers are followed through operators that move elements. If such an operator takes a part of the
tensor, the bound of the whole tensor is the greatest bound of its parts. This is exact for the
parts, and a guess for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pcg.capture.aten.reindexing import MOVES

if TYPE_CHECKING:
    from torch import fx

CHOOSING = frozenset(
    {
        *("aten.index_select.default", "aten.gather.default", "aten.scatter.src"),
        *("aten.index_add.default", "aten.scatter_add.default", "aten.scatter_reduce.two"),
    }
)
"""Operators with the arguments: a tensor, one of its dimensions, and indices into it."""
LISTING = frozenset({"aten.index.Tensor", "aten.index_put.default"})
"""Operators with the arguments: a tensor, and a list of indices into its dimensions."""
PARTS = frozenset(
    {
        *("aten.slice.Tensor", "aten.select.int", "aten.split.Tensor"),
        *("aten.split_with_sizes.default", "aten.unbind.int"),
    }
)
"""Operators that take parts of a tensor. Each of several results is a part."""
WHOLE = (MOVES.keys() | {"aten.clone.default", "aten.copy.default"}) - PARTS
"""Operators whose result holds all elements of an operand."""


def places_below(node: fx.Node, live: set[fx.Node]) -> int | None:
    """Return the bound that the integers of a node stay below as indices, or None if unknown."""
    bounds: list[int] = []
    parts: list[int] = []
    for user in node.users:
        target = str(user.target)
        if user not in live:
            continue
        bounds += _sizes(user, node)
        if target in PARTS or target in WHOLE or "getitem" in target:
            below = places_below(user, live)
            if below is not None:
                (bounds if target in WHOLE else parts).append(below)
    return min([*bounds, *([max(parts)] if parts else [])], default=None)


def _sizes(user: fx.Node, ids: fx.Node) -> Iterator[int]:
    """Yield the sizes of the dimensions that an operator indexes by these ids."""
    arguments: Any = user.args
    if str(user.target) in CHOOSING:
        tensor, dim, index = arguments[:3]
        shape = tensor.meta["val"].shape
        if index is ids and shape:
            yield int(shape[dim])
    elif str(user.target) in LISTING:
        tensor, listed = arguments[:2]
        for index, size in zip(listed, tensor.meta["val"].shape, strict=False):
            if index is ids:
                yield int(size)
