"""The published points, read and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fidelity.models import KINDS, Model
from fidelity.resnet import ResNet
from pydantic import Field

from pcg.errors import InputError
from pcg.files import FileModel, read_toml
from pcg.plan.precision import Precision
from pcg.plan.training import Optimizer
from search.by_hand.degrees import HandDegrees, parse_degrees

POINTS = Path(__file__).with_name("points.toml")

Measured = Literal["seconds", "tflops", "tokens", "samples"]


class RunFile(FileModel):
    """Points of one source on one machine."""

    name: str
    source: str
    machine: str
    measured: Measured
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    compiled: bool = True
    """Whether element-wise work is fused."""
    shares_updates: bool = False
    """Whether data-parallel GPUs divide gradients, wide weights and states among them."""
    reserves: bool = False
    """Whether the published memory is the bytes that torch's allocator reserved, instead of the
    bytes of tensors."""
    architecture: Literal["gpt", "llama", "bert", "resnet"] = "gpt"
    overlaps: bool = True
    """Whether the system runs communication beside computation."""
    memory_bytes: int | None = None
    """The memory of the GPUs, if it differs from the machine's."""
    memory_bandwidth: float | None = None
    """The memory bandwidth of the GPUs, if it differs from the machine's."""
    model: dict[str, int | float | bool | tuple[int, ...]] = Field(strict=False)
    """The properties that all models of the file have."""
    columns: tuple[str, ...] = Field(strict=False)
    calibrates: tuple[str, ...] = Field(strict=False)
    """Models that calibrate, each with its sequence length if one is given."""
    calibrated_on: int = 1 << 20
    """The largest number of GPUs of points that calibrate."""
    points: tuple[tuple[str | int | float | bool, ...], ...] = Field(strict=False)


class PointsFile(FileModel):
    runs: tuple[RunFile, ...] = Field(alias="run", strict=False)


@dataclass(frozen=True)
class Point:
    """A measured step."""

    run: str
    name: str
    machine: str
    gpus: int
    model: Model
    batch: int
    degrees: HandDegrees
    seconds: float
    memory: float | None
    """Bytes on a GPU, if the source gives them."""
    precision: Precision
    overlaps: bool
    calibrates: bool
    optimizer: Optimizer = "adam"
    compiled: bool = True
    shares_updates: bool = False
    memory_bytes: int | None = None
    memory_bandwidth: float | None = None
    reserves: bool = False


def points() -> list[Point]:
    """All points, in the order of the file."""
    return [point for run in read_toml(POINTS, PointsFile).runs for point in _points(run)]


def _points(run: RunFile) -> Iterator[Point]:
    for values in run.points:
        row: dict[str, Any] = dict(zip(run.columns, values, strict=True))
        sizes = ("layers", "hidden", "heads", "groups", "inner", "sequence", "vocabulary", "masked")
        parts: dict[str, Any] = {**run.model, **{name: row[name] for name in sizes if name in row}}
        model = KINDS[run.architecture](**parts)
        name = f"{row['model']} {row['sequence']}" if "sequence" in row else str(row["model"])
        degrees, batch = _plan(row)
        yield Point(
            run.name,
            name,
            run.machine,
            row["gpus"],
            model,
            batch,
            degrees,
            _seconds(run.measured, row["value"], model, batch, row["gpus"]),
            row["gigabytes"] * 1e9 if "gigabytes" in row else None,
            row.get("precision", run.precision),
            run.overlaps,
            name in run.calibrates and row["gpus"] <= run.calibrated_on,
            run.optimizer,
            row.get("compiled", run.compiled),
            run.shares_updates,
            run.memory_bytes,
            run.memory_bandwidth,
            run.reserves,
        )


def _plan(row: Mapping[str, Any]) -> tuple[HandDegrees, int]:
    """The parallelization of a point, and its global batch."""
    if "degrees" in row:
        return parse_degrees(row["degrees"]), row["batch"]
    batches, recompute = row["micro_batches"], "full" if row["checkpointed"] else "none"
    degrees = HandDegrees(micro_batches=batches, sharded=True, recompute=recompute)
    return degrees, row["gpus"] * row["micro_batch"] * batches


def _seconds(measured: Measured, value: float, model: Model, batch: int, gpus: int) -> float:
    """Seconds of a step, from the figures of a source."""
    if measured == "seconds":
        return value
    if measured == "samples":
        return batch / value
    if isinstance(model, ResNet):
        raise InputError(str(POINTS), f"{measured} of a model without tokens, expected samples")
    tokens = batch * model.sequence
    if measured == "tokens":
        return tokens / (value * gpus)
    h, s, v, layers = model.hidden, model.sequence, model.vocabulary, model.layers
    flops = 96 * tokens * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    return flops / (value * 1e12 * gpus)


def held_out(every: Sequence[Point]) -> list[Point]:
    """The points to which nothing is fitted."""
    return [point for point in every if not point.calibrates]
