"""A comparison of planners on models, entry by entry, and its file, complete at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

from pydantic import Field

from pcg.errors import InputError, NegativeAnswer
from pcg.files import FileModel, make_folder, write_text_atomic
from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.models import build_model
from pcg.plan.plan import Plan, save_plan
from pcg.plan.statistics import groups_of
from search.choices import PLANNER_NAMES
from search.cost.efficiency import Speed
from search.report.difference import Figures
from search.report.trace import simulate_plan
from substitutions.rules.store import Library
from unity.support.batch_norm import WHOLE, norm_groups
from unity.support.limits import check_batch, check_devices
from unity.support.planners import SearchOptions, asked_training, planner_of

PLANS = "plans"
"""The folder of a comparison's plans."""


class StepParts(FileModel):
    """Seconds of a step of the busiest device. With ``hidden``, communication while the device
    computes, left out, they add up to the step."""

    computing: float
    exposed: float
    """Communication while the device does not compute."""
    idle: float
    hidden: float


class Prediction(FileModel):
    """What one planner predicts for a model on so many devices."""

    model: str
    planner: str
    devices: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    """Samples of a step, on all devices together."""
    step_seconds: float | None
    """None where no plan fits."""
    samples_per_second: float | None
    memory_bytes: int | None
    """On the device that holds most."""
    search_seconds: float
    norm_groups: Annotated[int, Field(ge=1)] = 1
    """Of samples, in which all planners' batch norms take their statistics."""
    problem: str | None = None
    """Why there is no plan."""
    parts: StepParts | None = None
    """Where the step goes."""
    plan: str | None = None
    """The plan's file, beside that of the comparison."""


class ComparisonFile(FileModel):
    schema_version: Literal[1]
    machine: str
    machine_hash: str
    library_hash: str
    entries: tuple[Prediction, ...]


@dataclass(frozen=True)
class ComparisonQuestion:
    """What to compare: every model on every number of devices by every planner."""

    machine: Machine
    """With any number of nodes."""
    library: Library
    models: Sequence[str]
    devices: Sequence[int]
    planners: Sequence[str]
    batch: int | None = None
    """Global; by default it grows with the devices."""
    seconds: float = 600.0
    """For each search."""
    speed: Speed | None = None
    batch_norm: str = WHOLE
    """As ``--batch-norm`` says it."""
    precision: str | None = None
    """As ``--precision`` says it."""
    mesh: str | None = None
    """The named axes of ``gspmd``; all numbers of devices have to be theirs."""
    shards: tuple[str, ...] = ()
    """Its annotations of tensors."""

    def check(self) -> None:
        """Raises InputError for numbers of devices or a batch that no plan is made for, and for
        annotations that no planner reads."""
        for option, given in (("--mesh", self.mesh), ("--shard", self.shards)):
            if given and "gspmd" not in self.planners:
                raise InputError(
                    option, "only the planner gspmd takes it, expected --planners gspmd"
                )
        for devices in self.devices:
            norm_groups(self.batch_norm, "", devices)
            check_devices("--gpus", devices)
            check_batch(self.batch, devices)

    def entries(self, folder: Path) -> Iterator[Prediction]:
        """One answer after the other, whose plans are written below ``folder``. Raises InputError
        for a model that there is not."""
        for model in self.models:
            for devices in self.devices:
                target = first_devices(self.machine, devices)
                groups = norm_groups(self.batch_norm, "", devices)
                graph = build_model(model, self.batch, devices, groups)
                self.library.concrete(graph)  # kept, so that the first planner is not charged
                for planner in self.planners:
                    entry, plan = self._entry(model, graph, target, planner)
                    yield entry if plan is None else self._kept(entry, plan, target, folder)

    def _entry(
        self, model: str, graph: Graph, target: Machine, planner: str
    ) -> tuple[Prediction, Plan | None]:
        """What a planner predicts, and its plan."""
        start = perf_counter()
        batch = samples(graph)
        plan, problem = None, None
        try:
            plan = self._plan(model, graph, target, planner)
        except NegativeAnswer as error:
            problem = str(error)
        estimates = plan and plan.estimates
        entry = Prediction(
            model=model,
            planner=planner,
            devices=target.devices,
            batch=batch,
            step_seconds=estimates and estimates.step_seconds,
            samples_per_second=estimates and batch / estimates.step_seconds,
            memory_bytes=estimates and estimates.peak_memory_bytes,
            search_seconds=perf_counter() - start,
            norm_groups=max(groups_of(graph), default=1),
            problem=problem,
        )
        return entry, plan

    def _plan(self, model: str, graph: Graph, target: Machine, planner: str) -> Plan:
        training = asked_training(model, None, self.precision, target)
        given = planner, target, self.library, self.seconds, training, self.speed
        asked = SearchOptions(mesh=self.mesh, shards=self.shards)
        planned = planner_of(*given, asked).plan(model, graph)
        if planned.report.stop == "interrupted":
            raise KeyboardInterrupt  # of all that is compared: this search is not done
        return planned.plan

    def _kept(self, entry: Prediction, plan: Plan, target: Machine, folder: Path) -> Prediction:
        """The entry with its plan in a file, and where the plan's step goes."""
        path = Path(PLANS) / f"{file_name(entry.model)}-{entry.devices}-{entry.planner}.json"
        make_folder(folder / PLANS)
        save_plan(plan, folder / path)
        figures = Figures.of(simulate_plan(plan, target, self.speed))
        parts = StepParts(
            computing=figures.computing,
            exposed=figures.communication_exposed,
            idle=figures.idle,
            hidden=figures.communication_hidden,
        )
        return entry.model_copy(update={"parts": parts, "plan": path.as_posix()})

    def save(self, entries: Sequence[Prediction], path: Path) -> None:
        """Write a comparison file, whole or not at all."""
        content = ComparisonFile(
            schema_version=1,
            machine=self.machine.name,
            machine_hash=self.machine.hash(),
            library_hash=self.library.hash,
            entries=tuple(entries),
        )
        write_text_atomic(path, content.model_dump_json(indent=1) + "\n")


