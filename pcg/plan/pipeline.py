"""Pipelines: stages, micro-batches, their order, and when weights are updated.

1F1B (PipeDream-Flush: Narayanan et al., ICML 2021): a stage sends some micro-batches forward, then
turns between one forward and one backward, and ends with the backward passes that are left.

Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2): each stage holds several *chunks* of the
model. Chunk c of stage s is number ``c * stages + s`` in the order in which data flows, so that a
micro-batch comes to each stage so many times, and devices wait for less at the begin and the end.
Micro-batches go in rounds: those of a round pass one chunk after the other, forward and then back.
A round has as many as there are stages. Where these do not divide the micro-batches, some rounds
have more, never fewer, and the first have most: then no stage waits for ever.

ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2): the backward pass of
a micro-batch is two passes. The *backward* one is what other stages wait for. The *weights* one has
the gradients of weights that nothing waits for but the update: those of products
(``pcg.placement.late``). Forward and backward passes are in the order of 1F1B. Stage s, counted
from 0, is s micro-batches late with the weights, so that devices have something to do while they
would wait for the last micro-batches. Of p stages each holds p micro-batches at most, as the first
one does by 1F1B; of those that wait for the weights alone, only what products read and the
gradients of their results. Where the weights
take no longer than forward or backward, devices wait for (p - 1) (F + B - W), in place of
(p - 1) (F + B + W). Gradients of weights are added up in the order of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from pcg.files import GrownFileModel
from pcg.graph.graph import Graph, Node
from pcg.placement.schedule import schedule
from pcg.placement.view import MachineView
from pcg.plan.chunks import ChunksError, chunks_of

ScheduleKind = Literal["1f1b", "2bw", "zb-h1"]
"""The order of micro-batches, and of which weights their gradients are."""
TurnKind = Literal["forward", "backward", "weights"]

_Count = Annotated[int, Field(ge=1, le=1 << 20)]


class PipelineFile(GrownFileModel):
    """Stages on equal groups of devices in a row, and so many micro-batches a step."""

    ADDED: ClassVar[frozenset[str]] = frozenset({"interleave"})

    stages: _Count
    micro_batches: _Count
    schedule: ScheduleKind
    """*1f1b* and *zb-h1* wait for their updates; by *2bw*, in the order of 1F1B, gradients are of
    weights one update old."""
    interleave: _Count = 1
    """How many chunks of the model each stage holds."""

    @property
    def has_weights_pass(self) -> bool:
        """Whether micro-batches have a pass for weights alone."""
        return has_weights_pass(self.schedule)


def has_weights_pass(kind: ScheduleKind) -> bool:
    """Whether micro-batches have a pass for weights alone."""
    return kind == "zb-h1"


class Turn(NamedTuple):
    """A pass of a micro-batch through a chunk of a stage."""

    kind: TurnKind
    batch: int
    chunk: int = 0

    @property
    def is_forward(self) -> bool:
        """Whether it is one towards the loss."""
        return self.kind == "forward"


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
    if pipeline.interleave > 1:
        return _wrong_chunks(pipeline, size, graph, views)
    return None


def _wrong_chunks(
    pipeline: PipelineFile, size: int, graph: Graph, views: Mapping[Node, MachineView]
) -> str | None:
    chunks = f"{pipeline.interleave} chunks of each stage"
    if pipeline.stages == 1:
        return f"{chunks}, expected 1 where there is one stage"
    if pipeline.schedule != "1f1b":
        return f"{chunks} with {pipeline.schedule}, expected 1f1b"
    if pipeline.interleave > len(graph.operators):
        return f"{chunks}, expected no more than operators"
    try:
        chunks_of(schedule(graph, views), pipeline.stages, size, pipeline.interleave)
    except ChunksError as error:
        return str(error)
    return None


def turns(
    stage: int,
    stages: int,
    micro_batches: int,
    interleave: int = 1,
    kind: ScheduleKind = "1f1b",
) -> Iterator[Turn]:
    """What a stage (from 0) does in order: by 1F1B, interleaved where it has several chunks, or by
    ZB-H1."""
    late = weights_late(stage, micro_batches, kind)
    forward = _in_rounds(stages, micro_batches, range(interleave))
    backward = _in_rounds(stages, micro_batches, range(interleave)[::-1])
    ahead = min(_ahead(stage, stages, micro_batches, interleave), len(forward))
    for batch, chunk in forward[:ahead]:
        yield Turn("forward", batch, chunk)
    for number, (batch, chunk) in enumerate(backward):
        if number + ahead < len(forward):
            yield Turn("forward", *forward[number + ahead])
        yield Turn("backward", batch, chunk)
        if late is not None and number >= late:
            yield Turn("weights", *backward[number - late])
    for batch, chunk in backward[len(backward) - (late or 0) :]:
        yield Turn("weights", batch, chunk)


def weights_late(stage: int, micro_batches: int, kind: ScheduleKind) -> int | None:
    """How many micro-batches a stage (from 0) is late with the weights, where these have a pass of
    their own."""
    return min(stage, micro_batches) if has_weights_pass(kind) else None


def under_way(stage: int, stages: int, micro_batches: int, interleave: int = 1) -> int:
    """How many passes a stage (from 0) holds at most: those that it has sent forward and not yet
    back, of a micro-batch through a chunk each."""
    ahead = _ahead(stage, stages, micro_batches, interleave)
    return min(ahead + 1, micro_batches * interleave)


def lag(stages: int, interleave: int) -> int:
    """Before any stage takes micro-batch j forward through its first chunk, all stages have taken
    micro-batch j - ``lag`` back through all of theirs."""
    return stages if interleave == 1 else 3 * stages


def _ahead(stage: int, stages: int, micro_batches: int, interleave: int) -> int:
    """How many passes go forward before the first forward pass that a backward pass follows."""
    later = stages - stage - 1
    if interleave == 1:
        return later
    return 2 * later + (interleave - 1) * max(_rounds(stages, micro_batches))


def _rounds(stages: int, micro_batches: int) -> list[int]:
    """How many micro-batches there are in each round."""
    count = max(micro_batches // stages, 1)
    each, rest = divmod(micro_batches, count)
    return [each + 1] * rest + [each] * (count - rest)


def _in_rounds(stages: int, micro_batches: int, chunks: range) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order of all stages, one way."""
    order: list[tuple[int, int]] = []
    first = 0
    for size in _rounds(stages, micro_batches):
        order += [(batch, chunk) for chunk in chunks for batch in range(first, first + size)]
        first += size
    return order
