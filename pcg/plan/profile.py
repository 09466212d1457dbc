"""profile.json: measured times of operators and links on a machine's devices."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pcg.device import DType
from pcg.errors import InputError
from pcg.files import FileModel, Name, read_json
from pcg.machine import MAX_DEVICES, Level, Machine, Pattern, Positive, Rate
from pcg.readings.kind import WorkKind


class Point(FileModel):
    """One measurement."""

    size: Positive
    """Floating-point operations of a contraction or function, bytes read and written by any other
    operator, or bytes of a message."""
    seconds: Positive
    """The median time, including the launch."""
    spread: Annotated[float, Field(ge=0, le=1e24)]
    """The interquartile range, in seconds."""


LEAST_POINTS = 2
"""The fewest points that determine a line."""
Points = Annotated[tuple[Point, ...], Field(min_length=LEAST_POINTS, max_length=4096)]


def _check_sizes(where: str, points: Points) -> None:
    for i, (before, after) in enumerate(pairwise(points), 1):
        if after.size <= before.size:
            raise ValueError(
                f"{where}.points[{i}].size: expected more than {before.size:g}, got {after.size:g}"
            )


class OperatorSeries(FileModel):
    """Measurements of operators of one kind and number format, by ascending size."""

    kind: WorkKind
    dtype: DType
    points: Points


class LinkSeries(FileModel):
    """Measurements of communication between devices, one in each unit of a level, while no other
    devices communicate, so that a port is theirs alone. Messages go both ways at once, between
    pairs of devices. Points are by ascending bytes: of a message, or of the tensor that every
    device of a collective has at the end."""

    level: Name
    of: Pattern = "message"
    devices: Annotated[int, Field(ge=2, le=MAX_DEVICES)] = 2
    """The number of devices that take part."""
    points: Points

    @property
    def steps(self) -> int:
        """The number of steps as a ring, in each of which a device sends its part of the bytes. A
        message is one step with all of the bytes."""
        if self.of == "message":
            return 1
        return (self.devices - 1) * (2 if self.of == "all_reduce" else 1)

    @property
    def parts(self) -> int:
        """The number of parts in which the bytes are sent."""
        return 1 if self.of == "message" else self.devices


class Profile(FileModel):
    """Measurements on the devices of a machine. The cost model fills in what was not measured."""

    schema_version: Literal[1]
    machine: Name
    device: Name
    """The name of the device, for people."""
    operators: tuple[OperatorSeries, ...]
    links: tuple[LinkSeries, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for i, series in enumerate(self.operators):
            _check_sizes(f"operators[{i}]", series.points)
        for i, link in enumerate(self.links):
            _check_sizes(f"links[{i}]", link.points)
        kinds = Counter(f"operators: {s.kind} in {s.dtype}" for s in self.operators)
        levels = Counter(f"links: {s.of} over {s.level}" for s in self.links)
        for what, times in (*kinds.items(), *levels.items()):
            if times > 1:
                raise ValueError(f"{what}: expected once, got {times} times")
        return self

    def series(self, kind: WorkKind, dtype: DType) -> tuple[Point, ...] | None:
        """Return the measurements of a kind of work in a number format, or None."""
        measured = (s.points for s in self.operators if (s.kind, s.dtype) == (kind, dtype))
        return next(measured, None)


def load_profile(path: str | Path, machine: Machine) -> tuple[Profile, Machine]:
    """Read a profile of a machine. Return it, and the machine with the measured latencies and
    bandwidths of its links.

    Raises InputError for a file that is invalid, is about another machine, or names a level that
    the machine lacks.
    """
    profile = read_json(path, Profile)
    if profile.machine != machine.name:
        raise InputError(f"{path}: machine", f"expected {machine.name}, got {profile.machine}")
    names = [level.name for level in machine.levels]
    for i, link in enumerate(profile.links):
        if link.level not in names:
            known = ", ".join(names)
            raise InputError(
                f"{path}: links[{i}].level", f"expected one of {known}, got {link.level}"
            )
    levels = tuple(_measured(level, profile.links, path) for level in machine.levels)
    return profile, machine.model_copy(update={"levels": levels})


def _measured(level: Level, links: tuple[LinkSeries, ...], path: str | Path) -> Level:
    """Return a level with its measured rates."""
    rates: dict[str, object] = {}
    for link in (link for link in links if link.level == level.name):
        rate = link_rate(link, path)
        rates |= dict(rate) if link.of == "message" else {link.of: (rate,)}
    return level.model_copy(update=rates)


def link_rate(link: LinkSeries, path: str | Path) -> Rate:
    """Return latency and bandwidth of a step, by least squares of the relative errors of the cost
    model, steps (latency + size / parts / bandwidth). Raises InputError if time does not grow with
    size."""
    sizes = np.array([point.size for point in link.points]) / link.parts
    seconds = np.array([point.seconds for point in link.points]) / link.steps
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    if latency < 0:
        latency, per_byte = 0.0, terms[:, 1].sum() / (terms[:, 1] ** 2).sum()
    if per_byte <= 0:
        where = f"{path}: links: {link.of} over {link.level}"
        raise InputError(where, "measured times do not grow with the size")
    return Rate(latency=float(latency), bandwidth=float(1 / per_byte))
