"""Seconds of operators on a device: by a roofline with efficiency curves, or by a profile.

The roofline (Williams, Waterman and Patterson, CACM 2009) is the limit for large operators, up to a
fraction of both peaks; ``efficiency.toml`` has the curves and where they come from.
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
"""Work that matrix units do."""
LIKE: Mapping[WorkKind, WorkKind] = {"update": "pointwise", "attention": "contraction"}
"""What stands for a kind of work that was not measured."""

_FILE = Path(__file__).with_name("efficiency.toml")


class Curve(FileModel):
    """What a kind of device reaches of a peak rate."""

    device: Literal["gpu", "cpu"]
    bound: Literal["flops", "bytes"]
    top: Annotated[float, Field(gt=0, le=1)]
    """The fraction that is reached by large operators."""
    half_seconds: Annotated[float, Field(ge=0)]
    """How long an operator takes at the peak rate that reaches half of ``top``."""


class CurvesFile(FileModel):
    schema_version: Literal[1]
    curves: tuple[Curve, ...] = Field(alias="curve")


class Speed(Protocol):
    """How fast devices are."""

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """Seconds of operators launched one by one, each with so many operations and bytes.

        ``flops`` and ``moved`` are arrays of one shape, or numbers.
        """
        ...


@dataclass(frozen=True)
class Roofline:
    """The longer of arithmetic and memory traffic, and the latency of a launch.

    What a device says that it was measured to reach comes first, then curves; without either, it
    runs at its peak.
    """

    curves: Mapping[tuple[str, str], Curve]
    """By kind of device, and "flops" or "bytes"."""
    at_peak: bool = False
    """Whether all devices run at their peak, whatever was measured."""

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """As ``Speed`` says. Only products run on matrix units and follow a curve of flops."""
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
        """What is known of the first of some kinds of work."""
        if self.at_peak:
            return None
        measured = (device.measured_efficiency(kind, dtype) for kind in kinds)
        known = next((one for one in measured if one is not None), None)
        return self.curves.get((device.kind, bound)) if known is None else known


def _slowed(curve: Curve | Efficiency, at_peak: Array) -> Array:
    """From the time at the peak rate to the time that it takes; nothing takes none."""
    return np.where(at_peak > 0, curve.half_seconds + at_peak, 0.0) / curve.top


PLAIN = Roofline({}, at_peak=True)
"""Peak rates at all sizes."""


@lru_cache(maxsize=1)
def standard() -> Roofline:
    """The curves that come with Unity."""
    curves = read_toml(_FILE, CurvesFile).curves
    return Roofline({(curve.device, curve.bound): curve for curve in curves})


@dataclass(frozen=True)
class MeasuredEfficiency:
    """Times of a profile, where it has them, for devices such as the one that was measured.

    Between two points seconds are a power of the size; below the first they are its, above the last
    they grow with the size. A point that took less than a smaller one is taken to take as long.
    """

    profile: Profile
    device: Device
    otherwise: Speed

    def seconds(
        self, kind: WorkKind, device: Device, dtype: DType, flops: ArrayLike, moved: ArrayLike
    ) -> Array:
        """As ``Speed`` says. A contraction takes no less than a pointwise operator that reads and
        writes as many bytes, and other operators no less than their arithmetic, if those were
        measured."""
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
    """FLOP/s; what is no contraction has no use for the matrix units of narrow formats."""
    if matrix or dtype == "float64":
        return device.flops.rate(dtype)
    return device.flops.float32
