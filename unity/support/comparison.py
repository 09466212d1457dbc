"""A comparison of planners on models, entry by entry, and its file, complete at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

from pydantic import Field

from pcg.errors import InputError, NegativeAnswer
from pcg.files import FileModel, write_text_atomic
from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.models import build_model
from pcg.plan.statistics import groups_of
from search.choices import PLANNER_NAMES
from search.cost.efficiency import Speed
from substitutions.rules.store import Library
from unity.support.batch_norm import WHOLE, norm_groups
from unity.support.limits import check_batch, check_devices
from unity.support.planners import SearchOptions, asked_training, planner_of


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

    def entries(self) -> Iterator[Prediction]:
        """One answer after the other. Raises InputError for a model that there is not."""
        for model in self.models:
            for devices in self.devices:
                target = first_devices(self.machine, devices)
                groups = norm_groups(self.batch_norm, "", devices)
                graph = build_model(model, self.batch, devices, groups)
                self.library.concrete(graph)  # kept, so that the first planner is not charged
                for planner in self.planners:
                    yield self._entry(model, graph, target, planner)

    def _entry(self, model: str, graph: Graph, target: Machine, planner: str) -> Prediction:
        start = perf_counter()
        batch = samples(graph)
        training = asked_training(model, None, self.precision, target)
        estimates, problem = None, None
        try:
            given = planner, target, self.library, self.seconds, training, self.speed
            asked = SearchOptions(mesh=self.mesh, shards=self.shards)
            planned = planner_of(*given, asked).plan(model, graph)
            if planned.report.stop == "interrupted":
                raise KeyboardInterrupt  # of all that is compared: this search is not done
            estimates = planned.plan.estimates
        except NegativeAnswer as error:
            problem = str(error)
        return Prediction(
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
