"""One device of a machine: its peak rates, its memory, and its measured efficiency."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from pcg.files import FileModel

DeviceKind: TypeAlias = Literal["gpu", "cpu"]
DType: TypeAlias = Literal["float64", "float32", "tf32", "bf16", "fp16"]
LEAST, MOST = 1e-12, 1e24  # of rates and times; beyond, their sums would not be finite


def _in_range(value: float) -> float:
    if not LEAST <= value <= MOST:
        raise ValueError(f"expected {LEAST:g} to {MOST:g}, got {value:g}")
    return value


Positive: TypeAlias = Annotated[float, Field(gt=0), AfterValidator(_in_range)]
Latency: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]
"""Latency in seconds."""


class Flops(FileModel):
    """The peak rate of one device for each number format, in floating-point operations a second."""

    float64: Positive
    float32: Positive
    tf32: Positive | None = None
    bf16: Positive | None = None
    fp16: Positive | None = None

    def rate(self, dtype: DType) -> float:
        """Return the rate for `dtype` in FLOP/s, or that of float32 if the device lacks `dtype`."""
        peak: float | None = getattr(self, dtype)
        return self.float32 if peak is None else peak


class Efficiency(FileModel):
    """The measured fraction of a peak rate that a kind of work reaches: of the device's FLOP/s for
    matrix products and attention, and of its memory bandwidth for all others."""

    work: Literal["contraction", "attention", "reduction", "pointwise", "update"]
    format: DType | None = None
    """The number format of products for which it holds. None means all formats."""
    top: Annotated[float, Field(gt=0, le=1)]
    """The fraction that large operators reach."""
    half_seconds: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The time, at the peak rate, of an operator that reaches half of ``top``."""


class Device(FileModel):
    """One device of a machine."""

    kind: DeviceKind
    flops: Flops
    memory_bytes: Annotated[int, Field(gt=0, le=1 << 60)]
    """All memory that a process sees, including memory that it cannot use for tensors."""
    memory_bandwidth: Positive
    """Bytes a second between the device and its own memory."""
    kernel_latency: Latency
    """Seconds that every launched operator takes, whatever its size."""
    efficiency: Annotated[tuple[Efficiency, ...], Field(strict=False, max_length=64)] = ()
    """Measured efficiencies. Other kinds of work have curves that come with Unity."""
    slowdown: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    """The factor by which operators are slower in a training step than measured alone."""
    reserved_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory taken by a context and by communication libraries."""

    @model_validator(mode="after")
    def _check_reserve(self) -> Self:
        if self.reserved_bytes >= self.memory_bytes:
            raise ValueError(
                f"reserved_bytes: expected less than the {self.memory_bytes} of memory_bytes, "
                f"got {self.reserved_bytes}"
            )
        return self

    @property
    def usable_bytes(self) -> int:
        """The memory that is left for tensors."""
        return self.memory_bytes - self.reserved_bytes

    def measured_efficiency(self, work: str, dtype: DType) -> Efficiency | None:
        """Return the measured efficiency of a kind of work, for this format or else for any."""
        entries = [
            entry
            for entry in self.efficiency
            if entry.work == work and entry.format in (dtype, None)
        ]
        return max(entries, key=lambda entry: entry.format is not None, default=None)
