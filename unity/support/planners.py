"""Makes planners by name, for the commands that take one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pcg.errors import InputError, one_of
from pcg.machine import Machine
from pcg.plan.pipeline import ScheduleKind
from pcg.plan.precision import default_precision, precision_of
from pcg.plan.training import Training, optimizer_of
from pcg.zoo import default_optimizer
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.choices import OTHER_SYSTEMS, PLANNER_NAMES, THRESHOLD, IndexRole, Mode, Recompute
from search.cost.efficiency import Speed
from search.cost.planned import Planner
from search.cost.progress import Progress, Teller, silent
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
    """Raises InputError for a name that is none."""
    one_of("planner", name, PLANNER_NAMES)


def asked_training(
    model: str,
    optimizer: str | None,
    precision: str | None,
    machine: Machine,
    *,
    compiled: bool = False,
) -> Training:
    """How a model is to be trained on a machine: as asked for, else by the optimizer of the zoo's
    model and in the machine's usual format. Raises InputError for names that are none."""
    return Training(
        default_optimizer(model) if optimizer is None else optimizer_of(optimizer),
        default_precision(machine) if precision is None else precision_of(precision),
        compiled,
    )


@dataclass(frozen=True)
class SearchOptions:
    """What a search is asked for beside a planner's name. Pipelines leave ``mode`` and
    ``threshold`` aside."""

    mode: Mode = Mode.JOINT
    dimensions: frozenset[IndexRole] | None = None
    """What may be cut; everything by default."""
    recompute: Recompute = Recompute.AUTO
    """What the backward pass may make again."""
    degrees: str | None = None
    """Those of a plan by hand, in place of a search."""
    threshold: float = THRESHOLD
    """So many times as slow as the best a graph may be and still be rewritten."""
    mesh: str | None = None
    """The named axes of ``gspmd``."""
    shards: tuple[str, ...] = ()
    """Its annotations of tensors."""

    @property
    def leaves_pipelines_out(self) -> bool:
        """Whether no pipeline is a plan: in algebra mode, which is of data parallelism alone, and
        where batches may not be cut in slices of time."""
        allowed = self.dimensions is None or IndexRole.PIPELINE in self.dimensions
        return self.mode is Mode.ALGEBRA or not allowed


def planner_of(
    name: str,
    machine: Machine,
    library: Library,
    seconds: float,
    training: Training,
    speed: Speed | None,
    asked: SearchOptions = SearchOptions(),
    progress: Progress = silent,
) -> Planner:
    """A planner that may search for so many seconds. The joint planner considers pipelines too.
    ``progress`` is told how far the search is. Raises InputError for a name that is none."""
    check_name(name)
    teller = Teller(progress)
    if asked.degrees is not None:
        if name != "joint":
            raise InputError("--degrees", f"with --planner {name}, expected one of the two")
        by_hand = parse_degrees(asked.degrees)
        given = machine, library, by_hand, training, speed
        return HandPlanner(*given, teller=teller, seconds=seconds)
    dimensions, recompute = asked.dimensions, asked.recompute
    if name in OTHER_SYSTEMS:
        setting = PlannerSetting(machine, library, training, speed, recompute, teller)
        return _of_other_system(name, setting, seconds, asked)

    def pipelines(kind: ScheduleKind, than: float = inf, used: float = 0.0) -> Planner:
        left = seconds - used  # below 0 where the grace of the first search is in use too
        settings = machine, library, kind, left, training, speed, than, teller, dimensions
        return PipelinePlanner(*settings, recompute)

    if name in PIPELINES:
        return pipelines(PIPELINES[name])
    settings = machine, library, name, seconds, training, speed, asked.mode, dimensions, teller
    plain = MeshPlanner(*settings, recompute, asked.threshold)
    if name != "joint" or asked.leaves_pipelines_out:
        return plain
    both = WithPipelines(plain, lambda than, used: pipelines("1f1b", than, used))
    plain.rival = both.rival
    return both


def _of_other_system(
    name: str, setting: PlannerSetting, seconds: float, asked: SearchOptions
) -> Planner:
    """A planner that chooses as another system does."""
    if name == "alpa":
        return AlpaPlanner(setting, seconds)
    if name == "automap":
        return AutoMapPlanner(setting, seconds)
    if name == "flexflow":
        return FlexFlowPlanner(setting, seconds)
    if name == "tepdist":
        return TepdistPlanner(setting, seconds)
    assert name == "gspmd"
    return GspmdPlanner(setting, asked.mesh, asked.shards)
