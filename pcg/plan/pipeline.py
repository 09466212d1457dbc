"""Pipelines: stages, micro-batches, their order, and the time of weight updates.

1F1B (PipeDream-Flush: Narayanan et al., ICML 2021): a stage sends some micro-batches forward, then
alternates one forward and one backward pass, and ends with the remaining backward passes.

Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2): each stage holds several *chunks* of the
model. Chunk c of stage s has the number ``c * stages + s``, in the order of data flow. So a
micro-batch passes each stage once for each chunk, and devices wait less at the beginning and the
end of a step. Micro-batches go in rounds: all micro-batches of a round pass one chunk, then the
next one, forward and then backward. A round has as many micro-batches as there are stages. If the
stages do not divide the micro-batches, the first rounds have more, never fewer. Otherwise a stage
could wait forever.

ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2): the backward pass of
a micro-batch is split in two. Other stages wait for the *backward* pass. The *weights* pass has the
gradients for which only the update waits: weight gradients of products (``pcg.placement.late``).
Forward and backward passes are in the order of 1F1B. Stage s, counted from 0, is s micro-batches
late with the weights, so that it has work while it would wait for the last micro-batches. Each of p
stages holds at most p micro-batches, as the first stage does in 1F1B. For those that only wait for
their weights pass, it holds only the operands of products and the gradients of their results. If
the weights pass takes no longer than the others, devices wait for (p - 1) (F + B - W), instead of
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
"""The order of micro-batches, and the version of the weights for their gradients."""
TurnKind = Literal["forward", "backward", "weights"]

_Count = Annotated[int, Field(ge=1, le=1 << 20)]


class PipelineFile(GrownFileModel):
    """A pipeline: stages on consecutive groups of devices of equal size, and the number of
    micro-batches in a step."""

    ADDED: ClassVar[frozenset[str]] = frozenset({"interleave"})

    stages: _Count
    micro_batches: _Count
    schedule: ScheduleKind
    """*1f1b* and *zb-h1* wait for the updates. *2bw* has the order of 1F1B, with gradients for
    weights that are one update old."""
    interleave: _Count = 1
    """The number of chunks of the model in each stage."""

    @property
    def has_weights_pass(self) -> bool:
        """Whether micro-batches have a pass for weights."""
        return has_weights_pass(self.schedule)


def has_weights_pass(kind: ScheduleKind) -> bool:
    """Whether micro-batches have a pass for weights."""
    return kind == "zb-h1"


class Turn(NamedTuple):
    """One pass of a micro-batch through a chunk of a stage."""

    kind: TurnKind
    batch: int
    chunk: int = 0

    @property
    def is_forward(self) -> bool:
        """Whether the pass is a forward pass."""
        return self.kind == "forward"


def misfit(
    pipeline: PipelineFile, graph: Graph, views: Mapping[Node, MachineView], devices: int
) -> str | None:
    """Return why a placed graph is no such pipeline, or None if it is one: each operator has to run
    within a stage, and slices in time have to be the micro-batches."""
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
    """Yield the passes of a stage, counted from 0, in order: by 1F1B, interleaved if it has several
    chunks, or by ZB-H1."""
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
    """Return by how many micro-batches a stage, counted from 0, is late with the weights. None if
    there is no pass for weights."""
    return min(stage, micro_batches) if has_weights_pass(kind) else None


def under_way(stage: int, stages: int, micro_batches: int, interleave: int = 1) -> int:
    """Return the most passes that a stage, counted from 0, holds at once: passes of a micro-batch
    through a chunk that went forward, but not yet backward."""
    ahead = _ahead(stage, stages, micro_batches, interleave)
    return min(ahead + 1, micro_batches * interleave)


def lag(stages: int, interleave: int) -> int:
    """Return a bound: before any stage takes micro-batch j forward through its first chunk, all
    stages have taken micro-batch j - ``lag`` backward through all of their chunks."""
    return stages if interleave == 1 else 3 * stages


def _ahead(stage: int, stages: int, micro_batches: int, interleave: int) -> int:
    """Return the forward passes before the first forward pass that a backward pass follows."""
    later = stages - stage - 1
    if interleave == 1:
        return later
    return 2 * later + (interleave - 1) * max(_rounds(stages, micro_batches))


def _rounds(stages: int, micro_batches: int) -> list[int]:
    """Return the number of micro-batches of each round."""
    count = max(micro_batches // stages, 1)
    each, rest = divmod(micro_batches, count)
    return [each + 1] * rest + [each] * (count - rest)


def _in_rounds(stages: int, micro_batches: int, chunks: range) -> list[tuple[int, int]]:
    """Return (micro-batch, chunk) in the order of every stage, in one direction."""
    order: list[tuple[int, int]] = []
    first = 0
    for size in _rounds(stages, micro_batches):
        order += [(batch, chunk) for chunk in chunks for batch in range(first, first + size)]
        first += size
    return order
