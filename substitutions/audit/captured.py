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
    """The names of the graph's leaves in the module."""
    statistics: tuple[RunningFile, ...] = ()
    """The running statistics that the module keeps."""
    norm_groups: int = 1
    """The number of groups of samples in which batch norms take their statistics."""


def prepare() -> None:
    """Import the modules that a capture needs and that take seconds to import, ahead of it."""
    import_module("torch._dynamo")  # Else torch.export would import it later.


def captured(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> CapturedModel:
    """Capture a model at a global batch. Raises InputError if there is no such model, or it cannot
    have so many groups."""
    model = capture_model(name, batch, devices, norm_groups)
    lines = tuple(print_graph(model.graph).splitlines())
    return CapturedModel(
        model.graph.digest, lines, model.naming, model.statistics, model.norm_groups
    )
