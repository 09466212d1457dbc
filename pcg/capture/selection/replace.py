"""Walk through a program, and replace what depends on the size of a selection."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from pcg.capture.selection.by_place import Arguments, by_place, part
from pcg.capture.selection.places import AllPlaces, Length, Selected, Several, depends
from pcg.capture.selection.reductions import lost, lost_by_row, reduced
from pcg.capture.selection.selections import located, putting, selecting
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

CHECKS = frozenset(
    {
        *("aten._assert_scalar.default", "aten._assert_tensor_metadata.default"),
        *("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"),
    }
)
"""Calls that check sizes. Sizes are known after the replacement."""


def without_selections(program: ExportedProgram, where: str) -> None:
    """Replace the selections of a program, and all that depends on their sizes. Changes the
    program. Raises InputError, with the user's line, for what has no form at full size."""
    nodes = list(program.graph.nodes)
    if not any(map(depends, nodes)):
        return
    places = AllPlaces(program, where)
    located_parts: dict[fx.Node, tuple[Any, ...]] = {}
    for node in nodes:
        places.at = node
        if node.op == "call_function":
            _visit(places, node, located_parts)
    for node in reversed(nodes):
        is_replaced = node in places.known or node in located_parts or _is_check(node)
        if is_replaced and not node.users:
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _is_check(node: fx.Node) -> bool:
    return str(node.target) in CHECKS or (not node.users and _is_size(node))


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _visit(places: AllPlaces, node: fx.Node, located_parts: dict[fx.Node, tuple[Any, ...]]) -> None:
    """Note what a node becomes, or replace it if it has no selected elements."""
    reads = any(read in places.known or read in located_parts for read in node.all_input_nodes)
    if str(node.target) in CHECKS or not (reads or depends(node)):
        if _changes(node):
            places.forget()
        return
    if node.target is operator.getitem:
        source: Any = node.args[0]
        at: Any = node.args[1]
        if source in located_parts:
            places.known[node] = located_parts[source][at]
        else:
            _pick(places, node, source, at)
        return
    if _is_of_sizes(places, node):
        return
    given = _named(node)
    if (rows := located(places, node, given)) is not None:
        located_parts[node] = rows
        return
    known = selecting(places, node, given)
    if known is None:
        made = reduced(places, node, given) or lost(places, node, given)
        made = made or putting(places, node, given) or _counted(places, node)
        if made is not None:
            if _changes(node):
                places.forget()
            places.replace(made)
            return
        known = lost_by_row(places, node, given) or by_place(places, node, given)
    if known is None:
        raise places.refuse()
    places.known[node] = known


def _changes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _pick(places: AllPlaces, node: fx.Node, source: fx.Node, at: int) -> None:
    """Note one of several results."""
    several, unbound = places.known.get(source), places.known.get(source.all_input_nodes[0])
    rows = places.stacks.get(unbound.node, []) if isinstance(unbound, Selected) else []
    is_unbound = str(source.target) == "aten.unbind.int" and source.args[1:] in ((1,), (-1,))
    if rows and is_unbound:
        assert isinstance(unbound, Selected)
        places.known[node] = Selected(rows[at], 0, unbound.mask)
        return
    if not isinstance(several, Several):
        raise places.refuse()
    made = places.emit(operator.getitem, several.node, at)
    places.known[node] = part(places, node.meta["val"], made, several.mask)


def _is_of_sizes(places: AllPlaces, node: fx.Node) -> bool:
    """Note the length of a selection, or a number that is made of it for a check."""
    if not _is_size(node):
        return False
    source = places.known.get(node.args[0]) if node.args else None  # pyright: ignore[reportArgumentType]
    if str(node.target) in ("aten.sym_size.int", "aten.sym_numel.default"):
        if not isinstance(source, Selected):
            raise places.refuse()
        places.known[node] = _length(node, source)
    elif node.target in (operator.mul, operator.add) and isinstance(source, Length):
        other = node.args[1]
        if node.target is operator.mul and isinstance(other, int):
            places.known[node] = Length(source.mask, source.factor * other)
    return True


def _length(node: fx.Node, source: Selected) -> Length:
    """Return the length of a selection, or the number of all its elements."""
    if str(node.target) == "aten.sym_size.int":
        return Length(source.mask, 1)
    value = source.node.meta["val"]
    return Length(source.mask, value.numel() // value.shape[source.axis])


def _counted(places: AllPlaces, node: fx.Node) -> fx.Node | None:
    """Return a call whose only operands of unknown size are lengths, with these counted."""
    if depends(node) or places.selected_in((node.args, node.kwargs)):
        return None
    lengths = [read for read in node.all_input_nodes if _is_size(read)]
    if not lengths or any(read not in places.known for read in lengths):
        return None
    target: Any = node.target
    if torch.Tag.pointwise not in target.tags or target._schema.is_mutable:
        return None
    return places.emit(target, *places.given(node.args), **places.given(node.kwargs))


def _named(node: fx.Node) -> Arguments:
    """Return the arguments of a call by their names in the operator's schema, with defaults."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return dict(node.kwargs)
    named = {argument.name: argument.default_value for argument in schema.arguments}
    pairs = zip(schema.arguments, node.args, strict=False)
    return named | {argument.name: value for argument, value in pairs} | dict(node.kwargs)
