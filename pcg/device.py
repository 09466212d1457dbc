"""One device of a machine: its rates, its memory, and what it was measured to reach of them."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from pcg.files import FileModel

DeviceKind: TypeAlias = Literal["gpu", "cpu"]
DType: TypeAlias = Literal["float64", "float32", "tf32", "bf16", "fp16"]
LEAST, MOST = 1e-12, 1e24  # of rates and times; beyond, sums of them would be no numbers


def _in_range(value: float) -> float:
    if not LEAST <= value <= MOST:
        raise ValueError(f"expected {LEAST:g} to {MOST:g}, got {value:g}")
    return value


Positive: TypeAlias = Annotated[float, Field(gt=0), AfterValidator(_in_range)]
Latency: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds."""


class Flops(FileModel):
    """Peak rate of one device for each number format, in floating-point operations a second."""

    float64: Positive
    float32: Positive
    tf32: Positive | None = None
    bf16: Positive | None = None
    fp16: Positive | None = None

    def rate(self, dtype: DType) -> float:
        """Return the rate for `dtype`, in FLOP/s; float32's where the device lacks the format."""
        own: float | None = getattr(self, dtype)
        return self.float32 if own is None else own


class Efficiency(FileModel):
    """What a device was measured to reach of a peak rate by one kind of work: of its FLOP/s by
    products of matrices and attention, of its memory bandwidth by all others."""

    work: Literal["contraction", "attention", "reduction", "pointwise", "update"]
    format: DType | None = None
    """The number format of products for which it holds; any without one."""
    top: Annotated[float, Field(gt=0, le=1)]
    """The fraction that is reached by large operators."""
    half_seconds: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How long an operator takes at the peak rate that reaches half of ``top``."""


class Device(FileModel):
    """One device."""

    kind: DeviceKind
    flops: Flops
    memory_bytes: Annotated[int, Field(gt=0, le=1 << 60)]
    """All that a process finds, what it cannot use for tensors among it."""
    memory_bandwidth: Positive
    """Bytes a second between the device and its own memory."""
    kernel_latency: Latency
    """Seconds that every launched operator takes, whatever its size."""
    efficiency: Annotated[tuple[Efficiency, ...], Field(strict=False, max_length=64)] = ()
    """What was measured; for other kinds of work, curves that come with Unity."""
    slowdown: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    """By how much operators in a training step take longer than when they were measured alone."""
    reserved_bytes: Annotated[int, Field(ge=0)] = 0
    """What a context and libraries of communication take of the memory."""

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
        """What is left of the memory for tensors."""
        return self.memory_bytes - self.reserved_bytes

    def reached(self, work: str, dtype: DType) -> Efficiency | None:
        """What was measured of a kind of work in a number format: for that format, else for any."""
        known = [one for one in self.efficiency if one.work == work and one.format in (dtype, None)]
        return max(known, key=lambda one: one.format is not None, default=None)
