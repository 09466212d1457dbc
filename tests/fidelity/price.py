"""Price published plans as the planner by hand does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from fidelity.data import Point
from fidelity.models import Model, decoder_of

from pcg.capture import capture
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.plan.training import Training
from search.by_hand.planner import HandPlan, HandPlanner
from substitutions.rules.store import load_library

TRAINING = Training("adam", "bf16", compiled=True)
"""Mixed precision, in fp16 where a run says so, and fused kernels: of biases, activations, dropout
and residual sums in Megatron and with torch.compile alike."""


@dataclass(frozen=True)
class Priced:
    """What a published step is predicted to take."""

    point: Point
    seconds: float
    memory: int

    @property
    def error(self) -> float:
        """Of the prediction; negative where it is too fast."""
        return self.seconds / self.point.seconds - 1

    @property
    def memory_error(self) -> float | None:
        """Of the predicted memory, where some is published."""
        published = self.point.memory
        return None if published is None else self.memory / published - 1

    @property
    def is_refused(self) -> bool:
        """Whether what ran is predicted not to fit."""
        return self.memory > load_machine(self.point.machine).memory_limit()


def priced(point: Point) -> Priced:
    """The published plan of a point, priced on its machine."""
    plan = made(point, overlaps=point.overlaps)
    return Priced(point, plan.seconds, plan.memory)


def made(point: Point, *, overlaps: bool) -> HandPlan:
    """The published plan of a point. ``overlaps``: whether communication is beside computation."""
    planner = HandPlanner(
        machine_of(point), load_library(), point.degrees, training_of(point), overlaps=overlaps
    )
    return planner.made(graph_of(point.model, point.batch))


def machine_of(point: Point) -> Machine:
    """The GPUs that a point was measured on."""
    machine = load_machine(point.machine)
    machine = machine.with_nodes(-(-point.gpus // machine.devices_per_node))
    return machine.with_devices(point.gpus)


def training_of(point: Point) -> Training:
    """How a point was trained."""
    return replace(TRAINING, precision=point.precision)


@lru_cache(maxsize=2)
def graph_of(model: Model, batch: int) -> Graph:
    """A model as it is captured, without weights."""
    with torch.device("meta"):
        module = decoder_of(model)
        ids = torch.zeros(batch, model.sequence, dtype=torch.long)
    return capture(module, (ids, ids)).graph
