"""Find the parts of a program in which gradients are off, and stop gradients there.

Problem: torch.export gives ``with torch.no_grad():`` as a call of a sub-program, and forgets it as
soon as the program is taken apart. Method: sub-programs are put in their callers' place, what ran
with gradients off is marked, and where something that ran with gradients on reads a marked value
that depends on a parameter, it reads its ``detach``. This is exact, as an operator's result has no
history where gradients are off, whatever its operands have, and as a tensor of a region that turns
gradients on again keeps its history on the way out. Linear in the size of the program. What cannot
be written so, an update in place of a value that has a history, is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

STOPS = "aten.detach.default"
"""It stops gradients; torch's decomposition would forget that."""
GRAD, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
OFF = "unity_gradients_off"
"""What marks a node that ran with gradients off."""
VMAP = "torch._functorch.predispatch"
"""Torch's module of the calls that a ``vmap`` leaves in a program."""
PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def open_regions(program: ExportedProgram, where: str) -> None:
    """Put the regions of a program in their place, in the program itself.

    Raises InputError, naming the line where torch knows it, for a region of autocast and for an
    update in place that gradients would have to know of.
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
    """Whether a node counts although nothing reads it: it changes something, or begins or ends a
    ``vmap``, which its batched tensors would be without."""
    return node.is_impure() or getattr(node.target, "__module__", "") == VMAP


def place_of(node: fx.Node, where: str) -> str:
    """The user's line that a node comes from, where torch knows it; else ``where``."""
    places = PLACE.findall(node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in places if "/torch/" not in file and file[0] != "<"]
    return f"{own[-1][0]}: line {own[-1][1]}" if own else where


def _region(node: fx.Node) -> str:
    """The name of the region that a node calls, if it does."""
    name = getattr(node.target, "__name__", "")
    return name if node.op == "call_function" and name in (GRAD, AUTOCAST) else ""


def _open(program: ExportedProgram, call: fx.Node, where: str, *, is_off: bool) -> None:
    """Replace a call of a region by what is in it, regions in it included."""
    if _region(call) == GRAD:
        enabled, function, *operands = call.args
        is_off = not enabled
    else:
        _device, _dtype, enabled, _cache, function, *operands = call.args
        if enabled:
            inner: Any = _inner(call, function)
            first = next(n for n in inner.graph.nodes if n.op == "call_function")
            problem = "computes under autocast, expected a module in one number format; unity.run"
            raise InputError(place_of(first, where), f"{problem} has --precision")
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
    """The sub-program that a call names."""
    owner: Any = call.graph.owning_module
    return owner.get_submodule(function.target)


def _attribute(graph: fx.Graph, node: fx.Node, inner: Any) -> fx.Node:
    """A further sub-program that one names, brought to where it can be named from."""
    owner: Any = graph.owning_module
    name = f"opened_{len(list(owner.children()))}_{node.target}"
    owner.add_module(name, inner.get_submodule(node.target))
    return graph.get_attr(name)


def _replace(program: ExportedProgram, call: fx.Node, results: Any) -> None:
    """Let all read the results themselves, in the place of a call's."""
    if not isinstance(results, (list, tuple)):
        _hand_on(program, call, results)
        return
    for user in list(call.users):
        if user.target is not operator.getitem:
            raise InputError("model", f"{user}: reads a region of gradients as a whole")
        at: Any = user.args[1]
        _hand_on(program, user, results[at])
    program.graph.erase_node(call)


def _hand_on(program: ExportedProgram, old: fx.Node, new: fx.Node) -> None:
    """Let all that reads a value read another. A program's signature knows its results by name."""
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
    """The nodes whose values depend on these placeholders, through real numbers that are not
    detached; as if gradients were on throughout."""
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
    """These nodes and all that they depend on, through nodes that pass."""
    reached: set[fx.Node] = set()
    pending = list(of)
    while pending:
        node = pending.pop()
        if node not in reached and passes(node):
            reached.add(node)
            pending += reads(node)
    return reached


def is_real(value: Any) -> bool:
    """Whether any of a node's results is of numbers that have gradients."""
    if isinstance(value, (list, tuple)):
        return any(is_real(part) for part in value)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _stop(graph: fx.Graph, node: fx.Node) -> None:
    """Let what runs with gradients on read the detached value of a node that did not."""
    if isinstance(node.meta.get("val"), (list, tuple)):
        return  # whose parts are nodes, too
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
    """Refuse an update in place that does not go into a value's history, though it has one."""
    for changed in changed_by(node):
        root, is_cut = changed, bool(node.meta.get(OFF))
        while _is_view(root):
            is_cut = is_cut or str(root.target) == STOPS
            root = root.all_input_nodes[0]
        if is_cut and root in live and not root.meta.get(OFF):
            what = root.name if root.op == "placeholder" else "a tensor with gradients"
            problem = f"{node.target} changes {what} in place where gradients are off"
            raise InputError(place_of(node, where), f"{problem}, expected a new tensor")


def changed_by(node: fx.Node) -> Sequence[fx.Node]:
    """The operands that a call changes in place."""
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


def _is_view(node: fx.Node) -> bool:
    """Whether a node's value lies in the memory of its first operand, or is changed by it."""
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)
