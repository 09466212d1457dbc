"""A rank's part of the running statistics that the module's batch norms keep."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.plan.statistics import RunningFile


@dataclass(frozen=True)
class StatisticsPart:
    """A rank's part of the statistics of a tensor: registers with the mean and unbiased variance of
    some channels, of which the rank has ``count`` elements each."""

    registers: tuple[str, str]
    channels: tuple[int, int]
    count: int


@dataclass(frozen=True)
class Running:
    """Running statistics of the module. ``shape``: of what they are of, which is what is normed or,
    of groups of samples, the first one; ``is_known``: whether any
    rank computes that, and ``piece`` what this one adds."""

    record: RunningFile
    shape: tuple[int, ...]
    is_known: bool
    piece: StatisticsPart | None
