"""Planners by name, for the commands that take one."""

from __future__ import annotations

from pcg.errors import InputError
from pcg.machine import Machine
from pcg.training import Optimizer
from search.efficiency import Speed
from search.mesh.allow import Dimension
from search.mesh.planner import PLANNERS, MeshPlanner, Planner
from search.mesh.variants import Mode
from search.pipeline.planner import PIPELINES, PipelinePlanner, WithPipelines
from substitutions.store import Library

NAMES = (*PLANNERS, *PIPELINES)


def check_name(name: str) -> None:
    """Raises InputError for a name that is none."""
    if name not in NAMES:
        expected = ", ".join(NAMES)
        raise InputError(f"planner {name}", f"unknown, expected one of {expected}")


def planner_of(
    name: str,
    machine: Machine,
    library: Library,
    seconds: float,
    optimizer: Optimizer,
    speed: Speed | None,
    mode: Mode = Mode.JOINT,
    dimensions: frozenset[Dimension] | None = None,
) -> Planner:
    """A planner that may search for so many seconds. Pipelines leave ``mode`` and ``dimensions``
    aside; the joint planner in its joint mode considers them too, unless the dimensions leave them
    out. Raises InputError for a name that is none."""
    check_name(name)
    if name in PIPELINES:
        return PipelinePlanner(machine, library, PIPELINES[name], seconds, optimizer, speed)
    plain = MeshPlanner(machine, library, name, seconds, optimizer, speed, mode, dimensions)
    left_out = dimensions is not None and Dimension.PIPELINE not in dimensions
    if name != "joint" or mode is not Mode.JOINT or left_out:
        return plain

    def pipelined(than: float) -> Planner:
        return PipelinePlanner(machine, library, "1f1b", seconds, optimizer, speed, than)

    return WithPipelines(plain, pipelined)
