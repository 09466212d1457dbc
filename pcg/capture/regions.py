"""Find the parts of a program that run with gradients off, and stop gradients there.

Problem: torch.export writes ``with torch.no_grad():`` as a call of a sub-program, and forgets it
when the program is decomposed. Method: sub-programs are inlined, and nodes that ran with gradients
off are marked. If a node that ran with gradients on reads a marked value that depends on a
parameter, it reads the value's ``detach`` instead. This is exact: with gradients off, the result of
an operator has no history, whatever its operands have, and a tensor of an inner region with
gradients on keeps its history outside. An update in place of a value that has a history cannot be
expressed so, and is refused. Complexity: linear in the size of the program.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcg.capture.running.lines import FORWARD, is_of_user
from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

STOPS = "aten.detach.default"
"""Stops gradients. Torch's decomposition would remove it."""
GRAD, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
OFF = "unity_gradients_off"
"""The key of the mark on a node that ran with gradients off."""
VMAP = "torch._functorch.predispatch"
"""Torch's module of the calls that ``vmap`` leaves in a program."""
PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def open_regions(program: ExportedProgram, where: str) -> None:
    """Inline the regions of a program, and detach what they compute. Changes the program.

    Raises InputError, naming the line where torch knows it, for an update in place that gradients
    would have to know of. Regions of autocast are off, since a plan decides the number formats.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if _region(node):
            _open(program, node, where, is_off=False)
    graph.eliminate_dead_code(_counts)
    live = with_history(graph, program.graph_signature.inputs_to_parameters)
    for node in graph.nodes:
        _check_changes(node, live, where)
    for node in list(graph.nodes):
        if node.meta.get(OFF) and node in live:
            _stop(graph, node)
    program.graph_module.recompile()


def _counts(node: fx.Node) -> bool:
    """Whether a node is needed even if nothing reads it.

    It changes a tensor, or begins or ends a ``vmap``, which its batched tensors depend on.
    """
    return node.is_impure() or getattr(node.target, "__module__", "") == VMAP


def place_of(node: fx.Node, where: str) -> str:
    """Return the user's line that a node comes from, or ``where`` if torch does not know it.

    For a line of a function that ``forward`` calls, the line of the call follows.
    """
    places = PLACE.findall(node.meta.get("stack_trace") or "")
    own = [(f"{file}: line {line}", name) for file, line, name in places if is_of_user(file)]
    if not own:
        return where
    caller = next((place for place, name in reversed(own) if name == FORWARD), own[-1][0])
    place = own[-1][0]
    return place if place == caller else f"{place}, called at {caller}"


def _region(node: fx.Node) -> str:
    """Return the name of the region that a node calls, or "" if it calls none."""
    name = getattr(node.target, "__name__", "")
    return name if node.op == "call_function" and name in (GRAD, AUTOCAST) else ""


def _open(program: ExportedProgram, call: fx.Node, where: str, *, is_off: bool) -> None:
    """Replace a call of a region by the region's nodes. Nested regions are inlined too."""
    if _region(call) == GRAD:
        enabled, function, *operands = call.args
        is_off = not enabled
    else:
        _device, _dtype, _enabled, _cache, function, *operands = call.args
    graph = program.graph
    known: dict[fx.Node, Any] = {}
    pending = iter(operands)
    results: Any = ()
    inner = _inner(call, function)
    with graph.inserting_before(call):
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(pending)
            elif node.op == "output":
                results = torch.fx.map_arg(node.args[0], known.__getitem__)
            elif node.op == "get_attr":
                known[node] = _attribute(graph, node, inner)
            else:
                known[node] = graph.node_copy(node, known.__getitem__)
                known[node].meta[OFF] = is_off
    made = [node for node in known.values() if _is_call(node) and _region(node)]
    _replace(program, call, results)
    for node in dict.fromkeys(made):
        _open(program, node, where, is_off=is_off)


