"""Records of the running statistics that a module's batch norms keep.

No training step reads them, so they are not in the graph, but in a record beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from pcg.files import FileModel, Name
from pcg.graph.graph import Graph, Value
from pcg.ops.norms import ghost_batch_norm
from pcg.plan.text import node_names

Names = Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]


class RunningFile(FileModel):
    """The running statistics of one batch norm. Names are those of buffers in the module's
    ``state_dict``, several for a buffer used in several places."""

    value: Name
    """The operand of the norm, [n, c, ...], by its name in the text of the model's graph."""
    at: Name | None = None
    """The same tensor in the text of the plan's graph. None if the plan does not compute it."""
    mean: Names
    variance: Names
    count: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """The number of batches so far."""
    momentum: Annotated[float, Field(ge=0, le=1)]
    """The weight of a new batch in the running statistics."""


def named_values(graph: Graph) -> dict[str, Value]:
    """Return the values of a graph by their names in its text."""
    return {
        name: node.value(port)
        for node, names in node_names(graph).items()
        for port, name in enumerate(names)
    }


def groups_of(graph: Graph) -> set[int]:
    """Return the numbers of groups in the ghost batch norms of a graph."""
    return {
        node.operator_call.integer("groups")
        for node in graph.nodes
        if not node.is_leaf and node.operator_call.operator == ghost_batch_norm
    }


def problems(
    records: Sequence[RunningFile], model: Graph, graph: Graph, groups: int = 1
) -> Iterator[tuple[int, str]]:
    """Yield the problems of a plan's records, each with the record's number. ``groups`` is the
    number of groups of samples."""
    normed, planned = named_values(model), named_values(graph)
    for number, record in enumerate(records):
        value = normed.get(record.value)
        if value is None or value.rank < 2:
            yield number, f"value {record.value}: no tensor of the model with channels"
        elif value.type.shape[0] % groups:
            yield number, f"value {record.value}: not {groups} equal groups of samples"
        elif record.at is not None and record.at not in planned:
            yield number, f"at {record.at}: no such tensor in the plan's graph"
        elif record.at is not None and planned[record.at].type.shape != value.type.shape:
            yield number, f"at {record.at}: another shape than {record.value} of the model"
