"""Pipelines: stages, micro-batches, their order, and when weights are updated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from pcg.files import FileModel
from pcg.graph.graph import Graph, Node
from pcg.placement.view import MachineView

_Count = Annotated[int, Field(ge=1, le=1 << 20)]


class PipelineFile(FileModel):
    """Stages on equal groups of devices in a row, and so many micro-batches a step."""

    stages: _Count
    micro_batches: _Count
    schedule: Literal["1f1b", "2bw"]
    """Whether a step waits for its updates, or gradients are of weights one update old."""


def misfit(
    pipeline: PipelineFile, graph: Graph, views: Mapping[Node, MachineView], devices: int
) -> str | None:
    """What a graph on so many devices has that is no such pipeline: stages have to be groups of
    devices, and slices in time micro-batches."""
    size, rest = divmod(devices, pipeline.stages)
    if rest:
        return f"{pipeline.stages} stages, expected a divisor of {devices} devices"
    for node, view in views.items():
        if len({device // size for device in view.devices}) > 1:
            return f"{node.name} runs on devices of several stages"
    slices = {t for node in graph.nodes for x in node.types for t in x.degrees.slices} - {1}
    if slices != {pipeline.micro_batches}:
        text = ", ".join(map(str, sorted(slices))) or "none"
        return f"{pipeline.micro_batches} micro-batches, slices of the graph: {text}"
    return None


def turns(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[bool, int]]:
    """What a stage (from 0) does in order by 1F1B: (whether forward, which micro-batch)."""
    ahead = min(stages - stage - 1, micro_batches)
    for batch in range(ahead):
        yield True, batch
    for batch in range(micro_batches):
        if batch + ahead < micro_batches:
            yield True, batch + ahead
        yield False, batch
