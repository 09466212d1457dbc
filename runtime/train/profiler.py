"""Record the timeline of a rank in a step with torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile

from pcg.plan.timeline import COMMUNICATE, COMPUTE
from runtime.job.job import Mark
from runtime.world.collectives import MARK, PHASE, World

UPDATE = "Optimizer.step#"
"""The prefix of torch's name for an optimizer's update."""


def recorded(world: World, step: Callable[[], object]) -> tuple[Mark, ...]:
    """Run a step and return the timeline of this rank. The profiler itself takes some time."""
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    world.total(0.0)  # ranks begin together
    world.marks = True
    try:
        with profile(activities=activities) as profiler:
            step()
    finally:
        world.marks = False
    return tuple(_marks(profiler.events() or [], gpu=world.device.type == "cuda"))


def _marks(events: Iterable[Any], *, gpu: bool) -> Iterator[Mark]:
    """The entries of a timeline: kernels on a GPU; on a CPU the outermost operators, and all
    communications of this rank."""
    phase = "forward"
    for event in sorted(events, key=lambda e: e.time_range.start):
        on_gpu, name = not str(event.device_type).endswith("CPU"), str(event.name)
        if name.startswith(PHASE):
            phase = name.removeprefix(PHASE)
            continue
        # A communication that gloo names has an entry by MARK already.
        if gpu != on_gpu or name.startswith("gloo:"):
            continue
        is_mark = name.startswith(MARK)
        if not (on_gpu or is_mark or event.cpu_parent is None):
            continue
        if UPDATE in name:
            phase = "update"
        communicates = is_mark or "nccl" in name.lower()
        begin, end = event.time_range.start, event.time_range.end
        yield Mark(
            name.removeprefix(MARK).removeprefix("autograd::engine::evaluate_function: "),
            "step" if on_gpu else phase,
            COMMUNICATE if communicates else COMPUTE,
            begin * 1e-6,
            (end - begin) * 1e-6,
        )
