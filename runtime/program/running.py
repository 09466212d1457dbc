"""A rank's part of the running statistics of the module's batch norms."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.plan.statistics import RunningFile


@dataclass(frozen=True)
class StatisticsPart:
    """A rank's part of the statistics of a tensor: the mean and the unbiased variance of some
    channels over the elements that the rank holds."""

    registers: tuple[str, str]
    """The registers of the mean and the variance."""
    channels: tuple[int, int]
    """The channels [start, stop)."""
    count: int
    """The number of elements per channel on this rank."""


@dataclass(frozen=True)
class NormStatistics:
    """The running statistics of a batch norm of the module."""

    record: RunningFile
    shape: tuple[int, ...]
    """The shape of the normalized tensor or, with groups of samples, of its first group."""
    is_known: bool
    """Whether any rank computes this tensor."""
    piece: StatisticsPart | None
    """This rank's part, if it has any."""
