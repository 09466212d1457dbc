"""A model captured again, in a form that can be sent between processes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from pcg.models import capture_model
from pcg.plan.naming import NamingFile
from pcg.plan.statistics import RunningFile
from pcg.plan.text import print_graph


@dataclass(frozen=True)
class CapturedModel:
    """A model as it is captured, in a form that can be sent between processes."""

    digest: str
    lines: tuple[str, ...]
    naming: NamingFile
    """What its leaves are called in the module."""
    statistics: tuple[RunningFile, ...] = ()
    """The running statistics that the module keeps."""
    norm_groups: int = 1
    """In how many groups of samples its batch norms take their statistics."""


def prepare() -> None:
    """Import what a capture takes seconds to import, before it is known what to capture."""
    import_module("torch._dynamo")  # or torch.export would, later


def captured(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> CapturedModel:
    """A model's graph at a global batch, and its leaves' names. Raises InputError where there is no
    such model, or it has no such groups."""
    model = capture_model(name, batch, devices, norm_groups)
    lines = tuple(print_graph(model.graph).splitlines())
    return CapturedModel(
        model.graph.digest, lines, model.naming, model.statistics, model.norm_groups
    )
