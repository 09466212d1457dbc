"""The timeline of a pipeline: the work of each device over time, as the price of a step assumes it.

Within a pass of a micro-batch through a stage, or through one of its chunks, devices do what they
did in the simulation of this pass by itself. A transfer between chunks is drawn at both of its
ends, since it is priced at both, one after the other. The exchange of gradients is drawn behind the
backward pass of the last micro-batch. With several chunks, it begins while earlier chunks are still
in their backward pass. With passes for weights, gradients that are complete after the last of these
are exchanged after it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pcg.graph.graph import Node
from pcg.placement.schedule import Schedule
from pcg.plan.pipeline import PipelineFile, ScheduleKind
from search.cost.cost import CostModel
from search.cost.events import Event, Usage, events, usage
from search.cost.simulate import TimedTasks
from search.cost.tasks import BACKWARD, FORWARD, RECOMPUTE, SYNC, UPDATE
from search.pipeline.built.price import StageGroups, StageRuns, in_order, stage_runs
from search.pipeline.clock import StageSeconds, step_seconds
from search.pipeline.pass_times import Pass, passes

ROUNDING = 1e-9
"""The fraction of a step below which a part of an event is left out where the event is cut in
two."""


@dataclass(frozen=True)
class PipelineRun:
    """A simulated step of a pipeline. In the steady state of PipeDream-2BW, the events of all steps
    under way are shown within the time of one."""

    groups: StageGroups
    pipeline: PipelineFile
    stages: Sequence[StageRuns]

    @cached_property
    def seconds(self) -> tuple[StageSeconds, ...]:
        """The work of each stage, in all of its chunks together."""
        return tuple(stage.seconds for stage in self.stages)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of one step, each with its own time."""
        return tuple(passes(self._chunks, *self._order))

    @cached_property
    def step_seconds(self) -> float:
        return step_seconds(self._chunks, *self._order)

    @cached_property
    def _chunks(self) -> tuple[StageSeconds, ...]:
        return in_order(self.stages, self.groups.interleave)

    @property
    def _order(self) -> tuple[int, ScheduleKind, int]:
        return self.groups.micro_batches, self.pipeline.schedule, self.groups.interleave

    def busy(self, stage: int) -> float:
        """Seconds for which a stage works in a step."""
        return self.seconds[stage].busy(self.groups.micro_batches)

    def waiting(self, stage: int) -> float:
        """Seconds of a step in which a stage has no work."""
        return max(self.step_seconds - self.busy(stage), 0.0)

    @property
    def last(self) -> int:
        """The stage with which the step ends; in a steady state, the slowest stage."""
        stages = range(self.groups.stages)
        if self.pipeline.schedule == "2bw":
            return max(stages, key=self.busy)
        return max((p for p in self.passes if p.kind == "after"), key=lambda p: p.end).stage

    def phases(self, stage: int) -> Mapping[str, float]:
        """The time use of a stage in a step, in seconds."""
        own, count = self.seconds[stage], self.groups.micro_batches
        micro, last = (r.simulation for r in (self.stages[stage].micro, self.stages[stage].last))
        once = self.stages[stage].once.simulation.backward
        more = last.backward - micro.backward - own.weights
        return {
            "forward": own.before + count * own.forward,
            "backward": count * (own.backward + own.weights) + more + once,
            "sync": last.sync,
            "update": last.update,
            "waiting": self.waiting(stage),
        }

    def shown(self) -> Iterator[Pass]:
        """The passes as a timeline shows them, within the time of one step."""
        for stage_pass in self.passes:
            for start, seconds in self._within(stage_pass.start, stage_pass.seconds):
                yield replace(stage_pass, start=start, seconds=seconds)

    def shown_batches(self, devices: Iterable[int], most: int) -> frozenset[int]:
        """The first micro-batches and the last: as many as together have about ``most`` events on
        the given devices, but at least two."""
        stages = (self.stages[device // self.groups.size] for device in devices)
        each = sum(len(stage.micro.tasks) for stage in stages)
        last = self.groups.micro_batches - 1
        return frozenset((*range(min(last, max(most // max(each, 1) - 1, 1))), last))

    def events(self, device: int, batches: Container[int] | None = None) -> Iterator[Event]:
        """The events of a device, for all micro-batches or the given ones."""
        stage = device // self.groups.size
        stage_events = _StageEvents.of(self.stages[stage], device)
        last = self.groups.micro_batches - 1
        for stage_pass in self.passes:
            if stage_pass.stage != stage or (
                batches is not None and stage_pass.batch not in batches
            ):
                continue
            for event in stage_events.of_pass(stage_pass, is_last=stage_pass.batch == last):
                for start, seconds in self._within(stage_pass.start + event.start, event.seconds):
                    yield replace(event, start=start, seconds=seconds)

    def usage(self, device: int) -> Usage:
        """The time use of a device in the step."""
        stage = self.stages[device // self.groups.size]
        micro, last, once = (usage(r, device) for r in (stage.micro, stage.last, stage.once))
        times = self.groups.micro_batches - 1
        weights = 0.0 if stage.late is None else usage(stage.late, device).computing
        return Usage(
            device,
            times * (micro.computing + weights) + last.computing + once.computing,
            times * micro.communicating + last.communicating + once.communicating,
            times * micro.hidden + last.hidden + once.hidden,
        )

    def busiest(self) -> Usage:
        """The time use of the busiest device."""
        return max(map(self.usage, range(self.groups.devices)), key=lambda used: used.busy)

    def _within(self, start: float, seconds: float) -> Iterator[tuple[float, float]]:
        """The start and length of an event within the time of one step: in two parts if the event
        goes on while the next step begins."""
        if self.pipeline.schedule != "2bw" or not seconds:
            yield start, seconds
            return
        period = self.step_seconds
        least, start = ROUNDING * period, (start - self.passes[0].start) % period
        if period - start <= least:
            start = 0.0
        rest = start + seconds - period
        yield start, seconds if rest <= least else period - start
        if rest > least:
            yield 0.0, rest


def pipeline_run(
    steps: Schedule, cost: CostModel, pipeline: PipelineFile, remade: Collection[Node] = ()
) -> PipelineRun:
    """Simulate a schedule that is a pipeline. ``cost``: of the whole machine. The results of
    ``remade`` are recomputed."""
    size = cost.machine.devices // pipeline.stages
    groups = StageGroups(pipeline.stages, size, pipeline.micro_batches, pipeline.interleave)
    runs = tuple(stage_runs(steps, cost, groups, remade, pipeline.schedule))
    return PipelineRun(groups, pipeline, runs)


@dataclass(frozen=True)
class _StageEvents:
    """The events of a device in each pass of its stage, in seconds from the start of the pass.
    Steps and weights have the numbers of the schedule."""

    before: Sequence[Event]
    forward: Sequence[Sequence[Event]]
    """By chunk."""
    backward: Sequence[Sequence[Event]]
    last: Sequence[Sequence[Event]]
    """The backward passes of the last micro-batch, by chunk. That of the first chunk includes the
    exchange and update of weights."""
    after: Sequence[Event]
    weights: Sequence[Event] = ()
    """The pass for weights, if there is one."""
    last_weights: Sequence[Event] = ()
    """The pass for weights of the last micro-batch, with the exchange and update after it."""

    @classmethod
    def of(cls, stage: StageRuns, device: int) -> _StageEvents:
        part = partial(_part, stage, device)
        micro, once = stage.micro.simulation, stage.once.simulation.forward
        turns = [chunk.micro.simulation.forward for chunk in stage.chunks]
        backward = [
            part(chunk.micro, chunk.steps, turn, BACKWARD, RECOMPUTE)
            for chunk, turn in zip(stage.chunks, turns, strict=True)
        ]
        weights: list[Event] = []
        exchanged: list[Event] = []
        if stage.late is not None:
            # Exchanges that begin before the pass for weights belong to the backward pass.
            begin = stage.micro.simulation.step_seconds
            sent = part(stage.last, stage.repeated, 0.0, SYNC, UPDATE)
            weights = part(stage.late, stage.repeated, 0.0, BACKWARD)
            exchanged = [replace(e, start=e.start - begin) for e in sent if e.start >= begin]
            early = [replace(e, start=e.start - turns[0]) for e in sent if e.start < begin]
            last = [*backward[0], *early]
        elif len(turns) == 1:
            last = part(stage.last, stage.repeated, turns[0], BACKWARD, RECOMPUTE, SYNC, UPDATE)
        else:
            # Counted from the end of the backward passes.
            begin = turns[0] + stage.chunks[0].micro.simulation.backward - micro.step_seconds
            sent = part(stage.last, stage.repeated, 0.0, SYNC, UPDATE, at=begin - turns[0])
            last = [*backward[0], *sent]
        return cls(
            part(stage.once, stage.single, 0.0, FORWARD),
            [part(chunk.micro, chunk.steps, 0.0, FORWARD) for chunk in stage.chunks],
            backward,
            [last, *backward[1:]],
            part(stage.once, stage.single, once, BACKWARD, RECOMPUTE, at=stage.exchanging),
            weights,
            [*weights, *exchanged],
        )

    def of_pass(self, stage_pass: Pass, *, is_last: bool) -> Iterator[Event]:
        """The events of a pass."""
        match stage_pass.kind:
            case "before":
                yield from self.before
            case "forward":
                yield from (
                    replace(event, batch=stage_pass.batch)
                    for event in self.forward[stage_pass.chunk]
                )
            case "backward":
                of = self.last if is_last else self.backward
                yield from _of_batch(of[stage_pass.chunk], stage_pass.batch)
            case "weights":
                yield from _of_batch(
                    self.last_weights if is_last else self.weights, stage_pass.batch
                )
            case "after":
                yield from self.after


def _part(
    stage: StageRuns,
    device: int,
    run: TimedTasks,
    numbers: Sequence[int],
    start: float,
    *phases: int,
    at: float = 0.0,
) -> list[Event]:
    """The events of a device in some phases from ``start`` on, counted from there and delayed by
    ``at``."""
    numbered_events: list[Event] = []
    for event in events(run, device):
        task = event.task
        if task.phase in phases and event.end > start:
            of = stage.weights if task.phase in (SYNC, UPDATE) else numbers
            # An event that begins before the forward pass ends is cut there.
            begin = max(event.start, start)
            numbered = task._replace(what=of[task.what])
            numbered_events.append(Event(numbered, begin - start + at, event.end - begin))
    return numbered_events


def _of_batch(given: Iterable[Event], batch: int) -> Iterator[Event]:
    """Events of a pass of a micro-batch. Work that is done once a step belongs to no
    micro-batch."""
    for event in given:
        whole = event.task.phase in (SYNC, UPDATE)
        yield replace(event, batch=None if whole else batch)
