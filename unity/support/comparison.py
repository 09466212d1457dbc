"""A comparison of planners on models, entry by entry, and its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
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
"""The folder of the plans in the folder of a comparison."""


class StepParts(FileModel):
    """Seconds of the busiest device in a step. ``computing``, ``exposed`` and ``idle`` add up to
    the step. ``hidden`` is communication while the device computes."""

    computing: float
    exposed: float
    """Communication while the device does not compute."""
    idle: float
    hidden: float


class Prediction(FileModel):
    """The prediction of one planner for a model and a number of devices."""

    model: str
    planner: str
    devices: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    """Samples of a step, on all devices together."""
    step_seconds: float | None
    """None where no plan fits."""
    samples_per_second: float | None
    memory_bytes: int | None
    """On the fullest device."""
    search_seconds: float
    norm_groups: Annotated[int, Field(ge=1)] = 1
    """The groups of samples over which batch norms take statistics, for all planners."""
    problem: str | None = None
    """Why there is no plan."""
    parts: StepParts | None = None
    """The parts of the step."""
    plan: str | None = None
    """The path of the plan file, relative to the comparison file."""


class ComparisonFile(FileModel):
    schema_version: Literal[1]
    machine: str
    machine_hash: str
    library_hash: str
    entries: tuple[Prediction, ...]


@dataclass(frozen=True)
class ComparisonQuestion:
    """The task of a comparison: every model on every number of devices by every planner."""

    machine: Machine
    """With any number of nodes."""
    library: Library
    models: Sequence[str]
    devices: Sequence[int]
    planners: Sequence[str]
    batch: int | None = None
    """The global batch; None for a batch that grows with the devices."""
    seconds: float = 600.0
    """For each search."""
    speed: Speed | None = None
    batch_norm: str = WHOLE
    """As ``--batch-norm`` says it."""
    precision: str | None = None
    """As ``--precision`` says it."""
    mesh: str | None = None
    """The named axes of ``gspmd``. They have to fit all numbers of devices."""
    shards: tuple[str, ...] = ()
    """The annotations of ``gspmd``."""

    def check(self) -> None:
        """Raise InputError for a number of devices or a batch that cannot be planned, and for
        annotations that no planner reads."""
        for option, given in (("--mesh", self.mesh), ("--shard", self.shards)):
            if given and "gspmd" not in self.planners:
                raise InputError(
                    option, "only the planner gspmd reads it, expected --planners with gspmd"
                )
        for devices in self.devices:
            norm_groups(self.batch_norm, "", devices)
            check_devices("--gpus", devices)
            check_batch(self.batch, devices)

    @cached_property
    def stems(self) -> Mapping[str, str]:
        """The name of each model as the beginning of its files' names."""
        return file_stems(self.models)

    def entries(self, folder: Path) -> Iterator[Prediction]:
        """Yield one prediction after the other, and write its plan below ``folder``. Raises
        InputError for an unknown model."""
        for model in self.models:
            for devices in self.devices:
                target = first_devices(self.machine, devices)
                groups = norm_groups(self.batch_norm, "", devices)
                graph = build_model(model, self.batch, devices, groups)
                # The library keeps these rules, so that the first planner does not pay for them.
                tuple(self.library.concrete(graph))
                for planner in self.planners:
                    entry, plan = self._entry(model, graph, target, planner)
                    yield entry if plan is None else self._kept(entry, plan, target, folder)

    def _entry(
        self, model: str, graph: Graph, target: Machine, planner: str
    ) -> tuple[Prediction, Plan | None]:
        """Return the prediction of a planner, and its plan if there is one."""
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
            raise KeyboardInterrupt  # this search is incomplete: end the whole comparison
        return planned.plan

    def _kept(self, entry: Prediction, plan: Plan, target: Machine, folder: Path) -> Prediction:
        """Write the plan, and return the entry with the path and the parts of the step."""
        path = Path(PLANS) / f"{self.stems[entry.model]}-{entry.devices}-{entry.planner}.json"
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
        """Write a comparison file, as a whole or not at all."""
        content = ComparisonFile(
            schema_version=1,
            machine=self.machine.name,
            machine_hash=self.machine.hash(),
            library_hash=self.library.hash,
            entries=tuple(entries),
        )
        write_text_atomic(path, content.model_dump_json(indent=1) + "\n")


def file_stems(models: Iterable[str]) -> dict[str, str]:
    """Return the name of each model, or of a user's FILE.py:FUNCTION, as the name of a file. A
    model whose name would be that of an earlier one gets a number."""
    stems: dict[str, str] = {}
    for model in dict.fromkeys(models):
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in model).strip("-.")
        stem = stem or "model"
        numbered = (f"{stem}-{number}" for number in count(2))
        stems[model] = next(s for s in chain((stem,), numbered) if s not in stems.values())
    return stems


def first_devices(machine: Machine, devices: int) -> Machine:
    """Return a machine with this number of devices. The last node may be used in part."""
    nodes = -(-devices // machine.devices_per_node)
    return machine.with_nodes(nodes).with_devices(devices)


def samples(graph: Graph) -> int:
    """Return the samples of a step: the most common first dimension of inputs."""
    shapes = [leaf.leaf.type.shape for leaf in graph.leaves if leaf.leaf.type]
    kinds = [leaf.leaf.kind for leaf in graph.leaves if leaf.leaf.type]
    first = [s[0] for s, kind in zip(shapes, kinds, strict=True) if s and kind == "input"]
    return max(first, key=first.count) if first else 1


def over_others(entry: Prediction, entries: Sequence[Prediction]) -> float | None:
    """Return how many times as fast an entry is as the best of the other planners for the same
    model and devices. None if the entry or the others have no plan."""
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
    """Return the numbers of devices of an option such as ``6,12,24``, ascending, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InputError("--gpus", f"expected numbers of devices such as 6,12,24, got {text!r}")
    return tuple(sorted({int(word) for word in words}))


def planners(text: str) -> tuple[str, ...]:
    """Return the planners of an option such as ``data-parallel,joint``, in order, each once."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in PLANNER_NAMES:
            expected = ", ".join(PLANNER_NAMES)
            raise InputError("--planners", f"expected some of {expected}, got {name!r}")
    return names
