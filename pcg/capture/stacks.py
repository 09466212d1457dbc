"""Find parameters that a module reads only as one stack, such as the same matrix of all experts.

Problem: experts are usually separate modules. Stacked, their matrices are one tensor that may be
cut between experts. But a graph that stacks single weights first needs all of them on each device.
Method: if all reads of some parameters are one stack along a new first dimension, the stack itself
becomes the graph's weight, and the parameters are its parts. Exact: the gradients of the parts are
the parts of the stack's gradient. Complexity: linear in the calls of a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

STACK = "aten.stack.default"


def stacks(
    live: set[fx.Node], parameters: Mapping[str, str], names: Mapping[str, Sequence[str]]
) -> dict[fx.Node, tuple[str, ...]]:
    """Return the stacks among a program's calls, each with its parameters in order.

    ``parameters`` names those that may be parts, by placeholder. ``names`` holds all names of each
    parameter: one with further names may be used elsewhere, and is no part.
    """
    stack_of: dict[fx.Node, tuple[str, ...]] = {}
    for node in live:
        if str(node.target) != STACK or (node.args[1:] or (node.kwargs.get("dim", 0),))[0] != 0:
            continue
        parts: Any = node.args[0]
        own = [parameters.get(part.name, "") for part in parts if _is_real_part(part, node, live)]
        is_whole = len(own) == len(parts) == len(set(own)) > 1
        if is_whole and all(name and len(names[name]) == 1 for name in own):
            stack_of[node] = tuple(own)
    return stack_of


def _is_real_part(part: fx.Node, stack: fx.Node, live: set[fx.Node]) -> bool:
    """Whether a placeholder holds real numbers and only this stack reads it."""
    if part.op != "placeholder" or not part.meta["val"].is_floating_point():
        return False
    return live.intersection(part.users) == {stack}


def turns_matrices(stack: fx.Node, live: set[fx.Node]) -> bool:
    """Whether all nodes that read a stack of matrices read their transposes."""
    users = live.intersection(stack.users)
    return all(
        str(user.target) == "aten.transpose.int"
        and {dim % 3 for dim in user.args[1:] if isinstance(dim, int)} == {1, 2}
        for user in users
    )


def common_name(names: Sequence[str]) -> str:
    """Return names merged into one, with a star for each differing step: ``experts.*.weight``."""
    steps = [name.split(".") for name in names]
    if len({len(own) for own in steps}) > 1:
        return f"{names[0]}.*"
    columns = zip(*steps, strict=True)
    return ".".join(own[0] if len(set(own)) == 1 else "*" for own in columns)
