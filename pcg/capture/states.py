"""Buffers that every step changes, such as moving averages and the vectors of spectral norm.

The new value of such a buffer is a further output of the graph. It has no gradients. Running
statistics of batch norms are kept in another way (``pcg.capture.statistics``).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pcg.capture.aten.random import read_by
from pcg.capture.regions import ancestors, changed_by, is_view, place_of
from pcg.capture.statistics import COUNT, NORMS
from pcg.errors import InputError
from pcg.plan.naming import StateFile

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram
    from torch.nn import Module

    from pcg.graph.graph import Value

MOST = 1 << 24
"""Integers of such a buffer stay below this number, so that float32 holds them."""
LOST = "changes in forward, and a plan leaves it as it was"


@dataclass(frozen=True)
class ChangedBuffer:
    """A buffer of the module, and the node with its new value."""

    name: str
    node: fx.Node


@dataclass(frozen=True)
class State:
    """The new value of a buffer in the graph. ``names``: all names of the buffer in the module."""

    names: tuple[str, ...]
    value: Value

    def record(self, output: int) -> StateFile:
        """The record of the buffer in the plan file. ``output``: the number of its value."""
        return StateFile(names=self.names, output=output)


def changes_buffers(program: ExportedProgram) -> bool:
    """Whether a call of a program changes a buffer in place, beside what batch norms keep."""
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        for root in changed_by(node):
            while is_view(root):
                root = root.all_input_nodes[0]
            if root.op == "placeholder" and not _counts(buffers.get(root.name, COUNT)):
                return True
    return False


def changed_buffers(program: ExportedProgram) -> list[ChangedBuffer]:
    """Return the buffers that a program without changes in place replaces, except what batch norms
    keep."""
    signature = program.graph_signature
    made = {node.name: node for node in program.graph.nodes}
    changed: list[ChangedBuffer] = []
    for output, name in signature.buffers_to_mutate.items():
        node = made[output]
        is_same = node.op == "placeholder" and signature.inputs_to_buffers.get(node.name) == name
        if not (is_same or _counts(name) or _is_of_norm(node)):
            changed.append(ChangedBuffer(name, node))
    return changed


def _counts(name: str) -> bool:
    """Whether a buffer is a batch norm's counter of batches."""
    return name.rpartition(".")[2] == COUNT


def _is_of_norm(node: fx.Node) -> bool:
    source: Any = node.args[0] if node.target is operator.getitem else node
    return str(source.target) in NORMS


class Conversion(Protocol):
    """The conversion of a program's nodes (``pcg.capture.convert``)."""

    known: dict[fx.Node, Any]

    def visit_aside(self, node: fx.Node) -> None:
        """Convert a node that the loss does not need."""
        ...

    def value(self, node: fx.Node) -> Value:
        """Return the value of a converted node."""
        ...


def new_states(
    module: Module,
    program: ExportedProgram,
    changed: Sequence[ChangedBuffer],
    walk: Conversion,
    live: Collection[fx.Node],
) -> tuple[list[State], list[ChangedBuffer]]:
    """Return the new values of buffers, and the buffers whose new values no graph can hold. All
    nodes that the loss needs have been converted. ``live`` are those that any output needs."""
    states: list[State] = []
    lost: list[ChangedBuffer] = []
    for buffer in changed:
        needed = ancestors([buffer.node], lambda node: node not in walk.known, read_by)
        try:
            for node in program.graph.nodes:
                if node in needed and node in live:
                    walk.visit_aside(node)
            states.append(State(_names_of(module, buffer.name), walk.value(buffer.node)))
        except InputError:
            lost.append(buffer)
    return states, lost


def told_of_lost(
    lost: Sequence[ChangedBuffer], read: Collection[str], where: str
) -> tuple[str, ...]:
    """Return a line for each buffer whose new value no graph can hold. Raises InputError if the
    graph reads one of them."""
    for buffer in lost:
        if buffer.name in read:
            problem = "is changed by every step and read by the loss, which no plan can follow"
            raise InputError(place_of(buffer.node, where), f"buffer {buffer.name} {problem}")
    return tuple(f"buffer {buffer.name} {LOST}" for buffer in lost)


def _names_of(module: Module, name: str) -> tuple[str, ...]:
    """Return all names of a buffer."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return tuple(other for other, tensor in buffers.items() if tensor is buffers[name])
