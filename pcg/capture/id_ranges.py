"""Of how many places integers name one each: what they are below, whatever an example holds.

The edges of a graph, for one, name nodes. A batch may name more of them than the example does.
Method: what reads the integers says it, such as a look-up of rows, through operators that move
elements. Where these take parts of a tensor, the greatest bound of a part is that of them all; it
is one for what the parts hold, and no more than a guess for the rest.
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
"""Operators of a tensor, one of its dimensions, and integers that are indices of it."""
LISTING = frozenset({"aten.index.Tensor", "aten.index_put.default"})
"""Operators of a tensor and a list with indices of its dimensions."""
PARTS = frozenset(
    {
        *("aten.slice.Tensor", "aten.select.int", "aten.split.Tensor"),
        *("aten.split_with_sizes.default", "aten.unbind.int"),
    }
)
"""Operators that take parts of a tensor; each result of several is one."""
WHOLE = (MOVES.keys() | {"aten.clone.default", "aten.copy.default"}) - PARTS
"""Operators all of whose elements come into a result."""


def places_below(node: fx.Node, live: set[fx.Node]) -> int | None:
    """What the integers of a node are below as indices; None where nothing says it."""
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
    """The sizes of the dimensions of which some ids are indices to an operator."""
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
