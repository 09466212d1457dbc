"""Plans that cut a tiny model, each in a different way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from support.paths import ROOT
from support.public.training import RANKS, Subject

from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import IndexRole, Mode
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.support.planners import SearchOptions, planner_of

MACHINE = str(ROOT / "tests" / "data" / "two-devices.toml")
"""A machine with links so fast that a small model is cut."""
BUDGET = 15.0


@dataclass(frozen=True)
class PlanKind:
    """A planner, and what it may cut. All dimensions if none are given."""

    planner: str
    dimensions: frozenset[IndexRole] | None = None
    mode: Mode = Mode.PARALLEL


WAYS: Mapping[str, PlanKind] = {
    "data": PlanKind("data-parallel"),
    "zero": PlanKind("zero"),
    "tensor": PlanKind("joint", frozenset(IndexRole) - {IndexRole.DATA, IndexRole.PIPELINE}),
    "joint": PlanKind("joint", mode=Mode.JOINT),
    "pipeline": PlanKind("pipeline"),
}


def plan_of(subject: Subject, way: str) -> Plan:
    """The plan of a way, for ``RANKS`` devices. Its batch norms are over the whole batch."""
    asked, library = WAYS[way], load_library()
    machine = load_machine(MACHINE).with_nodes(RANKS // 2)
    planner = planner_of(
        asked.planner,
        machine,
        library,
        BUDGET,
        Training("adam"),
        None,
        SearchOptions(asked.mode, asked.dimensions),
    )
    plan = planner.plan("public", subject.captured.graph).plan
    return of_module(plan, subject.captured, library.rules)


def is_cut(plan: Plan) -> bool:
    """Whether several devices compute."""
    return len({device for view in plan.views.values() for device in view.devices}) > 1