def file_name(model: str) -> str:
    """A model's name, or what a user's file and function make, as the name of a file."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in model).strip("-.") or "model"


def first_devices(machine: Machine, devices: int) -> Machine:
    """A machine with as many nodes as so many devices take, the last of them in part."""
    nodes = -(-devices // machine.devices_per_node)
    return machine.with_nodes(nodes).with_devices(devices)


def samples(graph: Graph) -> int:
    """Samples of a step: the first dimension of most inputs."""
    shapes = [leaf.leaf.type.shape for leaf in graph.leaves if leaf.leaf.type]
    kinds = [leaf.leaf.kind for leaf in graph.leaves if leaf.leaf.type]
    first = [s[0] for s, kind in zip(shapes, kinds, strict=True) if s and kind == "input"]
    return max(first, key=first.count) if first else 1


def over_others(entry: Prediction, entries: Sequence[Prediction]) -> float | None:
    """How many times as fast an entry is as the best of the other planners for the same; None where
    there is none, or nothing to compare."""
    others = [
        e.samples_per_second
        for e in entries
        if (e.model, e.devices) == (entry.model, entry.devices) and e.planner != entry.planner
    ]
    best = max((speed for speed in others if speed is not None), default=None)
    if best is None or entry.samples_per_second is None:
        return None
    return entry.samples_per_second / best


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of devices from an option such as ``6,12,24``, ascending, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InputError("--gpus", f"expected numbers of devices such as 6,12,24, got {text!r}")
    return tuple(sorted({int(word) for word in words}))


def planners(text: str) -> tuple[str, ...]:
    """Planners from an option such as ``data-parallel,joint``, in that order, each once."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in PLANNER_NAMES:
            expected = ", ".join(PLANNER_NAMES)
            raise InputError("--planners", f"expected some of {expected}, got {name!r}")
    return names
