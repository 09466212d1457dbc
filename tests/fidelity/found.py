"""Print the planner's own plans beside published plans: ``make found``.

    python -m fidelity.found [NAME ...]

A NAME is a part of the name of a run or a point. For each model, the fastest published plan at each
number of GPUs is taken. Both plans are priced alike: on the same graph and machine, in the same
formats, and with communication beside computation, as in our runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

from fidelity.data import Point, points
from fidelity.models import Gpt, Llama
from fidelity.price import graph_of_point, machine_of, made, training_of

from pcg.errors import NegativeAnswer
from pcg.plan.plan import Plan
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

SECONDS = 3600.0
"""The time limit of a search. No search should end before it has tried all candidates."""


@dataclass(frozen=True)
class Found:
    """A published plan and the planner's plan, priced alike."""

    point: Point
    published_seconds: float
    published_memory: int
    plan: Plan

    @property
    def ratio(self) -> float:
        """Seconds of the planner's plan relative to the published one. Below 1 if the planner's is
        faster."""
        return self.plan.estimates.step_seconds / self.published_seconds

    @property
    def fits(self) -> bool:
        """Whether the planner's plan fits in memory."""
        limit = machine_of(self.point).memory_limit()
        return self.plan.estimates.peak_memory_bytes <= limit


def found(point: Point) -> Found:
    """The planner's plan for a point's model, batch and machine. Raises NegativeAnswer if it finds
    none."""
    graph = graph_of_point(point)
    by_hand = made(point, overlaps=True)
    planner = planner_of(
        "joint", machine_of(point), load_library(), SECONDS, training_of(point), None
    )
    plan = planner.plan(point.name, graph).plan
    return Found(point, by_hand.seconds, by_hand.memory, plan)


def published() -> list[Point]:
    """For each transformer and number of GPUs, the plan with the fastest measured step."""
    best: dict[tuple[str, str, int], Point] = {}
    for point in points():
        if isinstance(point.model, Gpt | Llama):
            key = point.run, point.name, point.gpus
            if key not in best or point.seconds < best[key].seconds:
                best[key] = point
    return list(best.values())


def main(names: Sequence[str]) -> None:
    """Plan the models whose names are given, or all models."""
    for point in published():
        if names and not any(name in f"{point.run} {point.name}" for name in names):
            continue
        begin = process_time()
        title = f"{point.run:15} {point.name:9} {point.gpus:5} GPUs"
        try:
            one = found(point)
        except NegativeAnswer as answer:
            print(f"{title} {answer}", flush=True)
            continue
        print(
            f"{title} {one.published_seconds:9.3f} s {one.published_memory / 1e9:5.1f} GB published"
            f" {one.plan.estimates.step_seconds:9.3f} s"
            f" {one.plan.estimates.peak_memory_bytes / 1e9:5.1f} GB found {one.ratio:6.3f}"
            f" {_told(one)} {process_time() - begin:5.0f} s CPU",
            flush=True,
        )


def _told(one: Found) -> str:
    """The differences of the planner's plan, in short."""
    pipeline, decisions = one.plan.pipeline, one.plan
    stages = "no stages"
    if pipeline is not None:
        stages = f"{pipeline.stages} stages x {pipeline.micro_batches}"
    return f"{stages}, {len(decisions.recompute)} recomputed"


if __name__ == "__main__":
    main(sys.argv[1:])
