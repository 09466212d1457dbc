"""Makes planners by name, for commands with ``--planner``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pcg.errors import InputError, one_of
from pcg.machine import Machine
from pcg.plan.precision import default_precision, precision_of
from pcg.plan.training import Training, optimizer_of
from pcg.zoo import default_optimizer
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.choices import (
    OTHER_SYSTEMS,
    PLANNER_NAMES,
    USUAL_REWRITES,
    IndexRole,
    Mode,
    Recompute,
    RewriteSettings,
)
from search.cost.efficiency import Speed
from search.cost.planned import Planner
from search.cost.progress import Teller
from search.pipeline.beside import WithPipelines
from search.pipeline.planner import PIPELINES, PipelinePlanner
from search.plan.planner import MeshPlanner
from search.planners.alpa.planner import AlpaPlanner
from search.planners.automap.planner import AutoMapPlanner
from search.planners.common import PlannerSetting
from search.planners.flexflow.planner import FlexFlowPlanner
from search.planners.gspmd.planner import GspmdPlanner
from search.planners.tepdist.planner import TepdistPlanner
from substitutions.rules.store import Library


def check_name(name: str) -> None:
    """Raise InputError for an unknown planner."""
    one_of("planner", name, PLANNER_NAMES)


def asked_training(
    model: str,
    optimizer: str | None,
    precision: str | None,
    machine: Machine,
    *,
    compiled: bool = False,
) -> Training:
    """Return the optimizer and number format of a training.

    Defaults: the optimizer of the zoo's model, and the usual format of the machine. Raises
    InputError for unknown names.
    """
    return Training(
        default_optimizer(model) if optimizer is None else optimizer_of(optimizer),
        default_precision(machine) if precision is None else precision_of(precision),
        compiled,
    )


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search beside the planner's name. Pipelines ignore ``mode`` and
    ``rewrites``."""

    mode: Mode = Mode.JOINT
    dimensions: frozenset[IndexRole] | None = None
    """The kinds of cuts that are allowed; None for all."""
    recompute: Recompute = Recompute.AUTO
    """What the backward pass may compute again."""
    degrees: str | None = None
    """The degrees of a plan by hand, in place of a search."""
    rewrites: RewriteSettings = USUAL_REWRITES
    """How far the search for rewrites goes."""
    mesh: str | None = None
    """The named axes of ``gspmd``."""
    shards: tuple[str, ...] = ()
    """The annotations of ``gspmd``."""
    keeps_states: bool = False
    """Whether steps change buffers of the module, which micro-batches would change in turn."""

    @property
    def leaves_pipelines_out(self) -> bool:
        """Whether pipelines are left out: in algebra mode, which is for data parallelism alone, if
        ``pipeline`` is not allowed, and if steps change buffers."""
        allowed = self.dimensions is None or IndexRole.PIPELINE in self.dimensions
        return self.mode is Mode.ALGEBRA or self.keeps_states or not allowed


def planner_of(
    name: str,
    machine: Machine,
    library: Library,
    seconds: float,
    training: Training,
    speed: Speed | None,
    asked: SearchOptions = SearchOptions(),
    teller: Teller | None = None,
) -> Planner:
    """Return a planner with a time limit in seconds. The joint planner considers pipelines too.
    ``teller`` is told the state of the search. Raises InputError for an unknown name."""
    check_name(name)
    teller = Teller() if teller is None else teller
    if asked.degrees is not None:
        if name != "joint":
            raise InputError("--degrees", f"with --planner {name}, expected one of the two")
        given = machine, library, parse_degrees(asked.degrees), training, speed
        return HandPlanner(*given, teller=teller, seconds=seconds)
    dimensions, recompute = asked.dimensions, asked.recompute
    if name in OTHER_SYSTEMS:
        setting = PlannerSetting(machine, library, training, speed, recompute, teller)
        return _of_other_system(name, setting, seconds, asked)

    def pipelines(than: float = inf, used: float = 0.0, brief: bool = False) -> Planner:
        left = seconds - used  # below 0 if the first search has used its grace too
        kind = PIPELINES.get(name, "1f1b")
        settings = machine, library, kind, left, training, speed, than, teller, dimensions
        return PipelinePlanner(*settings, recompute, brief)

    if name in PIPELINES:
        _check_states(name, asked)
        return pipelines()
    settings = machine, library, name, seconds, training, speed, asked.mode, dimensions, teller
    plain = MeshPlanner(*settings, recompute, asked.rewrites)
    if name != "joint" or asked.leaves_pipelines_out:
        return plain
    both = WithPipelines(plain, pipelines, teller)
    plain.rival = both
    return both


def _check_states(name: str, asked: SearchOptions) -> None:
    """Raise InputError for a pipeline of a module whose buffers change in every step."""
    if asked.keeps_states:
        problem = "every step changes a buffer, which micro-batches would change in turn"
        raise InputError("--planner", f"{name}: {problem}, expected one without a pipeline")


def _of_other_system(
    name: str, setting: PlannerSetting, seconds: float, asked: SearchOptions
) -> Planner:
    """Return a planner that chooses like another system."""
    if name == "alpa":
        return AlpaPlanner(setting, seconds)
    if name == "automap":
        return AutoMapPlanner(setting, seconds)
    if name == "flexflow":
        return FlexFlowPlanner(setting, seconds)
    if name == "tepdist":
        return TepdistPlanner(setting, seconds)
    assert name == "gspmd"
    return GspmdPlanner(setting, asked.mesh, asked.shards, seconds)
