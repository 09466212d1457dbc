"""The schema of the plan file, as pydantic models with the range of each entry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcg.device import DeviceKind
from pcg.files import FileModel, GrownFileModel, Name
from pcg.plan.naming import NamingFile
from pcg.plan.pipeline import PipelineFile
from pcg.plan.precision import Precision
from pcg.plan.statistics import RunningFile
from pcg.plan.training import Optimizer

Count = Annotated[int, Field(ge=1, le=1 << 20)]
DeviceNumber = Annotated[int, Field(ge=0, le=1 << 20)]
Whole = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
"""No size, degree, number of elements or bytes is larger."""
Amount = Annotated[int, Field(ge=0, le=1 << 62)]
Seconds = Annotated[float, Field(ge=0, le=1e36)]
MAX_AXES = 64
Lines = Annotated[tuple[str, ...], Field(strict=False, max_length=1 << 16)]
"""The lines of a graph's text."""


class ViewFile(FileModel):
    start: DeviceNumber
    shape: tuple[Count, ...] = Field(strict=False, max_length=MAX_AXES)
    strides: tuple[DeviceNumber, ...] = Field(strict=False, max_length=MAX_AXES)


class ModelFile(FileModel):
    name: Name
    graph: Lines
    hash: Name


class MachineFile(FileModel):
    name: Name
    kind: DeviceKind
    devices: Count
    hash: Name


Symbol = Whole | float
"""The value of a rule's symbol: a degree, a size, or a real attribute."""


class StepRule(FileModel):
    """A rule of the library in the form in which steps apply it."""

    rule: Name
    """The name of the rule in the library."""
    axes: tuple[Annotated[int, Field(ge=0, le=MAX_AXES)], ...] = Field(
        strict=False, max_length=MAX_AXES
    )
    """The number of axes in the place of each of its runs. Empty if the rule is applied as
    written."""
    operators: tuple[Name, ...] = Field(strict=False, max_length=MAX_AXES)
    """The operators in the place of its stand-ins."""
    reversed: bool
    """Whether it is applied from right to left."""
    text: str
    """The text of the form, so that a plan can be read without the library."""


class StepFile(FileModel):
    """One step of the derivation (``Application``)."""

    rule: Name
    at: tuple[Name, ...] = Field(strict=False)
    inputs: tuple[Name, ...] = Field(strict=False)
    symbols: dict[Name, Symbol]


class DecisionsFile(GrownFileModel):
    """The decisions of the search."""

    ADDED = frozenset({"precision", "compiled", "order"})

    graph: Lines
    views: dict[Name, ViewFile]
    rules: dict[Name, StepRule]
    derivation: tuple[StepFile, ...] = Field(strict=False)
    optimizer: Optimizer = "sgd"
    recompute: tuple[Name, ...] = Field(strict=False, default=())
    """Operators whose results are computed again for the backward pass, and parallel operators
    whose results are communicated again."""
    pipeline: PipelineFile | None = None
    precision: Precision = "fp32"
    compiled: bool = False
    """Whether operators between two reshardings are compiled."""
    order: tuple[Name, ...] = Field(strict=False, default=())
    """The computing operators in the order of issue (``pcg.placement.order``), if that is not the
    order of the graph. Every one is listed."""


class EstimatesFile(FileModel):
    step_seconds: Seconds
    one_device_seconds: Seconds
    communication_elements: Amount
    peak_memory_bytes: Amount
    """The peak on the device that holds most."""


class PlanFile(FileModel):
    schema_version: Literal[4]
    model: ModelFile
    machine: MachineFile
    library_hash: Name
    decisions: DecisionsFile
    estimates: EstimatesFile
    hashes: dict[Name, Name]
    """Hashes of all parts of the file as it was written, by path (``altered_parts``)."""
    naming: NamingFile | None = None
    statistics: Annotated[tuple[RunningFile, ...] | None, Field(strict=False)] = None
    norm_groups: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    """The number of groups of samples over which the model's batch norms take their statistics. By
    default one group, the whole batch."""
