"""Record what the batch norms of a module keep of the batches that they have seen.

No training step reads them, so no graph has them: they are a record beside it.
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
    """The running statistics of one batch norm. Names are those of buffers of the module, as in its
    ``state_dict``; several for one that is used in several places."""

    value: Name
    """What is normed, [n, c, ...], as the model's graph is printed."""
    at: Name | None = None
    """The same tensor as the plan's graph is printed; none where the plan computes no such."""
    mean: Names
    variance: Names
    count: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """How many batches there have been."""
    momentum: Annotated[float, Field(ge=0, le=1)]
    """The part that a new batch has in the running statistics."""


def named_values(graph: Graph) -> dict[str, Value]:
    """The values of a graph by the names that it is printed with."""
    return {
        name: node.value(port)
        for node, names in node_names(graph).items()
        for port, name in enumerate(names)
    }


def groups_of(graph: Graph) -> set[int]:
    """In how many groups the batch norms of a graph that do so take their samples."""
    return {
        node.operator_call.integer("groups")
        for node in graph.nodes
        if not node.is_leaf and node.operator_call.operator == ghost_batch_norm
    }


def problems(
    records: Sequence[RunningFile], model: Graph, graph: Graph, groups: int = 1
) -> Iterator[tuple[int, str]]:
    """What is wrong with the records of a plan, each with the record's number. ``groups``: of the
    samples of what is normed."""
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
