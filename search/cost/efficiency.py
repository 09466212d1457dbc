"""Seconds of operators on a device: by a roofline with efficiency curves, or by a profile.

The roofline (Williams, Waterman and Patterson, CACM 2009) is the limit of large operators, which
reach a fraction of both peaks. ``efficiency.toml`` holds the curves and their sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from pcg.device import Device, DType, Efficiency
from pcg.files import FileModel, read_toml
from pcg.plan.profile import Point, Profile
from pcg.readings.kind import WorkKind

Array = NDArray[np.float64]

PRODUCTS: frozenset[WorkKind] = frozenset({"contraction", "attention"})
"""The kinds of work that matrix units do."""
LIKE: Mapping[WorkKind, WorkKind] = {"update": "pointwise", "attention": "contraction"}
"""For a kind of work that was not measured, the kind whose measurements are used."""

_FILE = Path(__file__).with_name("efficiency.toml")


class Curve(FileModel):
    """The fraction of a peak rate that a kind of device reaches."""

    device: Literal["gpu", "cpu"]
    bound: Literal["flops", "bytes"]
    top: Annotated[float, Field(gt=0, le=1)]
    """The fraction that large operators reach."""
    half_seconds: Annotated[float, Field(ge=0)]
    """The time at peak rate of an operator that reaches half of ``top``, in seconds."""


class CurvesFile(FileModel):
    schema_version: Literal[1]
    curves: tuple[Curve, ...] = Field(alias="curve")


class Speed(Protocol):
    """The speed of devices."""

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """Seconds of operators that are launched one by one. ``flops`` and ``moved``: operations
        and bytes of each, as arrays of one shape, or numbers.
        """
        ...


@dataclass(frozen=True)
class Roofline:
    """The latency of a launch, plus the longer of arithmetic and memory traffic.

    If a device states the efficiency that was measured, this is used; otherwise the curves. A
    device without either runs at its peak.
    """

    curves: Mapping[tuple[str, str], Curve]
    """By kind of device and by "flops" or "bytes"."""
    at_peak: bool = False
    """Whether all devices run at their peak, whatever was measured."""

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """See ``Speed``. Only products run on matrix units and follow a curve of operations."""
        matrix = kind in PRODUCTS
        arithmetic = np.asarray(flops, np.float64) / _rate(device, dtype, matrix)
        traffic = np.asarray(moved, np.float64) / device.memory_bandwidth
        if matrix and (curve := self._curve(device, "flops", (kind, "contraction"), dtype)):
            arithmetic = _slowed(curve, arithmetic)
        moving = ("pointwise",) if matrix else (kind, "pointwise")
        if curve := self._curve(device, "bytes", moving, dtype):
            traffic = _slowed(curve, traffic)
        return device.slowdown * (device.kernel_latency + np.maximum(arithmetic, traffic))

    def _curve(
        self, device: Device, bound: str, kinds: Iterable[WorkKind], dtype: DType
    ) -> Curve | Efficiency | None:
        """The measured efficiency of the first of ``kinds`` that was measured, or else the
        curve."""
        if self.at_peak:
            return None
        measured = (device.measured_efficiency(kind, dtype) for kind in kinds)
        known = next((efficiency for efficiency in measured if efficiency is not None), None)
        return self.curves.get((device.kind, bound)) if known is None else known


def _slowed(curve: Curve | Efficiency, at_peak: Array) -> Array:
    """The time that results from the time at peak rate; 0 for 0."""
    return np.where(at_peak > 0, curve.half_seconds + at_peak, 0.0) / curve.top


PLAIN = Roofline({}, at_peak=True)
"""Peak rates for operators of all sizes."""


@lru_cache(maxsize=1)
def standard() -> Roofline:
    """The efficiency curves that come with Unity."""
    curves = read_toml(_FILE, CurvesFile).curves
    return Roofline({(curve.device, curve.bound): curve for curve in curves})


@dataclass(frozen=True)
class MeasuredEfficiency:
    """The times of a profile, for devices such as the one that was measured.

    Between two points, seconds are a power of the size. Below the first point they are constant.
    Above the last point they are proportional to the size. A point that took less than a smaller
    one is taken to take as long as that.
    """

    profile: Profile
    device: Device
    otherwise: Speed

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """See ``Speed``. A contraction takes no less than a pointwise operator with as many bytes.
        Other operators take no less than their arithmetic, if that was measured."""
        points = self.profile.series(kind, dtype)
        if points is None and kind in LIKE:
            points = self.profile.series(LIKE[kind], dtype)
        if points is None or device != self.device:
            return self.otherwise.seconds(kind, device, dtype, flops, moved)
        if kind not in PRODUCTS:
            measured, known = _interpolated(points, moved), self.profile.series("function", dtype)
            return measured if known is None else np.maximum(measured, _interpolated(known, flops))
        measured = _interpolated(points, flops)
        copied = self.profile.series("pointwise", dtype)
        return measured if copied is None else np.maximum(measured, _interpolated(copied, moved))


def _interpolated(points: tuple[Point, ...], size: ArrayLike) -> Array:
    sizes = np.array([point.size for point in points])
    seconds = np.maximum.accumulate(np.array([point.seconds for point in points]))
    wanted = np.maximum(np.asarray(size, np.float64), sizes[0])
    between = np.exp(np.interp(np.log(wanted), np.log(sizes), np.log(seconds)))
    return between * np.maximum(wanted / sizes[-1], 1.0)


def _rate(device: Device, dtype: DType, matrix: bool) -> float:
    """The peak rate in FLOP/s. Only contractions use the matrix units of narrow formats."""
    if matrix or dtype == "float64":
        return device.flops.rate(dtype)
    return device.flops.float32