def _is_call(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function"


def _inner(call: fx.Node, function: Any) -> Any:
    """Return the sub-program that a call names."""
    owner: Any = call.graph.owning_module
    return owner.get_submodule(function.target)


def _attribute(graph: fx.Graph, node: fx.Node, inner: Any) -> fx.Node:
    """Move a nested sub-program to the outer module, and return the node that names it."""
    owner: Any = graph.owning_module
    name = f"opened_{len(list(owner.children()))}_{node.target}"
    owner.add_module(name, inner.get_submodule(node.target))
    return graph.get_attr(name)


def _replace(program: ExportedProgram, call: fx.Node, results: Any) -> None:
    """Replace all uses of a call's results by the given values, and erase the call."""
    if not isinstance(results, (list, tuple)):
        hand_on(program, call, results)
        return
    for user in list(call.users):
        if user.target is not operator.getitem:
            raise InputError(
                "model",
                f"{user}: reads all results of a gradient region at once, expected one of them",
            )
        at: Any = user.args[1]
        hand_on(program, user, results[at])
    program.graph.erase_node(call)


def hand_on(program: ExportedProgram, old: fx.Node, new: fx.Node) -> None:
    """Replace all uses of a value by another, and rename it in the program's signature."""
    graph = program.graph
    is_returned = any(user.op == "output" for user in old.users)
    if is_returned:
        with graph.inserting_before(old):
            made = graph.call_function(torch.ops.aten.clone.default, (new,))
        made.meta.update(new.meta)
        made.meta[OFF] = False
        new = made
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    if is_returned:
        program.graph_signature.replace_all_uses(old.name, new.name)


def with_history(graph: fx.Graph, parameters: Collection[str]) -> set[fx.Node]:
    """Return the nodes that depend on these parameters through real numbers without a detach.

    Counts as if gradients were on everywhere.
    """
    live: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            is_live = node.name in parameters
        else:
            is_live = str(node.target) != STOPS and any(n in live for n in node.all_input_nodes)
        if is_live and is_real(node.meta.get("val")):
            live.add(node)
    return live


def ancestors(
    of: Iterable[fx.Node],
    passes: Callable[[fx.Node], bool] = lambda node: True,
    reads: Callable[[fx.Node], Iterable[fx.Node]] = lambda node: node.all_input_nodes,
) -> set[fx.Node]:
    """Return these nodes and all that they depend on through nodes for which ``passes`` holds."""
    reached: set[fx.Node] = set()
    pending = list(of)
    while pending:
        node = pending.pop()
        if node not in reached and passes(node):
            reached.add(node)
            pending += reads(node)
    return reached


def is_real(value: Any) -> bool:
    """Whether any of a node's results has real or complex numbers, which may have gradients."""
    if isinstance(value, (list, tuple)):
        return any(is_real(part) for part in value)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _stop(graph: fx.Graph, node: fx.Node) -> None:
    """Let the readers that run with gradients on read the detached value of a node."""
    if isinstance(node.meta.get("val"), (list, tuple)):
        return  # its parts are nodes of their own
    readers = [user for user in node.users if not user.meta.get(OFF)]
    if not readers:
        return
    with graph.inserting_after(node):
        stopped = graph.call_function(torch.ops.aten.detach.default, (node,))
    stopped.meta.update(node.meta)
    stopped.meta[OFF] = False
    for reader in readers:
        reader.replace_input_with(node, stopped)


def _check_changes(node: fx.Node, live: set[fx.Node], where: str) -> None:
    """Raise InputError for an update in place that the value's history would have to include."""
    for changed in changed_by(node):
        root, is_cut = changed, bool(node.meta.get(OFF))
        while is_view(root):
            is_cut = is_cut or str(root.target) == STOPS
            root = root.all_input_nodes[0]
        if is_cut and root in live and not root.meta.get(OFF):
            what = root.name if root.op == "placeholder" else "a tensor with gradients"
            problem = f"{node.target} changes {what} in place where gradients are off"
            raise InputError(place_of(node, where), f"{problem}, expected a new tensor")


def changed_by(node: fx.Node) -> Sequence[fx.Node]:
    """Return the operands that a call changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given: Mapping[str, Any] = dict(
        zip((a.name for a in schema.arguments), node.args, strict=False)
    ) | dict(node.kwargs)
    return list(_nodes(given.get(a.name) for a in schema.arguments if _is_written(a)))


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _nodes(values: Any) -> Iterator[fx.Node]:
    for value in values:
        if isinstance(value, torch.fx.Node):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _nodes(value)


def is_view(node: fx.Node) -> bool:
    """Whether a node's value shares the memory of its first operand."""
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)
