"""Price published plans as the planner of plans by hand does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from fidelity.data import Point
from fidelity.models import Model, module_of
from fidelity.reserved import reserved_bytes
from fidelity.resnet import ResNet

from pcg.capture import capture
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.plan.training import Training
from search.by_hand.planner import HandPlan, HandPlanner
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.pipeline.built.price import StageGroups, fullest
from substitutions.rules.store import load_library

TRAINING = Training("adam", "bf16", compiled=True)
"""Mixed precision and fused kernels: of biases, activations, dropout and residual sums, both in
Megatron and with torch.compile. Runs state their differences."""


@dataclass(frozen=True)
class Priced:
    """The prediction for a published step."""

    point: Point
    seconds: float
    memory: int
    reserved: int | None = None
    """The predicted bytes that torch's allocator reserves, if these are published."""

    @property
    def error(self) -> float:
        """The relative error of the predicted seconds. Negative if the prediction is too fast."""
        return self.seconds / self.point.seconds - 1

    @property
    def memory_error(self) -> float | None:
        """The relative error of the predicted memory, if memory is published."""
        published = self.point.memory
        predicted = self.memory if self.reserved is None else self.reserved
        return None if published is None else predicted / published - 1

    @property
    def is_refused(self) -> bool:
        """Whether the measured plan is predicted not to fit."""
        return self.memory > machine_of(self.point).memory_limit()


def priced(point: Point) -> Priced:
    """The published plan of a point, priced on its machine."""
    plan = made(point, overlaps=point.overlaps)
    spared = _divided(point, plan) if point.shares_updates else 0
    reserved = _reserved(point, plan) if point.reserves else None
    return Priced(point, plan.seconds, plan.memory - spared, reserved)


def of_two_recomputations(every: Sequence[Priced]) -> list[tuple[Priced, Priced]]:
    """The steps with full recomputation, each beside the step of the same model on the same GPUs
    with selective recomputation."""
    selective = {
        _job(one.point): one for one in every if one.point.degrees.recompute == "selective"
    }
    full = (one for one in every if one.point.degrees.recompute == "full")
    return [(one, selective[_job(one.point)]) for one in full if _job(one.point) in selective]


def _job(point: Point) -> tuple[str, str, int]:
    return point.run, point.name, point.gpus


def made(point: Point, *, overlaps: bool) -> HandPlan:
    """The published plan of a point. ``overlaps``: whether communication runs beside
    computation."""
    planner = HandPlanner(
        machine_of(point), load_library(), point.degrees, training_of(point), overlaps=overlaps
    )
    return planner.priced(graph_of_point(point))


def machine_of(point: Point) -> Machine:
    """The GPUs that a point was measured on."""
    machine = load_machine(point.machine)
    named = {"memory_bytes": point.memory_bytes, "memory_bandwidth": point.memory_bandwidth}
    own = {name: value for name, value in named.items() if value is not None}
    machine = machine.model_copy(update={"device": machine.device.model_copy(update=own)})
    machine = machine.with_nodes(-(-point.gpus // machine.devices_per_node))
    return machine.with_devices(point.gpus)


def training_of(point: Point) -> Training:
    """The training of a point."""
    return Training(point.optimizer, point.precision, point.compiled)


def graph_of_point(point: Point) -> Graph:
    """The graph of a point. Data-parallel GPUs each take statistics of their own samples, as
    DistributedDataParallel does."""
    groups = point.degrees.data(point.gpus) if isinstance(point.model, ResNet) else 1
    return graph_of(point.model, point.batch, groups)


@lru_cache(maxsize=2)
def graph_of(model: Model, batch: int, norm_groups: int = 1) -> Graph:
    """The graph of a model, captured without weights. Its batch norms take statistics of ``groups``
    groups of samples."""
    with torch.device("meta"):
        module, inputs = module_of(model, batch)
    return capture(module, inputs, norm_groups=norm_groups).graph


def _reserved(point: Point, plan: HandPlan) -> int:
    """The bytes that torch's allocator reserves for a plan."""
    selects = point.degrees.recompute == "alternate"
    return reserved_bytes(graph_of_point(point), plan, training_of(point), selects=selects)


def _divided(point: Point, plan: HandPlan) -> int:
    """The bytes that the fullest GPU saves because data-parallel GPUs divide gradients, wide
    weights and states."""
    training, data = training_of(point), point.degrees.data(point.gpus)
    of = point.degrees
    if of.pipeline > 1 or of.micro_batches > 1:
        groups = StageGroups(
            of.pipeline, point.gpus // of.pipeline, of.micro_batches, of.interleave
        )
        cost = CostModel(machine_of(point), training)
        held = fullest(plan.steps, cost, groups, "1f1b", plan.recompute)
    else:
        held = peak_memory(plan.steps, training, plan.recompute)
    elements = held.parameters // training.parameter_bytes
    wide = held.parameters - elements * training.formats.copy
    return (wide + held.gradients + held.optimizer) * (data - 1) // data
