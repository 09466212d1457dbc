"""Take a program apart by torch's decompositions, as far as it has to be.

Problem: torch traces the whole program once more, and before that prepares each composite operator
it has, some thousand: 0.4 s for a program of one call, twenty times what its export takes. Method:
a program stays as it is where nothing that its outputs depend on would be taken apart. Exact, as
torch then writes down the same calls: it replaces those that are in its table of decompositions,
those that it composes of others, and those that change something in place. Constants of one number
or one step are what they are, by whatever call the program makes them. Linear in the program.
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
"""Functions of sizes and numbers alone whose tensor is told by what it holds."""
MOST_ELEMENTS = 1 << 20
"""Of such a tensor; larger ones may be no constants to a graph."""


def taken_apart(program: ExportedProgram, kept: Collection[str]) -> ExportedProgram:
    """A program in which operators in ``kept`` are not taken apart, and all others are.

    What the outputs do not depend on, such as the statistics that a batch norm keeps for later, may
    stay what changes in place. Whatever torch raises, this does.
    """
    if needs_nothing(program, lambda node: _is_kept(node, kept)):
        return program
    with _one_walk():
        table = _table(kept)
        if needs_nothing(program, lambda node: _is_kept(node, kept) or _stays(node, table)):
            return program
        return program.run_decompositions({**table, **layers_apart()})


def needs_nothing(program: ExportedProgram, stays: Callable[[fx.Node], bool]) -> bool:
    """Whether the outputs depend on calls that stay alone, and on nothing changed in place."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    live = ancestors(returned(program))
    changed = {read for node in calls if changed_by(node) for read in node.all_input_nodes}
    return live.isdisjoint(ancestors(changed)) and all(stays(n) for n in calls if n in live)


def returned(program: ExportedProgram) -> list[fx.Node]:
    """What a program returns, and the buffers that it changes."""
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
    """Whether torch would leave a call as it is: of one of its own functions, neither composed of
    others nor in the table, that returns new memory and draws nothing."""
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
    """Torch's decompositions of all operators but these."""
    return {
        function: apart
        for function, apart in torch.export.default_decompositions().items()
        if str(function) not in kept and str(function) != STOPS
    }


@contextmanager
def _one_walk() -> Generator[None]:
    """Within, torch walks once through its composite operators to make them known to Python, and
    not once for each of its namespaces, twice a program: they stay known."""
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
