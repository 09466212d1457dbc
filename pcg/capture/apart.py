"""Decompose a program by torch's decompositions, if any of its calls needs it.

Problem: to decompose a program, torch traces it once more, and before that it prepares about a
thousand composite operators. This takes 0.4 s for a program of one call, twenty times the time of
its export. Method: if no call that the outputs depend on would be decomposed, the program stays as
it is. Exact: torch would then write down the same calls. It replaces only the calls in its table of
decompositions, composite operators, and calls that change an operand in place. Constants of equal
elements or of a constant step count as calls that stay, since the graph represents them by their
values (``constants``). Complexity: linear in the size of the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pcg.capture.recurrent import layers_apart
from pcg.capture.regions import STOPS, ancestors, changed_by
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

UNIFORM = frozenset(
    {
        *("aten.zeros.default", "aten.ones.default", "aten.full.default"),
        *("aten.arange.default", "aten.arange.start"),
    }
)
"""Functions of sizes and numbers alone. The graph represents their tensors by their values."""
MOST_ELEMENTS = 1 << 20
"""The most elements of such a tensor. A larger one might be too large for ``constants``."""


def taken_apart(
    program: ExportedProgram, kept: Collection[str], *, changes: bool
) -> ExportedProgram:
    """Return the program with all operators decomposed except those in ``kept``. ``changes``:
    whether it changes buffers in place, whose new values a decomposed program returns.

    Calls that the outputs do not depend on may still change a tensor in place. The running
    statistics of a batch norm are an example. Passes on any exception that torch raises.
    """
    if not changes and needs_nothing(program, lambda node: _is_kept(node, kept)):
        return program
    with _one_walk():
        table = _table(kept)
        stay = needs_nothing(program, lambda node: _is_kept(node, kept) or _stays(node, table))
        if stay and not changes:
            return program
        return program.run_decompositions({**table, **layers_apart()})


def needs_nothing(program: ExportedProgram, stays: Callable[[fx.Node], bool]) -> bool:
    """Whether the outputs depend only on calls that stay, and on no tensor changed in place."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    live = ancestors(returned(program))
    changed = {read for node in calls if changed_by(node) for read in node.all_input_nodes}
    return live.isdisjoint(ancestors(changed)) and all(stays(n) for n in calls if n in live)


def returned(program: ExportedProgram) -> list[fx.Node]:
    """Return the nodes that a program returns, with the new values of the buffers it changes."""
    (last,) = (node for node in program.graph.nodes if node.op == "output")
    return [node for node in last.args[0] if isinstance(node, torch.fx.Node)]


def _is_kept(node: fx.Node, kept: Collection[str]) -> bool:
    name = str(node.target)
    return name in kept or node.target is operator.getitem or name == STOPS or _is_uniform(node)


def _is_uniform(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return (
        str(node.target) in UNIFORM
        and isinstance(value, torch.Tensor)
        and not value.is_complex()
        and 0 < value.numel() <= MOST_ELEMENTS
    )


def _stays(node: fx.Node, table: Mapping[Any, Any]) -> bool:
    """Whether torch's decomposition would leave a call as it is.

    It leaves ATen functions that are neither composite nor in the table, return new memory, and
    draw no random numbers.
    """
    target: Any = node.target
    if getattr(target, "namespace", "") != "aten" or target in table:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or "empty" in target.name():
        return False
    schema = target._schema
    if schema.is_mutable or any(result.alias_info is not None for result in schema.returns):
        return False
    native: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    has_kernel = native._dispatch_has_kernel_for_dispatch_key
    return not has_kernel(target.name(), "CompositeImplicitAutograd")


def _table(kept: Collection[str]) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of all operators except those in ``kept``."""
    return {
        function: apart
        for function, apart in torch.export.default_decompositions().items()
        if str(function) not in kept and str(function) != STOPS
    }


@contextmanager
def _one_walk() -> Generator[None]:
    """Let torch register its composite operators once within this context.

    Torch walks through all of them once for each of its namespaces, twice for each program. They
    stay registered, so one walk is enough.
    """
    module: Any = import_module("torch._export.utils")
    name = "_materialize_cpp_cia_ops"
    walk = getattr(module, name, None)
    if walk is None:  # another version of torch has other names
        yield
        return
    walked: list[bool] = []

    def once() -> None:
        if not walked:
            walk()
            walked.append(True)

    setattr(module, name, once)
    try:
        yield
    finally:
        setattr(module, name, walk)
