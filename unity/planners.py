"""Planners by name, for the commands that take one."""

from __future__ import annotations

from pcg.errors import InputError
from pcg.machine import Machine
from pcg.training import Optimizer
from search.efficiency import Speed
from search.mesh.planner import PLANNERS, MeshPlanner, Planner
from search.pipeline.planner import PIPELINES, PipelinePlanner
from substitutions.store import Library

NAMES = (*PLANNERS, *PIPELINES)


def planner_of(
    name: str,
    machine: Machine,
    library: Library,
    seconds: float,
    optimizer: Optimizer,
    speed: Speed | None,
) -> Planner:
    """A planner that may search for so many seconds. Raises InputError for a name that is none."""
    if name in PIPELINES:
        return PipelinePlanner(machine, library, PIPELINES[name], seconds, optimizer, speed)
    if name not in PLANNERS:
        expected = ", ".join(NAMES)
        raise InputError(f"planner {name}", f"unknown, expected one of {expected}")
    return MeshPlanner(machine, library, name, seconds, optimizer, speed)
